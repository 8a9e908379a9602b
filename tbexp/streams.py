"""stdout and stderr of a command, which nobody may be reading any more.

Decided here: a run does not end because its reader has left (`| head`, a terminal that was closed, `>&-`). What is
written then goes nowhere; the run's log file has it. A full disk behind `> file` is told, unless stderr itself, which
would tell it, is that file.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from tbexp.disk import CODES

_LEFT = (errno.EPIPE, errno.EIO)  # of a pipe, of a terminal


class Watched:
    """A text stream that goes on when its reader has left. All else is the stream's own."""

    def __init__(self, stream: IO[str], passed: tuple[int, ...] = _LEFT):
        self._stream = stream
        self._passed = passed

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
        if error.errno not in self._passed:
            raise OSError(error.errno, error.strerror, self._stream.name.strip("<>")) from error
        self.abandon()
        logging.getLogger("tbexp").info("%s is not written any more: %s", self._stream.name, error.strerror)

    def abandon(self) -> None:
        """Lets go nowhere what the stream still holds, all to come, and what later processes write."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


@contextmanager
def watched() -> Iterator[None]:
    """Lets stdout and stderr of this process outlive their readers, and opens those that the caller has closed. What is
    still held at the end and cannot be written is dropped: flush before, to hear of it.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one
    before = sys.stdout, sys.stderr
    out, err = (stream or os.fdopen(number, "w", closefd=False) for number, stream in zip((1, 2), before, strict=True))
    ours = Watched(out), Watched(err, _LEFT + CODES)
    sys.stdout, sys.stderr = ours
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in ours:
            try:
                stream.flush()
            except OSError:
                stream.abandon()
