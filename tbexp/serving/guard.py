"""Runs one command and leaves nothing of it behind: `python guard.py PARENT COMMAND...`, standard library only.

PARENT is the process that started this one. When PARENT ends, killed with -9 too, or on SIGTERM, the command and every
process that came of it is ended, those included that have left its process group: this process adopts what loses its
parent. It ends with the command's exit code, 128 and the signal's number for one that was killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_S = 10.0  # from SIGTERM to SIGKILL
LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent(signum: int) -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, int(signum), 0, 0, 0)


def descendants() -> list[int]:
    """Every living process below this one."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] not in "ZX":
            parents[int(folder.name)] = int(fields[1])
    found, fresh = set[int](), {os.getpid()}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh}
        found |= fresh
    return sorted(found)


def send(signum: int) -> bool:
    """Signals all descendants; whether there were any."""
    pids = descendants()
    for pid in pids:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            continue
    return bool(pids)


def end_all() -> None:
    """SIGTERM, and after a while SIGKILL until nothing is left."""
    deadline = time.monotonic() + GRACE_S
    send(signal.SIGTERM)
    while descendants() and time.monotonic() < deadline:
        reap()
        time.sleep(0.05)
    while send(signal.SIGKILL):
        reap()
        time.sleep(0.02)


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


def main() -> int:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    asked = False

    def on_term(signum: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    signal.signal(signal.SIGTERM, on_term)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        return 0
    try:
        child = subprocess.Popen(command, preexec_fn=lambda: die_with_parent(signal.SIGKILL))
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127
    while not asked and child.poll() is None:
        time.sleep(0.1)
    end_all()
    code = child.wait()
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main())
