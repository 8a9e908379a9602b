"""A server without the SDK: reads lines, writes lines. What it does wrong is told by its argument."""

# ruff: noqa: T201, PTH123
from __future__ import annotations

import json
import os
import random
import sys
import time

fault = sys.argv[1] if len(sys.argv) > 1 else ""
NAMES = ["count", "draw", "environment", "crash", "hang", "babble"]
TOOLS = [{"name": name, "description": name, "inputSchema": {"type": "object", "properties": {}}} for name in NAMES]
calls = 0
dice = random.Random()
loaded_dice = random.Random(7)


def answer(method: str, params: dict) -> dict | None:
    global calls
    if method == "initialize":
        return {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "by hand", "version": "1"}}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        calls += 1
        text = act(params["name"])
        return {"content": [{"type": "text", "text": text}]}
    return None


def act(name: str) -> str:
    if name == "crash":
        print("the till is on fire", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "hang":
        time.sleep(3600)
    if name == "babble":
        print("Welcome to the shop!", flush=True)
    if name == "environment":
        return json.dumps(dict(os.environ))
    return json.dumps([random.random(), dice.random(), loaded_dice.random()]) if name == "draw" else str(calls)


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
