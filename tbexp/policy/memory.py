"""How much memory this process may use, and how many conversations that allows."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_SHARE = 0.2  # of the memory for keys and values; while slots grow they take half as much again


def memory() -> int:
    """Bytes that this process may use: the machine's, or its control group's if that has fewer."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(file).read_text()))
        except (OSError, ValueError):  # none, or "max"
            continue
    return total


def slots_that_fit(wanted: int, slot_bytes: int, available: int) -> int:
    """As many as are wanted, or as `CACHE_SHARE` of the available bytes holds, and one at least."""
    return max(1, min(wanted, int(CACHE_SHARE * available / slot_bytes)))
