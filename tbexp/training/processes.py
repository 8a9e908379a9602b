"""Processes of one training: found again by a mark in their environment, ended without leaving one behind.

Ray's processes start process groups of their own, so a group or session does not reach them all; an inherited variable
does. Only processes that carry the mark are ever signalled.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

MARK = "TBEXP_TRAINING_RUN"


def marked(mark: str) -> list[int]:
    """Ids of living processes with `MARK=mark` in their environment, this one excepted."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if pid == os.getpid():
            continue
        try:
            environment = (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if wanted in environment.split(b"\0") and state not in "ZX":
            found.append(pid)
    return found


def end(mark: str, *, patience: float = 10.0) -> list[int]:
    """Kills every marked process and waits until none is left; the ids that were there."""
    ended: list[int] = []
    deadline = time.monotonic() + patience
    while alive := marked(mark):
        ended += [pid for pid in alive if pid not in ended]
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return ended
