"""stdout and stderr of a command, which nobody may be reading any more.

Decided here: a run does not end because its reader has left (`| head`, a terminal that was closed, `>&-`). What is
written then goes nowhere; the run's log file has it. Other failures, such as a full disk behind `> file`, are told.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

_LEFT = (errno.EPIPE, errno.EIO)  # of a pipe, of a terminal


class Watched:
    """A text stream that goes on when its reader has left. All else is the stream's own."""

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._go_on(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._go_on(error)

    def _go_on(self, error: OSError) -> None:
        if error.errno not in _LEFT:
            raise error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())  # also for what the stream still holds, and for processes to come
        os.close(nowhere)
        logging.getLogger("tbexp").info("nobody reads %s any more", self._stream.name)


@contextmanager
def watched() -> Iterator[None]:
    """Lets stdout and stderr of this process outlive their readers, and opens those that the caller has closed."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one
    before = sys.stdout, sys.stderr
    out, err = (stream or os.fdopen(number, "w", closefd=False) for number, stream in zip((1, 2), before, strict=True))
    sys.stdout, sys.stderr = Watched(out), Watched(err)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
