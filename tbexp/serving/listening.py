"""An ASGI application on a port, until a signal or a reason of its own ends it.

Decided here: that the port is taken before anything else is started, that Ctrl-C and SIGTERM end the serving in order
(open requests get a few seconds), and that this is no failure.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from tbexp.errors import Problem, UserError

GRACE_S = 5  # for requests that are under way when the serving ends
LOOK_S = 0.5  # between looks whether there is a reason to end


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. UserError when the port is in use or the address is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(512)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            wrong = Problem(f"port {port} of {host} is in use", "serve.port", "serve.port=<one that is free>")
        elif error.errno == errno.EACCES:
            wrong = Problem(f"port {port} may not be used: {error.strerror}", "serve.port", "one above 1023")
        else:
            wrong = Problem(
                f"{host} cannot be listened at: {error.strerror}", "serve.host", "an address of this machine"
            )
        raise UserError(wrong) from None
    return listening


def address_of(listening: socket.socket) -> str:
    """http://HOST:PORT"""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """Leaves signals to us: uvicorn raises them again after it has ended, in the middle of whatever then runs."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_until_ended(
    app: Any, listening: socket.socket, *, reason: Callable[[], str | None] = lambda: None
) -> str | None:
    """Serves until a signal (None) or until `reason` gives one to end, which is returned."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=GRACE_S,
            ws_max_size=64 << 20,
            lifespan="on",
        )
    )
    found: str | None = None

    async def look() -> None:
        nonlocal found
        while (found := reason()) is None:
            await asyncio.sleep(LOOK_S)
        server.should_exit = True

    looking = asyncio.create_task(look())
    try:
        with ended_by_signals(server):
            await server.serve(sockets=[listening])
    finally:
        looking.cancel()
    return found


@contextmanager
def ended_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """The first signal ends it in order, a second at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(signum: int, frame: object) -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    before = {each: signal.signal(each, on_signal) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
