"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import tempfile
from pathlib import Path

_swept: set[Path] = set()  # folders in which this process has removed what killed writers left


def write_whole(file: Path, content: str | bytes) -> None:
    """Writes beside and renames, so that a reader or a killed process never leaves half a file. Text: as UTF-8.

    The first write into a folder removes what writers that were killed on this machine left there.
    """
    folder = file.parent.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if folder not in _swept:
        _swept.add(folder)
        remove_left_over(folder)
    handle, temporary = _beside(file)
    try:
        with os.fdopen(handle, "wb") as out:  # open, and so locked, until it has its name
            out.write(content.encode() if isinstance(content, str) else content)
            out.flush()
            os.fsync(out.fileno())
            temporary.chmod(0o644)
            temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_left_over(folder: Path) -> None:
    """Removes unfinished files whose writers are gone: a writer holds its file's lock, and the kernel drops it with
    the writer. Other machines' are left alone, since not every shared file system tells of their locks.
    """
    for left in folder.glob(f".*{_suffix()}"):
        with contextlib.suppress(OSError):  # its writer lives, or has just ended
            handle = os.open(left, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
            finally:
                os.close(handle)


def _beside(file: Path) -> tuple[int, Path]:
    """A new file, open and locked."""
    while True:
        handle, name = tempfile.mkstemp(prefix=f".{file.name}.", suffix=_suffix(), dir=file.parent)
        with contextlib.suppress(OSError):  # a file system without locks, on which nobody removes anything
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # taken for a left-over before it was locked


def _suffix() -> str:
    return f".{platform.node()}.tmp"
