"""A disk that is full, however a library tells it: one kind of failure wherever it was noticed.

torch's writer says at which position its file ended, safetensors and SQLite have sentences of their own, and a process
whose log had no room says nothing at all.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

CODES = (errno.ENOSPC, errno.EDQUOT)
LITTLE = 2**20  # bytes: no log, row or checkpoint is written whole with less

_SAID = re.compile(
    "No space left on device|Disk quota exceeded|database or disk is full"
    r"|inline_container\.cc:\d+\] \. unexpected pos|PytorchStreamWriter failed writing"
)


def says_full(text: str) -> bool:
    """Whether an error's text, or a log, tells of a full disk."""
    return _SAID.search(text) is not None


def is_full(folder: Path) -> bool:
    """Whether there is next to no room where `folder` is or would be; False if that cannot be known."""
    place = next((each for each in (folder, *folder.absolute().parents) if each.exists()), None)
    if place is None:
        return False
    try:
        found = os.statvfs(place)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < LITTLE


def full(place: Path) -> OSError:
    """The error of a write to `place`, as the system's own would be."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place))
