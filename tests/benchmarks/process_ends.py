"""Which processes are below one, and whether they end: for tests and benchmarks that kill."""

from __future__ import annotations

import time
from pathlib import Path

PATIENCE_S = 60.0


def descendants(pid: int) -> set[int]:
    """Processes below `pid`; none if it has ended."""
    found: set[int] = set()
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        below = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # ended while it was looked at
        return found
    for child in below:
        found |= {child} | descendants(child)
    return found


def all_gone(pids: set[int]) -> bool:
    """Whether the processes end; they are given time for it."""
    deadline = time.monotonic() + PATIENCE_S
    while any(running(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
