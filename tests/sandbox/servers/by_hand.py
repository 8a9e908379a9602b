"""A server without the SDK: reads lines, writes lines. What it does wrong is told by its argument."""

# ruff: noqa: T201, PTH123
from __future__ import annotations

import json
import os
import random
import sys
import time

fault = sys.argv[1] if len(sys.argv) > 1 else ""
TOOLS = [
    {"name": "count", "description": "Count calls.", "inputSchema": {"type": "object", "properties": {}}},
    {"name": "draw", "description": "Draw a number.", "inputSchema": {"type": "object", "properties": {}}},
]
calls = 0


def answer(method: str, params: dict) -> dict | None:
    global calls
    if method == "initialize":
        return {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "by hand", "version": "1"}}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        calls += 1
        text = str(random.random()) if params["name"] == "draw" else str(calls)
        return {"content": [{"type": "text", "text": text}]}
    return None


def main() -> None:
    if fault == "exits":
        sys.exit(4)
    if fault == "silent":
        time.sleep(3600)
    if fault == "banner":
        print("hello", flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result = answer(message["method"], message.get("params", {}))
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
    if path := os.environ.get("BY_HAND_END"):
        with open(path, "w") as file:
            file.write("ended by itself")


if __name__ == "__main__":
    main()
