"""An allotment garden as an MCP server: one process keeps the beds of one session in memory."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

from mcp.server.fastmcp import FastMCP

server = FastMCP("garden", log_level="WARNING")
beds: dict[str, dict[str, Any]] = {}
before: dict[str, dict[str, Any]] = {}
moles: list[bool] = []  # with one, the server dies when something is sown


@server.tool(name="__reserved__init")
def init(config: dict[str, Any]) -> str:
    """Load the beds of a session."""
    beds.update(config["beds"])
    before.update(copy.deepcopy(beds))
    moles.append(config.get("mole", False))
    return json.dumps({"status": "ok"})


@server.tool(name="__reserved__geteffects")
def effects() -> str:
    """What has changed since then."""
    changed = {
        name: {key: value for key, value in bed.items() if before[name].get(key) != value}
        for name, bed in beds.items()
        if bed != before[name]
    }
    return json.dumps({"changed": changed, "sees_key": any(map(holds_key, Path("/proc").glob("[0-9]*/environ")))})


def holds_key(environment: Path) -> bool:
    """Of this process, and of any other that lets itself be looked into."""
    try:
        return b"GARDEN_KEY" in environment.read_bytes()
    except OSError:
        return False


@server.tool()
def look_at_bed(bed: str) -> str:
    """The state of a bed and what grows in it."""
    return json.dumps(beds[bed])


@server.tool()
def sow(bed: str, plant: str, rows: int) -> str:
    """Sow rows of a plant in a bed."""
    if any(moles):
        os._exit(9)
    beds[bed] |= {"plant": plant, "rows": rows}
    return json.dumps(beds[bed])


@server.tool()
def water(bed: str, litres: int) -> str:
    """Water a bed."""
    beds[bed]["litres"] = beds[bed].get("litres", 0) + litres
    return json.dumps(beds[bed])


if __name__ == "__main__":
    server.run()
