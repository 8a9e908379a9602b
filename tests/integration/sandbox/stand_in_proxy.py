"""A session proxy for tests, after the specification of its HTTP protocol: its sessions are real ones of a sandbox.

`python stand_in_proxy.py SERVERS_YAML [KEY]` prints its port. `POST /stand_in {"next": FAULT}` makes the next answer
a fault: 500, garbage, hang, slow (504).
"""

# ruff: noqa: T201
from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from tbexp.config.schema import SandboxConfig
from tbexp.errors import UserError, WorldError
from tbexp.sandbox import Session, open_sandbox, read_servers

SESSIONS: dict[str, tuple[AsyncExitStack, Session]] = {}
FAULTS: list[str] = []
KEY = sys.argv[2] if len(sys.argv) > 2 else None
SERVERS = read_servers(sys.argv[1], python=sys.executable)
LOOP = asyncio.new_event_loop()


async def create(sandbox: Any, body: dict[str, Any]) -> Any:
    if body["session_id"] in SESSIONS:
        raise ValueError("Session already exists")
    for name in body["server_config"]:
        if name not in SERVERS:
            raise ValueError(f"Unknown server: {name}")
    stack = AsyncExitStack()
    session = await stack.enter_async_context(sandbox.session(body["server_config"], body["available_tools"]))
    SESSIONS[body["session_id"]] = (stack, session)
    return session.init_result


async def answer(sandbox: Any, endpoint: str, body: dict[str, Any]) -> Any:
    if endpoint == "/session_create":
        return await create(sandbox, body)
    if body["session_id"] not in SESSIONS:
        raise ValueError("Session does not exist")
    stack, session = SESSIONS[body["session_id"]]
    if endpoint == "/session_destroy":
        del SESSIONS[body["session_id"]]
        await stack.aclose()
        return "Ok"
    if endpoint == "/list_tools":
        tools = session.tools.values()
        return {"tools": {t.name: {"description": t.description, "inputSchema": t.input_schema} for t in tools}}
    if endpoint == "/call_tool":
        name, arguments = body["tool_name"], body["arguments"]
        if name == "__reserved__server_tool":
            return await session.server_tool(arguments["server_name"], arguments["tool_name"], arguments["arguments"])
        return await session.call(name, arguments)
    if endpoint == "/get_effects":
        try:
            return await session.effects()
        except WorldError:
            return {server: {} for server in session.init_result}  # what is unreadable is {}, as the specification says
    raise ValueError(f"no endpoint {endpoint}")


class Served(ThreadingHTTPServer):
    request_queue_size = 128  # twenty clients may come at one moment


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    sandbox: Any

    def do_GET(self) -> None:
        self.send(200, b"OK")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/stand_in":
            FAULTS.append(body["next"])
            return self.send(200, b"{}")
        if KEY is not None and self.headers.get("Authorization") != f"Bearer {KEY}":
            return self.send(401, b'{"success": false, "error": "Unauthorized"}')
        fault = FAULTS.pop() if FAULTS else ""
        if fault == "500":
            return self.send(500, b"Internal Server Error")
        if fault == "garbage":
            return self.send(200, b"<html>welcome</html>")
        if fault == "slow":
            return self.envelope(504, "Timed out")
        if fault == "hang":
            time.sleep(30)
        if fault == "lost":
            SESSIONS.pop(body["session_id"])
        try:
            value = asyncio.run_coroutine_threadsafe(answer(self.sandbox, self.path, body), LOOP).result()
        except UserError as error:
            return self.envelope(400, error.problems[0].what)
        except (WorldError, ValueError, KeyError) as error:
            return self.envelope(400, getattr(error, "message", str(error)))
        return self.envelope(200, value)

    def envelope(self, status: int, value: Any) -> None:
        kind = "string" if isinstance(value, str) else "object"
        content = {"success": status == 200, "content": {"type": kind, "value": value}}
        self.send(status, json.dumps(content).encode())

    def send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


async def main() -> None:
    async with open_sandbox(SandboxConfig(name="stand-in", kind="prefork"), SERVERS) as sandbox:
        Handler.sandbox = sandbox
        served = Served(("127.0.0.1", 0), Handler)
        served.daemon_threads = True
        Thread(target=served.serve_forever, daemon=True).start()
        print(served.server_address[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)  # until the test goes


LOOP.run_until_complete(main())
