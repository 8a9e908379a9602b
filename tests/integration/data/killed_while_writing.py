"""tbexp, killed in the middle of one write to the store: `killed_while_writing.py WRITE SHARE [tbexp's words]`.

WRITE counts from 1: odd ones are trajectories, even ones rows. SHARE of its bytes reach the file.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import BinaryIO

from tbexp.app import main
from tbexp.attempts import store

last, share = int(sys.argv[1]), float(sys.argv[2])
whole, writes = store._write, 0


def write(file: BinaryIO, data: bytes) -> None:
    global writes
    writes += 1
    if writes == last:
        file.write(data[: int(len(data) * share)])
        os.kill(os.getpid(), signal.SIGKILL)
    whole(file, data)


store._write = write
sys.exit(main(sys.argv[3:]))
