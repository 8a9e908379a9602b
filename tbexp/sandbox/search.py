"""The knowledge search that servers find at 127.0.0.1:8108: one that is started here, or a Typesense server elsewhere.

Decided here: how servers get to it. Its address is fixed in their code, so their connections to it are led to the
actual one (search_hook/sitecustomize.py, in every Python process that they start): no port is taken that others on the
machine may want, and a Typesense server may be on another host. What the embedded server can do stands in
search_server.py.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from tbexp.config.schema import SandboxConfig
from tbexp.errors import Problem, UserError, WorldError
from tbexp.sandbox.launch import Launcher, Unfit
from tbexp.sandbox.servers import Server, allowed_environment

log = logging.getLogger(__name__)

WANTED = "127.0.0.1:8108"  # what the servers connect to
SCRIPT = Path(__file__).with_name("search_server.py")
HOOK = Path(__file__).with_name("search_hook")
LEAST_COLLECTIONS = 1024
PROBE_S = 5.0


class Search:
    """A search that is up. `address`: host:port, IPv4."""

    def __init__(self, address: str):
        self.address = address

    def led(self, server: Server) -> Server:
        """The server with an environment in which its connections to WANTED go to this search."""
        if self.address == WANTED or server.remote is not None:
            return server
        paths = server.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        absolute = [os.path.abspath(path) for path in paths.split(os.pathsep) if path]  # noqa: PTH100
        env = {
            **server.env,
            "PYTHONPATH": os.pathsep.join([str(HOOK), *absolute]),
            "TBEXP_SEARCH_ADDRESS": f"{WANTED}={self.address}",
        }
        return replace(server, env=env)

    async def ready(self) -> Callable[[], None]:
        """Make sure that it runs. The result raises WorldError once what was uploaded since then is lost."""
        return lambda: None

    async def close(self) -> None:
        return None


class EmbeddedSearch(Search):
    """A process of ours. When it ends it is started again at the same port, without what it held."""

    def __init__(self, max_sessions: int, timeout: float):
        super().__init__("")
        self.port = 0
        self.collections = max(LEAST_COLLECTIONS, 8 * max_sessions)
        self.timeout = timeout
        self.launcher: Launcher | None = None
        self.starting = asyncio.Lock()

    async def ready(self) -> Callable[[], None]:
        async with self.starting:
            if self.launcher is None or self.launcher.dead:
                if self.launcher is not None:
                    log.warning("the embedded search ended and is started again")
                    await self.launcher.stop()
                hello = {"port": self.port, "collections": self.collections}
                launcher = Launcher("the embedded search", SCRIPT, [sys.executable], hello)
                try:
                    answer = await launcher.start(allowed_environment((), {}), None, self.timeout)
                except Unfit as error:
                    raise WorldError("search_crashed", f"the embedded search does not start: {error}") from error
                self.launcher, self.port = launcher, int(answer["port"])
                self.address = f"127.0.0.1:{self.port}"
            running = self.launcher

        def check() -> None:
            if running.dead:
                raise WorldError("search_crashed", "the embedded search ended during the session")

        return check

    async def close(self) -> None:
        if self.launcher is not None:
            await self.launcher.stop()


@asynccontextmanager
async def open_search(config: SandboxConfig) -> AsyncIterator[Search | None]:
    """The search that `config.search` asks for, up and reachable. Raises UserError when it is not."""
    if config.search == "none":
        yield None
    elif config.search == "external":
        yield Search(await asyncio.to_thread(reached, config.search_address))
    else:
        search = EmbeddedSearch(config.max_sessions, config.start_timeout_s)
        try:
            await search.ready()
        except WorldError as error:
            raise UserError(Problem(error.message, "sandbox.search", "use external or none")) from error
        try:
            yield search
        finally:
            await search.close()


def reached(named: str) -> str:
    """The IPv4 address and port of a Typesense server that answers. Raises UserError."""
    where, fix = "sandbox.search_address", "start Typesense, or name where it runs: HOST:PORT"
    host, _, port = named.rpartition(":")
    if not host or not re.fullmatch(r"\d{1,5}", port) or "/" in named:
        raise UserError(Problem(f"`{named}` is no address", where, "HOST:PORT, such as 127.0.0.1:8108"))
    try:
        ip = socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
        connection = http.client.HTTPConnection(str(ip), int(port), timeout=PROBE_S)
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            body = answer.read(1000)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        raise UserError(Problem(f"no search server answers at {named}: {error}", where, fix)) from error
    if answer.status != 200 or b'"ok":true' not in body.replace(b" ", b""):
        raise UserError(
            Problem(f"what answers at {named} is no Typesense server in good health: HTTP {answer.status}", where, fix)
        )
    return f"{ip}:{port}"
