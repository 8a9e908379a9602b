"""tbexp, killed in the middle of one write: `killed_while_writing.py PATTERN NUMBER SHARE [tbexp's words]`.

The NUMBERth write, from 1, to a file whose path fits PATTERN: a trajectory or a row of a store (SHARE of the line
reaches the file), or a file that appears whole or not at all (a part of it lies beside).
"""

from __future__ import annotations

import os
import signal
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import BinaryIO

from tbexp.app import main
from tbexp.attempts import store
from tbexp.config import whole

pattern, last, share = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
whole_write, beside, writes = store._write, whole._beside, 0


def due(file: str) -> bool:
    global writes
    writes += fnmatch(file, pattern)
    return writes == last and fnmatch(file, pattern)


def write(file: BinaryIO, data: bytes) -> None:
    if due(file.name):
        file.write(data[: int(len(data) * share)])
        os.kill(os.getpid(), signal.SIGKILL)
    whole_write(file, data)


def begin(file: Path) -> tuple[int, Path]:
    handle, name = beside(file)
    if due(str(file)):
        os.write(handle, b'{"a part": ')
        os.kill(os.getpid(), signal.SIGKILL)
    return handle, name


store._write, whole._beside = write, begin
sys.exit(main(sys.argv[4:]))
