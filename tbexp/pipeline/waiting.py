"""Being the one run that makes something which others share: the others wait for it, and say at once for whom.

Decided here: that the holder's name lies beside the lock, since a lock file is emptied by whoever tries to take it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from tbexp.config.whole import write_whole

log = logging.getLogger(__name__)


@contextlib.contextmanager
def alone(lock: Path, what: str, *, run_dir: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock. what: stands in `waits for ..., which another run is making`, said once where that is so."""
    file = FileLock(lock)
    try:
        file.acquire(timeout=0)
    except Timeout:
        text = f"waits for {what}, which another run is making{holder(lock)}"
        log.info(text)
        say(text)
        file.acquire()
    try:
        with contextlib.suppress(OSError):  # it serves only to tell others
            told = {"run": str(run_dir.absolute()), "pid": os.getpid(), "host": platform.node()}
            write_whole(name_file(lock), json.dumps(told))
        yield
    finally:
        with contextlib.suppress(OSError):
            name_file(lock).unlink(missing_ok=True)
        file.release()


def name_file(lock: Path) -> Path:
    return lock.with_name(f".holder-of-{lock.name.lstrip('.')}")


def holder(lock: Path) -> str:
    """Such as `: runs/a (process 12)`; nothing where nobody wrote it."""
    try:
        told = json.loads(name_file(lock).read_text(encoding="utf-8"))
        host = "" if told["host"] == platform.node() else f" on {told['host']}"
        return f": {told['run']} (process {told['pid']}{host})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
