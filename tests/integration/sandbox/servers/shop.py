"""A small shop on SQLite: the server of most tests, with a few tools that misbehave when they are called."""

# ruff: noqa: T201, PTH123
from __future__ import annotations

import json
import os
import random
import sqlite3
import sys
import time
import uuid
from typing import Any, Literal

from mcp.server.fastmcp import FastMCP

server = FastMCP("shop")
dice = random.Random()
database: sqlite3.Connection


@server.tool(name="__reserved__init")
def init(config: dict[str, Any], session_id: str) -> str:
    global database
    if config.get("refuse"):
        return json.dumps({"status": "error", "message": "no such shop"})
    database = sqlite3.connect(":memory:")
    database.execute("create table stock (sku text primary key, n int)")
    database.executemany("insert into stock values (?, ?)", config.get("stock", {}).items())
    return json.dumps({"status": "ok", "session": session_id, "shelves": len(config.get("stock", {}))})


@server.tool(name="__reserved__geteffects")
def effects() -> str:
    stock = dict(database.execute("select sku, n from stock order by sku").fetchall())
    if "unreadable" in stock:
        return "[not an object]"
    if "broken" in stock:
        return json.dumps({"status": "error", "message": "the golden state is lost"})
    return json.dumps({"stock": stock})


@server.tool(name="__reserved__teardown")
def teardown() -> str:
    if path := os.environ.get("SHOP_TEARDOWN"):
        with open(path, "a") as file:
            file.write("closed\n")
    if os.environ.get("SHOP_TEARDOWN_FAILS"):
        raise RuntimeError("the shutter is stuck")
    return "{}"


@server.tool()
def restock(sku: str, n: int, shelf: Literal["front", "back"] = "front", note: str | None = None) -> str:
    """Put pieces on a shelf."""
    if database.execute("update stock set n = n + ? where sku = ?", (n, sku)).rowcount == 0:
        raise ValueError(f"no article {sku}")
    database.commit()
    return json.dumps({"sku": sku, "added": n, "shelf": shelf})


@server.tool()
def say(text: str, times: int = 1) -> str:
    """Say it again."""
    return text * times


@server.tool()
def chance() -> str:
    """Everything that must differ between sessions."""
    drawn = [f"{source.random():.12f}" for source in (random, dice)]  # of one length: results are cut at 100 characters
    return json.dumps([*drawn, uuid.uuid4().hex, os.urandom(4).hex(), os.getpid()])


@server.tool()
def environment() -> str:
    """What the server can see."""
    return json.dumps(dict(os.environ))


@server.tool()
def crash() -> str:
    """Die in the middle of a call."""
    print("the till is on fire", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def hang() -> str:
    """Never answer."""
    time.sleep(3600)
    return ""


@server.tool()
def babble() -> str:
    """Write what is no JSON-RPC."""
    os.write(1, b"Welcome to the shop!\n")
    return ""


if __name__ == "__main__":
    server.run()
