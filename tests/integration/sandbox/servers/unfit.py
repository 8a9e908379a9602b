"""Does at import, as $UNFIT says, what forked sessions must not share; answers like by_hand.py."""

# ruff: noqa: PTH106, PTH123
from __future__ import annotations

import _thread
import ctypes
import datetime
import mmap
import os
import random
import socket
import sqlite3
import sys
import tempfile
import threading
import time
import uuid

what = os.environ.get("UNFIT", "")
if what == "thread":
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
elif what == "socket":
    held = socket.socket()
elif what == "file":
    held = open(__file__)  # type: ignore[assignment]  # noqa: SIM115
elif what == "temporary":
    held = tempfile.mkdtemp()  # type: ignore[assignment]
    os.rmdir(held)  # type: ignore[arg-type]
elif what == "seed":
    random.seed(1)
elif what == "draw":
    number = random.random()
elif what == "uuid":
    number = uuid.uuid4()  # type: ignore[assignment]
elif what == "clock":
    started = datetime.datetime.now()
elif what == "time":
    started = time.time()  # type: ignore[assignment]
elif what == "stamp":

    class Desk:
        def __init__(self) -> None:
            self.opened = time.time()

    desk = Desk()
    imported = vars(desk)["op" + "ened"]
elif what == "stamp that is read":

    class Shop:
        def __init__(self) -> None:
            self.since = time.time()

    closes = Shop().since + 60
elif what == "monotonic":
    started = time.monotonic()  # type: ignore[assignment]
elif what == "counter":
    started = time.perf_counter()  # type: ignore[assignment]
elif what == "clock_gettime":
    started = time.clock_gettime(time.CLOCK_REALTIME)  # type: ignore[assignment]
elif what == "asctime":
    started = time.asctime()  # type: ignore[assignment]
elif what == "getrandom":
    number = os.getrandom(8)  # type: ignore[assignment]
elif what == "uuid1":
    number = uuid.uuid1()  # type: ignore[assignment]
elif what == "raw thread":
    _thread.start_new_thread(time.sleep, (3600,))
elif what == "drawn by sql":
    number = sqlite3.connect(":memory:").execute("select random()").fetchone()  # type: ignore[assignment]
elif what == "time by sql":
    held = sqlite3.connect(":memory:")  # type: ignore[assignment]
    held.executescript("create table t (at default current_timestamp); insert into t default values")  # type: ignore[attr-defined]
elif what == "written by sql":
    with sqlite3.connect(os.environ["DATABASE"]) as database:
        database.execute("create table if not exists t (a)")
    database.close()
elif what == "numpy generator":
    import numpy as np

    held = [np.random.default_rng()]  # type: ignore[assignment]
elif what == "numpy seed":
    from numpy.random import seed

    seed(1)
elif what == "numpy draw":
    import numpy as np

    number = np.random.rand()
elif what == "urandom":
    held = open("/dev/urandom", "rb")  # type: ignore[assignment]  # noqa: SIM115
    held.read(8)  # type: ignore[attr-defined]
elif what == "urandom as log":
    os.close(2)
    held = open("/dev/urandom", "rb")  # type: ignore[assignment]  # noqa: SIM115
elif what == "shared memory":
    held = mmap.mmap(-1, 4096)  # type: ignore[assignment]
elif what == "private memory":
    held = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # type: ignore[assignment]
elif what == "time of C":
    started = ctypes.CDLL(None).time(None)
elif what == "seed of C":
    ctypes.CDLL(None)["srand"](7)
elif what == "length of C":
    length = ctypes.CDLL(None).strlen(b"tea")
elif what == "profiler":
    sys.setprofile(lambda *_: None)
elif what == "full text":
    held = sqlite3.connect(":memory:")  # type: ignore[assignment]
    held.execute("create virtual table f using fts5(a)")  # type: ignore[attr-defined]
    held.execute("insert into f values ('tea')")  # type: ignore[attr-defined]
elif what == "numpy":
    import numpy as np

    table = np.ones((64, 64)) @ np.ones((64, 64))  # the threads of its linear algebra are no fault
elif what == "frozen clock":
    time.time = lambda: 0.0

import by_hand  # noqa: E402

if __name__ == "__main__":
    if what == "stamp" and vars(desk)["op" + "ened"] == imported:
        sys.exit("the time is the import's")
    if what == "full text":
        with open(os.environ["DRAWN"], "a") as drawn:
            drawn.write(held.execute("select hex(randomblob(8))").fetchone()[0] + "\n")  # type: ignore[attr-defined]
    by_hand.main()
