"""The rental desk as an MCP server over stdio: `python -m tbexp.samples.server`.

Decided here: how the desk's tools are listed and called, and the reserved tools by which a session loads its records
and reads what changed. One process serves one session. Importing this module, and listing its tools, starts no thread
and opens nothing, so that a warm process can be forked for each session.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types import TextContent, Tool

from tbexp.samples.desk import Desk
from tbexp.samples.tools import TOOLS

NAME = "rental_desk"
_NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
_RESERVED: tuple[Tool, ...] = (
    Tool(
        name="__reserved__init",
        description="Load the records of a session.",
        inputSchema={"type": "object", "properties": {"config": {"type": "object"}}, "required": ["config"]},
    ),
    Tool(name="__reserved__geteffects", description="What changed since then.", inputSchema=_NOTHING),
    Tool(name="__reserved__teardown", description="Close the desk.", inputSchema=_NOTHING),
)

server: Server[Any, Any] = Server(NAME)
_desks: list[Desk] = []  # the session's desk, once it is initialised


def initialise(config: Mapping[str, Any]) -> str:
    """config: {"data_patch": table -> rows}. The answer has status ok, or status error and why."""
    if unknown := sorted(set(config) - {"data_patch"}):
        return json.dumps({"status": "error", "message": f"the desk does not know {', '.join(unknown)}"})
    try:
        desk = Desk(config.get("data_patch") or {})
    except (ValueError, TypeError, AttributeError) as problem:
        return json.dumps({"status": "error", "message": f"data_patch: {problem}"})
    teardown()
    _desks.append(desk)
    return json.dumps({"status": "ok"})


def teardown() -> str:
    while _desks:
        _desks.pop().close()
    return "{}"


def answer(name: str, arguments: Mapping[str, Any]) -> str:
    """What the server says to a call, reserved or not."""
    if name == "__reserved__init":
        return initialise(arguments.get("config") or {})
    if name == "__reserved__teardown":
        return teardown()
    if not _desks:
        return json.dumps({"status": "error", "message": "the desk is not initialised"})
    if name == "__reserved__geteffects":
        return json.dumps({"changes": _desks[0].changes()})
    return _desks[0].call(name, arguments)


@server.list_tools()  # type: ignore[no-untyped-call, untyped-decorator]
async def listed() -> list[Tool]:
    own = [Tool(name=tool.name, description=tool.description, inputSchema=dict(tool.input_schema)) for tool in TOOLS]
    return [*_RESERVED, *own]


# The desk checks arguments itself, in fewer words.
@server.call_tool(validate_input=False)  # type: ignore[untyped-decorator]
async def called(name: str, arguments: dict[str, Any]) -> list[TextContent]:
    return [TextContent(type="text", text=answer(name, arguments))]


async def serve() -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(serve)
