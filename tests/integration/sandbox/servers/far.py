"""A server for many sessions at once, reached over HTTP: `far.py TRANSPORT KEY`. It prints its port.

Each session has a stock of its own. `POST /fault {"next": FAULT}` makes it answer the next messages with a fault.
"""

# ruff: noqa: T201
from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from typing import Any

import uvicorn
from mcp.server.fastmcp import Context, FastMCP

server = FastMCP("far", stateless_http=False)
stocks: dict[str, dict[str, int]] = {}
fault = ""


@server.tool(name="__reserved__init")
def init(config: dict[str, Any], session_id: str, context: Context) -> str:
    if config.get("refuse"):
        return json.dumps({"status": "error", "message": "no such shop"})
    stocks[key(context)] = dict(config.get("stock", {}))
    return json.dumps({"status": "ok", "session": session_id})


def key(context: Any) -> str:
    return str(id(context.session))


@server.tool(name="__reserved__geteffects")
def effects(context: Context) -> str:
    return json.dumps({"stock": stocks[key(context)]})


@server.tool(name="__reserved__teardown")
def teardown(context: Context) -> str:
    del stocks[key(context)]
    return "{}"


@server.tool()
def restock(sku: str, n: int, context: Context) -> str:
    """Put pieces on a shelf."""
    stock = stocks[key(context)]
    if sku not in stock:
        raise ValueError(f"no article {sku}")
    stock[sku] += n
    return json.dumps({"sku": sku, "added": n})


@server.tool()
def open_sessions() -> str:
    """How many sessions have a stock."""
    return str(len(stocks))


@server.tool()
async def hang() -> str:
    """Never answer."""
    await asyncio.sleep(3600)
    return ""


@server.tool()
def crash() -> str:
    """End in the middle of a call."""
    os._exit(3)


async def guarded(scope: Any, receive: Any, send: Any) -> None:
    global fault
    if scope["type"] != "http":
        return await application(scope, receive, send)
    if scope["path"] == "/fault":
        fault = scope["query_string"].decode()
        return await say(send, 200, b"")
    headers = dict(scope["headers"])
    if headers.get(b"authorization", b"").decode() != f"Bearer {sys.argv[2]}":
        return await say(send, 401, b"who are you?")
    if fault and scope["method"] == "POST":
        status, fault = (200, "") if fault == "garbage" else (int(fault), "")
        return await say(send, status, b"<html>welcome</html>")
    return await application(scope, receive, send)


async def say(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


application: Any = server.sse_app() if sys.argv[1] == "sse" else server.streamable_http_app()
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(guarded, log_level="critical")).run([listening])
