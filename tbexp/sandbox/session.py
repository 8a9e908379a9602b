"""One session: the servers of one attempt, the tools the agent may see, and what the reserved tools do.

Decided here: which tools are visible and how they are described, what a tool result's text is, and what of a server's
behaviour is the world's failure (a WorldError) and what is a text for the agent to read.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tbexp.errors import Problem, UserError, WorldError
from tbexp.interpret.messages import ToolSpec
from tbexp.sandbox.mcp_client import RpcError

log = logging.getLogger(__name__)

INIT = "__reserved__init"
EFFECTS = "__reserved__geteffects"
TEARDOWN = "__reserved__teardown"
TEARDOWN_S = 10.0  # a server that takes longer is ended
RESERVED = "__reserved__"


@dataclass(frozen=True, slots=True)
class Limits:
    """call_s, start_s: seconds for one call and for a start. result_chars: longer tool results are cut."""

    call_s: float
    start_s: float
    result_chars: int


class Connection(Protocol):
    """A conversation with one server: mcp_client.py has it for our own processes, remote.py for servers elsewhere.

    broken: why every further request fails. request: see `mcp_client.Connection.request`.
    """

    @property
    def name(self) -> str: ...
    @property
    def broken(self) -> Exception | None: ...

    tools_changed: bool

    async def request(self, method: str, params: Mapping[str, Any], timeout: float) -> dict[str, Any]: ...
    def close(self) -> None: ...


class Session:
    """The live backend of one attempt. Calls run one at a time, in the order in which they were made."""

    def __init__(self, limits: Limits, check: Callable[[], None] | None = None):
        """check: raises WorldError when something that the servers rely on was lost; asked after each call."""
        self.id = uuid.uuid4().hex
        self.tools: dict[str, ToolSpec] = {}
        self.init_result: dict[str, Any] = {}
        self._limits = limits
        self._check = check
        self._owner: dict[str, str] = {}
        self._connections: dict[str, Connection] = {}
        self._offered: dict[str, dict[str, ToolSpec]] = {}
        self._turn = asyncio.Lock()

    # --- opening, for the sandbox

    async def add(self, server: str, connection: Connection, offered: dict[str, ToolSpec], config: Any) -> None:
        """Take a server in: tell it its configuration. Raises WorldError("server_init") when it refuses."""
        self._connections[server] = connection
        self._offered[server] = offered
        self.init_result[server] = {}
        if INIT not in offered:
            return
        try:
            text = await self._reserved(server, INIT, {"config": config}, "server_init", self._limits.start_s)
        except WorldError as error:
            if error.kind == "tool_timeout":
                raise WorldError("server_init", error.message) from error
            raise
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or (answer and answer.pop("status", None) != "ok"):
            raise WorldError("server_init", f"server {server}: init answered {text[:2000]}")
        self.init_result[server] = answer

    async def relist(self, server: str) -> None:
        """Ask again for the tools of a server that says its tools have changed."""
        connection = self._connections[server]
        if connection.tools_changed:
            connection.tools_changed = False
            self._offered[server] = await list_tools(connection, self._limits.start_s)

    def show(self, tools: Sequence[Any]) -> None:
        """Make the given tools visible: names, or overrides with the scenario's descriptions."""
        for server, offered in self._offered.items():
            for name in offered:
                if not name.startswith(RESERVED):
                    self._owner[name] = server  # of equal names the later server's wins
        missing = []
        for entry in tools:
            name = entry if isinstance(entry, str) else entry.name
            server = self._owner.get(name, "")
            if not server:
                missing.append(name)
                continue
            self.tools[name] = overridden(self._offered[server][name], entry)
        if missing:
            servers = ", ".join(self._offered)
            raise UserError(
                [Problem(f"the scenario lists tool `{name}`, which no server offers ({servers})") for name in missing]
            )

    # --- use

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The text of a visible tool's answer, also when the tool reports an error; cut when it is too long.

        Raises KeyError for a tool that is not visible, WorldError for a server that fails.
        """
        if name not in self.tools:
            raise KeyError(name)
        text, _ = await self._call(self._owner[name], name, arguments, self._limits.call_s)
        return cut(text, self._limits.result_chars)

    async def replay(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Make a recorded call again; what went wrong, or "". Raises WorldError for a server that fails."""
        if name not in self.tools:
            return "the session shows no such tool"
        text, failed = await self._call(self._owner[name], name, arguments, self._limits.call_s)
        return text if failed else ""

    async def server_tool(self, server: str, tool: str, arguments: Mapping[str, Any]) -> str:
        """Any tool of any server, reserved and hidden ones included, uncut: for fixtures."""
        if server not in self._connections:
            raise KeyError(server)
        text, _ = await self._call(server, tool, arguments, self._limits.call_s)
        return text

    async def effects(self) -> dict[str, Any]:
        """Each server's effects; {} for a server that has no such tool. Raises WorldError("effects_unreadable")."""
        found: dict[str, Any] = {}
        for server, offered in self._offered.items():
            if EFFECTS not in offered:
                found[server] = {}
                continue
            text = await self._reserved(server, EFFECTS, {}, "effects_unreadable", self._limits.call_s)
            try:
                effects = json.loads(text)
            except ValueError:
                effects = None
            found[server] = checked_effects(server, effects, text)
        return found

    async def teardown(self) -> None:
        """Tell the servers that the session is over. What fails is logged: the attempt is decided already."""
        for server, connection in self._connections.items():
            if TEARDOWN not in self._offered[server] or connection.broken is not None:
                continue
            try:
                await self._reserved(server, TEARDOWN, {}, "teardown", min(TEARDOWN_S, self._limits.call_s))
            except WorldError as error:
                log.warning("session %s: teardown of server %s failed: %s", self.id, server, error)

    async def _reserved(self, server: str, tool: str, arguments: dict[str, Any], kind: str, timeout: float) -> str:
        properties = self._offered[server][tool].input_schema.get("properties", {})
        if "session_id" in properties:
            arguments["session_id"] = self.id
        text, failed = await self._call(server, tool, arguments, timeout)
        if failed:
            raise WorldError(kind, f"server {server}: {tool} failed: {text[:2000]}")
        return text

    async def _call(self, server: str, tool: str, arguments: Mapping[str, Any], timeout: float) -> tuple[str, bool]:
        async with self._turn:
            try:
                result = await self._connections[server].request(
                    "tools/call", {"name": tool, "arguments": arguments}, timeout
                )
            except RpcError as error:
                return error.message, True
            finally:
                if self._check is not None:
                    self._check()
        return first_text(result), bool(result.get("isError"))


def checked_effects(server: str, effects: Any, text: str) -> dict[str, Any]:
    """The effects, if they are an object that reports no failure. Raises WorldError("effects_unreadable")."""
    failed = isinstance(effects, dict) and effects.get("status") == "error" and "message" in effects
    if not isinstance(effects, dict) or failed:
        raise WorldError("effects_unreadable", f"server {server} gave as its effects: {text[:2000]}")
    return effects


async def list_tools(connection: Connection, timeout: float) -> dict[str, ToolSpec]:
    """All tools of a server, over as many pages as it takes, with plain schemas."""
    found: dict[str, ToolSpec] = {}
    cursor: str | None = None
    while True:
        try:
            page = await connection.request("tools/list", {"cursor": cursor} if cursor else {}, timeout)
        except RpcError as error:
            raise WorldError("server_init", f"server {connection.name} lists no tools: {error.message}") from error
        for tool in page.get("tools", ()):
            schema = plain_schema(tool.get("inputSchema") or {"type": "object", "properties": {}})
            found[tool["name"]] = ToolSpec(tool["name"], tool.get("description") or "", schema)
        cursor = page.get("nextCursor")
        if not cursor:
            return found


def plain_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with local `$ref`s put in place and `$defs` and generated titles left out.

    A definition that contains itself stays a reference, and then `$defs` stays too.
    """
    definitions = {**schema.get("$defs", {}), **schema.get("definitions", {})}
    recursive = False

    def plain(node: Any, inside: tuple[str, ...], names: bool) -> Any:
        nonlocal recursive
        if isinstance(node, list):
            return [plain(item, inside, False) for item in node]
        if not isinstance(node, dict):
            return node
        reference = node.get("$ref")
        if not names and isinstance(reference, str):
            name = reference.rpartition("/")[2]
            if name in inside or name not in definitions:
                recursive = True
                return node
            rest = {key: value for key, value in node.items() if key != "$ref"}
            return plain({**definitions[name], **rest}, (*inside, name), False)
        kept = {}
        for key, value in node.items():
            # Under `properties` the keys are the parameters' names: one may be called `title`.
            if not names and (key in ("$defs", "definitions") or (key == "title" and isinstance(value, str))):
                continue
            data = not names and key in ("default", "const", "enum", "examples")
            kept[key] = (
                value if data else plain(value, inside, not names and key in ("properties", "patternProperties"))
            )
        return kept

    result: dict[str, Any] = plain(dict(schema), (), False)
    if recursive and "$defs" in schema:
        result["$defs"] = schema["$defs"]
    return result


def overridden(tool: ToolSpec, entry: Any) -> ToolSpec:
    """The tool with the scenario's descriptions: `override_description`, `override_arg_description` of `entry`."""
    if isinstance(entry, str):
        return tool
    description = getattr(entry, "override_description", None)
    arguments = getattr(entry, "override_arg_description", None) or {}
    schema = dict(tool.input_schema)
    properties = dict(schema.get("properties", {}))
    for name, text in arguments.items():
        if name in properties:
            properties[name] = {**properties[name], "description": text}
        else:
            log.warning("tool %s has no argument %s: its description is not used", tool.name, name)
    if arguments:
        schema["properties"] = properties
    return replace(tool, description=tool.description if description is None else description, input_schema=schema)


def first_text(result: Mapping[str, Any]) -> str:
    """The text of a result's first content item; other kinds of content are named in brackets."""
    content = result.get("content")
    if not isinstance(content, list) or not content or not isinstance(content[0], dict):
        return ""
    first = content[0]
    if isinstance(first.get("text"), str):
        return str(first["text"])
    resource = first.get("resource")
    if isinstance(resource, dict) and isinstance(resource.get("text"), str):
        return str(resource["text"])
    return f"[{first.get('type', 'unknown')} content, not shown]"


def cut(text: str, limit: int) -> str:
    """`text`, or its first `limit` characters and a marker that says how many are missing."""
    if len(text) <= limit:
        return text
    marker = f"\n[cut here: {len(text) - limit} of {len(text)} characters are not shown]"
    return text[:limit] + marker
