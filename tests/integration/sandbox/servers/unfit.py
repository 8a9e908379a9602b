"""Does at import, as $UNFIT says, what forked sessions must not share; answers like by_hand.py."""

# ruff: noqa: PTH106, PTH123
from __future__ import annotations

import datetime
import os
import random
import socket
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
elif what == "frozen clock":
    time.time = lambda: 0.0

import by_hand  # noqa: E402

if __name__ == "__main__":
    if what == "stamp" and vars(desk)["op" + "ened"] == imported:
        sys.exit("the time is the import's")
    by_hand.main()
