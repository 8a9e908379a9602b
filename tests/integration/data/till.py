"""A server without the SDK whose configuration says what it does wrong, and when."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

TOOLS = ["__reserved__init", "__reserved__geteffects", "__reserved__teardown", "ring"]
LISTED = [{"name": name, "inputSchema": {"type": "object", "properties": {}}} for name in TOOLS]
rung = 0
config: dict[str, Any] = {}


def misbehave(place: str) -> str | None:
    """What is done at a place: an answer, another fate, or None for nothing."""
    what = config.get(place)
    if isinstance(what, dict):  # only once, for whoever comes first
        try:
            os.close(os.open(what["once"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return None
        what = what["do"]
    if what == "crash":
        print("the till is on fire", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(3)
    if what == "hang":
        time.sleep(3600)
    if what == "garbage":
        os.write(1, b"\x00\xff ring ring\n")
    if what == "5 MB":
        return "ä" * 5_000_000
    return what


def act(name: str, arguments: dict[str, Any]) -> str:
    global rung
    if name == "__reserved__init":
        config.update(arguments["config"])
        return misbehave("init") or "{}"
    if name == "__reserved__geteffects":
        return misbehave("effects") or json.dumps({"rung": rung})
    if name == "__reserved__teardown":
        return misbehave("teardown") or "{}"
    rung += 1
    return misbehave("call") or "ring"


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        return {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "till", "version": "1"}}
    if method == "tools/list":
        return {"tools": LISTED}
    return {"content": [{"type": "text", "text": act(params["name"], params.get("arguments") or {})}]}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result = answer(message["method"], message.get("params", {}))
            text = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}, ensure_ascii=False)
            sys.stdout.buffer.write(text.encode() + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
