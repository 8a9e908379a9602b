"""Opens sessions: one process per session and server, forked from a warm launcher where that is safe.

Decided here: how many sessions live at once, when a launcher is started or replaced, and at which level: `ready` is
tried first, then `import`, then `exec`, which always works and is announced: it costs a process start per session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tbexp.config.schema import SandboxConfig
from tbexp.errors import Problem, UserError, WorldError
from tbexp.interpret.messages import ToolSpec
from tbexp.sandbox.launch import GRACE_S, Child, Launcher, Unfit, start_server
from tbexp.sandbox.mcp_client import Connection
from tbexp.sandbox.search import Search, open_search
from tbexp.sandbox.servers import Server, allowed_environment
from tbexp.sandbox.session import Connection as AnyConnection
from tbexp.sandbox.session import Limits, Session, list_tools

if TYPE_CHECKING:
    from tbexp.sandbox.remote import RemoteBackend

log = logging.getLogger(__name__)

LEVELS = {"prefork": ("ready", "import", "exec"), "process": ("exec",)}


class Backend:
    """One server: its launcher, once it is needed, and the tools it lists before it is initialised."""

    def __init__(self, server: Server, config: SandboxConfig):
        self.server = server
        self.config = config
        self.levels = list(LEVELS[config.kind])
        self.launcher: Launcher | None = None
        self.tools: dict[str, ToolSpec] | None = None
        self.starting = asyncio.Lock()
        self.ending: set[asyncio.Task[None]] = set()

    @property
    def level(self) -> str:
        return self.levels[0]

    @property
    def used(self) -> bool:
        return self.launcher is not None

    async def running(self) -> Launcher:
        """The launcher, started at the best level that fits."""
        if self.launcher is not None and not self.launcher.dead:
            return self.launcher
        async with self.starting:
            if self.launcher is not None and not self.launcher.dead:
                return self.launcher
            while True:
                level = self.levels[0]
                try:
                    launcher = await start_server(
                        self.server, level, self.config.allow_env, self.config.start_timeout_s
                    )
                except Unfit as error:
                    if level == "exec":
                        raise WorldError(
                            "server_init", f"no launcher for server {self.server.name}: {error}"
                        ) from error
                    self.levels.pop(0)
                    if self.levels[0] == "exec":
                        log.warning("server %s: a process per session, since %s", self.server.name, error)
                    else:
                        log.info("server %s: not forked when ready, since %s", self.server.name, error)
                    continue
                self.launcher = launcher
                return launcher

    async def connect(self) -> tuple[Connection, dict[str, ToolSpec]]:
        """A fresh process of this server, past the handshake, and its tools."""
        launcher = await self.running()
        request: dict[str, Any] = {}
        if self.levels[0] == "exec":
            env = allowed_environment(self.config.allow_env, self.server.env)
            request = {"argv": self.server.command, "cwd": self.server.cwd, "env": env}
        child = await launcher.child(request)
        try:
            connection = await Connection.open(child.socket, self.server.name, child.ended, child.describe_end)
        except BaseException:
            child.socket.close()
            raise
        task = asyncio.create_task(self._see_out(launcher, child, connection))
        self.ending.add(task)
        task.add_done_callback(self.ending.discard)
        timeout = self.config.start_timeout_s
        try:
            if self.levels[0] != "ready":
                await connection.handshake(timeout)
            # Forks of one image list the same tools; a process of its own may not.
            if self.tools is None or self.levels[0] == "exec":
                self.tools = await list_tools(connection, timeout)
        except WorldError as error:
            connection.close()
            if error.kind == "tool_timeout":
                raise WorldError("server_init", f"server {self.server.name}: {error.message}") from error
            raise
        except BaseException:
            connection.close()
            raise
        return connection, self.tools

    async def _see_out(self, launcher: Launcher, child: Child, connection: Connection) -> None:
        await connection.closed
        await launcher.end(child, GRACE_S if connection.orderly else 0.0)

    async def close(self) -> None:
        if self.ending:
            await asyncio.wait(set(self.ending))
        if self.launcher is not None:
            await self.launcher.stop()


def backend_of(server: Server, config: SandboxConfig) -> Backend | RemoteBackend:
    if server.remote is None:
        return Backend(server, config)
    from tbexp.sandbox.remote import RemoteBackend

    return RemoteBackend(server, config.start_timeout_s)


class Sandbox:
    """Hands out sessions; see `open_sandbox`."""

    def __init__(self, config: SandboxConfig, servers: Mapping[str, Server], search: Search | None = None):
        self.config = config
        self.search = search
        led = {name: search.led(server) if search else server for name, server in servers.items()}
        self._backends = {name: backend_of(server, config) for name, server in led.items()}
        self._places = asyncio.Semaphore(config.max_sessions)
        self._limits = Limits(config.call_timeout_s, config.start_timeout_s, config.max_result_chars)

    @asynccontextmanager
    async def session(self, server_config: Mapping[str, Any], tools: Sequence[Any]) -> AsyncIterator[Session]:
        """A session of the given servers, told their configurations in order, that shows the given tools.

        tools: names, or objects with `name`, `override_description` and `override_arg_description`. Waits while
        `max_sessions` others live. Raises WorldError when a server does not start, UserError for a server or tool that
        does not exist.
        """
        self._known(server_config)
        async with self._places:
            session = Session(self._limits, await self.search.ready() if self.search else None)
            connections: list[AnyConnection] = []
            try:
                for name, config in server_config.items():
                    connection: AnyConnection
                    connection, offered = await self._backends[name].connect()
                    connections.append(connection)
                    await session.add(name, connection, offered, config)
                    await session.relist(name)
                session.show(tools)
                yield session
            finally:
                try:
                    await session.teardown()
                finally:
                    for connection in connections:
                        connection.close()

    def levels(self) -> dict[str, str]:
        """How each server that was used is started: ready, import or exec; or remote."""
        return {name: backend.level for name, backend in self._backends.items() if backend.used}

    def _known(self, server_config: Mapping[str, Any]) -> None:
        problems = []
        for name in server_config:
            backend = self._backends.get(name)
            if backend is None:
                known = ", ".join(self._backends) or "none"
                problems.append(Problem(f"the tasks need server `{name}`; servers.yaml has: {known}"))
        if problems:
            raise UserError(problems)

    async def close(self) -> None:
        await asyncio.gather(*(backend.close() for backend in self._backends.values()))


@asynccontextmanager
async def open_sandbox(config: SandboxConfig, servers: Mapping[str, Server]) -> AsyncIterator[Sandbox]:
    """A sandbox for the given servers. Launchers start when they are first needed and end with the context.

    Raises UserError when the search or the session proxy that the configuration asks for is not to be had. A proxy has
    servers of its own: `servers` is not used then.
    """
    if config.kind == "proxy":
        from tbexp.sandbox.proxy import open_proxy

        async with open_proxy(config) as proxied:
            yield proxied
        return
    async with open_search(config) as search:
        sandbox = Sandbox(config, servers, search)
        try:
            yield sandbox
        finally:
            await sandbox.close()
