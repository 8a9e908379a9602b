"""Sessions of a session proxy that runs already, such as `tb mcp-start`: JSON over HTTP (thinkingbox format, 4.4).

Decided here: whose fault an answer of the proxy is. Its servers and their configuration are the proxy's own; what a
session shows, how tools are described, what is cut and what effects mean is the same as without a proxy. No request is
sent twice: a tool that was called may have acted, and the attempt as a whole is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tbexp.config.schema import SandboxConfig
from tbexp.config.secrets import key_in
from tbexp.errors import Problem, UserError, WorldError
from tbexp.interpret.messages import ToolSpec
from tbexp.sandbox.pool import Sandbox
from tbexp.sandbox.session import EFFECTS, TEARDOWN_S, Limits, Session, checked_effects, cut, overridden, plain_schema

log = logging.getLogger(__name__)

SERVER_TOOL = "__reserved__server_tool"
WHERE = "sandbox.proxy.url"
MARGIN_S = 5.0  # the proxy has the first word on time-outs: 504 after the session's own limit
LOST = re.compile(r"session does not exist", re.IGNORECASE)
NAMELESS = re.compile(
    r"unknown|not found|no such|does not exist|not (?:offered|available|configured|known)", re.IGNORECASE
)


class Refused(Exception):
    """The proxy answered 400 with a text."""

    def __init__(self, text: str):
        self.text = text
        super().__init__(text)


class Proxy:
    """Requests to one proxy."""

    def __init__(self, config: SandboxConfig):
        self.url = config.proxy.url.rstrip("/")
        self.key_env = config.proxy.api_key_env
        headers = {}
        if self.key_env is not None:
            key, wrong = key_in(self.key_env)
            if wrong:
                raise UserError(Problem(wrong, "sandbox.proxy.api_key_env", f"export {self.key_env}=..."))
            headers["Authorization"] = f"Bearer {key}"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=config.max_sessions)
        # No limit but ours: many sessions wait their turn at a proxy that starts them one by one.
        self.client = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=None, limits=limits)

    async def greet(self, timeout: float) -> None:
        """Raises UserError when no proxy is there."""
        fix = "start the proxy (`tb mcp-start`), or name where it runs"
        try:
            async with asyncio.timeout(timeout):
                answer = await self.client.get("/health")
        except TimeoutError:
            raise UserError(
                Problem(f"the session proxy at {self.url} does not answer within {timeout:g} s", WHERE, fix)
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UserError(
                Problem(f"no session proxy answers at {self.url}: {type(error).__name__}: {error}", WHERE, fix)
            ) from error
        if answer.status_code != 200:
            raise UserError(
                Problem(f"what answers at {self.url} is no session proxy: HTTP {answer.status_code}", WHERE, fix)
            )

    async def ask(self, endpoint: str, body: Mapping[str, Any], timeout: float, kind: str = "tool_timeout") -> Any:
        """The value of the answer. Raises Refused for a 400, UserError for a refused key, WorldError for all else.

        kind: of the error when nothing comes within `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                answer = await self.client.post(endpoint, json=body)
        except TimeoutError:
            raise WorldError(kind, f"the session proxy did not answer {endpoint} within {timeout:g} s") from None
        except httpx.HTTPError as error:
            text = f"the session proxy at {self.url}: {endpoint}: {type(error).__name__}: {error}"
            raise WorldError("proxy_down", text) from error
        status = answer.status_code
        if status in (401, 403):
            fix = "name the variable that holds the proxy's key: sandbox.proxy.api_key_env=NAME"
            if self.key_env is not None:
                fix = f"correct the key in {self.key_env}"
            raise UserError(
                Problem(f"the session proxy at {self.url} refuses the key", "sandbox.proxy.api_key_env", fix)
            )
        try:
            envelope = answer.json()
            success, value = envelope["success"], envelope["content"]["value"]
        except (ValueError, KeyError, TypeError):
            success, value = None, None
        text = value if isinstance(value, str) else answer.text
        if status == 504:
            raise WorldError(kind, f"the session proxy: {endpoint}: {text[:2000]}")
        if status == 400 and LOST.search(text):
            raise WorldError("session_lost", f"the session proxy has lost the session: {text[:2000]}")
        if status == 400:
            raise Refused(text)
        if status != 200:
            raise WorldError("proxy_error", f"the session proxy answered {endpoint} with HTTP {status}: {text[:2000]}")
        if success is not True:
            raise WorldError("proxy_garbage", f"the session proxy answered {endpoint} with {answer.text[:500]!r}")
        return value

    async def text(self, body: Mapping[str, Any], timeout: float) -> tuple[str, bool]:
        """The text of a tool's answer, and whether it is an error that the proxy reports; it drops those of servers."""
        try:
            value = await self.ask("/call_tool", body, timeout)
        except Refused as refused:
            if refused.text.startswith("Invalid input"):
                raise WorldError(
                    "proxy_error", f"the session proxy refuses the call: {refused.text[:2000]}"
                ) from refused
            return refused.text, True
        return value if isinstance(value, str) else json.dumps(value), False


class ProxySession(Session):
    """A session that the proxy keeps."""

    def __init__(self, limits: Limits, proxy: Proxy, servers: Sequence[str]):
        super().__init__(limits)
        self._proxy = proxy
        self._servers = list(servers)
        self._broken: WorldError | None = None
        self._patience = limits.call_s + MARGIN_S

    async def create(self, server_config: Mapping[str, Any], tools: Sequence[Any]) -> None:
        names = [tool if isinstance(tool, str) else tool.name for tool in tools]
        try:
            made = await self._create(server_config, names)
            listed = await self._proxy.ask("/list_tools", {"session_id": self.id}, self._patience, "server_init")
        except Refused as refused:
            raise await self._unmade(refused.text, server_config, names) from refused
        try:
            self.init_result = {name: made.get(name) or {} for name in self._servers}
            offered = {
                name: ToolSpec(name, tool.get("description") or "", plain_schema(tool.get("inputSchema") or EMPTY))
                for name, tool in listed["tools"].items()
            }
        except (AttributeError, KeyError, TypeError) as error:
            raise WorldError("proxy_garbage", f"the session proxy lists no tools: {str(listed)[:500]}") from error
        if missing := [name for name in names if name not in offered]:
            raise no_such_tools(missing, self._servers)
        self.tools = {name: overridden(offered[name], tool) for name, tool in zip(names, tools, strict=True)}

    async def _create(self, server_config: Mapping[str, Any], tools: Sequence[str]) -> Any:
        body = {
            "session_id": self.id,
            "server_config": dict(server_config),
            "available_tools": list(tools),
            "timeout": self._limits.call_s,
        }
        return await self._proxy.ask("/session_create", body, self._limits.start_s, "server_init")

    async def _unmade(self, text: str, server_config: Mapping[str, Any], tools: Sequence[str]) -> Exception:
        """What a refused creation is: a name that the proxy does not know is the user's, anything else the world's.

        The proxy's texts are not specified. A tool is missing if the text names it and the session can be made without
        tools. A server is missing if the text names it beside words for that, and is not an answer of the server's own,
        which holds JSON.
        """
        words = set(re.findall(r"[\w.-]+", text))
        if missing := [name for name in tools if name in words]:
            with contextlib.suppress(Refused, WorldError):
                await self._create(server_config, [])
                return no_such_tools(missing, self._servers)
        unknown = [name for name in self._servers if name in words]
        if unknown and NAMELESS.search(text) and "{" not in text:
            fix = "add it to the servers.yaml that the proxy was started with"
            what = "the session proxy does not know server"
            return UserError([Problem(f"{what} `{name}`: {text[:500]}", WHERE, fix) for name in unknown])
        return WorldError("server_init", f"the session proxy did not make the session: {text[:2000]}")

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if name not in self.tools:
            raise KeyError(name)
        text, _ = await self._call_tool(name, arguments)
        return cut(text, self._limits.result_chars)

    async def replay(self, name: str, arguments: Mapping[str, Any]) -> str:
        if name not in self.tools:
            return "the session shows no such tool"
        text, failed = await self._call_tool(name, arguments)
        return text if failed else ""

    async def server_tool(self, server: str, tool: str, arguments: Mapping[str, Any]) -> str:
        if server not in self._servers:
            raise KeyError(server)
        inner = {"server_name": server, "tool_name": tool, "arguments": dict(arguments)}
        text, _ = await self._call_tool(SERVER_TOOL, inner)
        return text

    async def effects(self) -> dict[str, Any]:
        async with self._turn:
            if self._broken is not None:
                raise self._broken
            try:
                found = await self._proxy.ask("/get_effects", {"session_id": self.id}, self._patience)
            except Refused as refused:
                text = f"the session proxy gave as the effects: {refused.text[:2000]}"
                raise WorldError("effects_unreadable", text) from refused
        if not isinstance(found, dict):
            raise WorldError("proxy_garbage", f"the session proxy gave as the effects: {str(found)[:2000]}")
        effects = {}
        for server in self._servers:
            own = found.get(server, {})
            effects[server] = checked_effects(server, own, str(own)) if own != {} else await self._no_effects(server)
        return effects

    async def _no_effects(self, server: str) -> dict[str, Any]:
        """{} may mean that the server has none, or that the proxy could not read them: ask the server itself."""
        text = await self.server_tool(server, EFFECTS, {})
        if "session_id" in text:
            text = await self.server_tool(server, EFFECTS, {"session_id": self.id})
        with contextlib.suppress(ValueError):
            return checked_effects(server, json.loads(text), text)
        if EFFECTS in text and NAMELESS.search(text):
            return {}
        raise WorldError("effects_unreadable", f"server {server} gave as its effects: {text[:2000]}")

    async def teardown(self) -> None:
        """End the session, whatever became of its creation. What fails is logged: the attempt is decided already."""
        try:
            await self._proxy.ask("/session_destroy", {"session_id": self.id}, TEARDOWN_S)
        except (WorldError, Refused, UserError) as error:
            if not (isinstance(error, WorldError) and error.kind == "session_lost"):
                log.warning("session %s: the proxy did not end it: %s", self.id, error)

    async def _call_tool(self, tool: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        async with self._turn:
            if self._broken is not None:
                raise self._broken
            body = {"session_id": self.id, "tool_name": tool, "arguments": dict(arguments)}
            try:
                return await self._proxy.text(body, self._patience)
            except WorldError as error:  # what state the session is in, nobody knows
                self._broken = error
                raise


EMPTY = {"type": "object", "properties": {}}


def no_such_tools(names: Sequence[str], servers: Sequence[str]) -> UserError:
    listed = ", ".join(servers)
    return UserError(
        [Problem(f"the scenario lists tool `{name}`, which no server offers ({listed})") for name in names]
    )


class ProxySandbox(Sandbox):
    """Hands out sessions of a proxy."""

    def __init__(self, config: SandboxConfig, proxy: Proxy):
        super().__init__(config, {})
        self._proxy = proxy
        self._used: set[str] = set()

    @asynccontextmanager
    async def session(self, server_config: Mapping[str, Any], tools: Sequence[Any]) -> AsyncIterator[Session]:
        async with self._places:
            session = ProxySession(self._limits, self._proxy, list(server_config))
            self._used.update(server_config)
            try:
                await session.create(server_config, tools)
                yield session
            finally:
                await asyncio.shield(session.teardown())

    def levels(self) -> dict[str, str]:
        return dict.fromkeys(sorted(self._used), "proxy")

    async def close(self) -> None:
        await self._proxy.client.aclose()


@asynccontextmanager
async def open_proxy(config: SandboxConfig) -> AsyncIterator[Sandbox]:
    """A sandbox of the proxy's sessions. Raises UserError when none answers, or the key is not set."""
    proxy = Proxy(config)
    sandbox = ProxySandbox(config, proxy)
    try:
        await proxy.greet(config.start_timeout_s)
        yield sandbox
    finally:
        await sandbox.close()
