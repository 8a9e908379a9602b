"""Our side of one MCP conversation: newline-delimited JSON-RPC over one socket.

Decided here: what counts as a crash, as garbage and as a time-out. The SDK's own client is not used: with its task
groups, memory streams and validated models a tool call costs about 1 ms of CPU on this side (measured once, by hand).
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from typing import Any, cast

from tbexp.errors import WorldError

PROTOCOL = "2025-06-18"
END_REPORT_S = 2.0
MAX_LINE = 1 << 26  # bytes; a longer line is no answer to a tool call


class RpcError(Exception):
    """The server answered a request with a JSON-RPC error."""

    def __init__(self, message: str):
        self.message = message
        super().__init__(message)


class Connection(asyncio.Protocol):
    """Requests to one server and their answers.

    Whatever the server does wrong ends the conversation: pending and later requests raise the same WorldError.
    """

    def __init__(self, name: str, ended: asyncio.Future[int], describe_end: Callable[[], str]):
        """ended: done when the server's process is. describe_end: what is known of its end, for messages."""
        self.name = name
        self.ended = ended
        self.describe_end = describe_end
        self.broken: WorldError | None = None
        self.tools_changed = False
        self.orderly = False  # whether we closed a conversation that nothing was wrong with
        self.closed = asyncio.get_running_loop().create_future()
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next = 0
        self._buffer = bytearray()
        self._seen = 0
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(
        cls, sock: socket.socket, name: str, ended: asyncio.Future[int], describe_end: Callable[[], str]
    ) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_unix_connection(lambda: cls(name, ended, describe_end), sock=sock)
        return connection

    async def request(self, method: str, params: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """The `result` of one request. Raises WorldError, or RpcError for an error that the server reports."""
        if self.broken is not None:
            raise self.broken
        assert self._transport is not None
        self._next += 1
        number = self._next
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._pending[number] = answer
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        timer = loop.call_later(timeout, self._late, number, method, params, timeout)
        try:
            message = await answer
        except asyncio.CancelledError:
            # The call may be under way: what the session's state is, nobody knows.
            self._break(WorldError("session_cancelled", f"a call of server {self.name} was given up"))
            raise
        finally:
            timer.cancel()
            self._pending.pop(number, None)
        error = message.get("error")
        if error is not None:
            raise RpcError(str(error.get("message", error)) if isinstance(error, dict) else str(error))
        result = message.get("result")
        if not isinstance(result, dict):
            self._break(WorldError("server_garbage", f"server {self.name} answered {method} with no result object"))
            assert self.broken is not None
            raise self.broken
        return result

    def notify(self, method: str) -> None:
        self._send({"jsonrpc": "2.0", "method": method})

    async def handshake(self, timeout: float) -> None:
        client = {"name": "tbexp", "version": "1"}
        await self.request(
            "initialize", {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client}, timeout
        )
        self.notify("notifications/initialized")

    def close(self) -> None:
        if self.broken is None:
            self.orderly = True
            self.broken = WorldError("server_crashed", f"the session with server {self.name} is over")
        if self._transport is not None:
            self._transport.abort()

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._transport is not None:
            text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
            self._transport.write(text.encode("utf-8", "replace") + b"\n")

    def _late(self, number: int, method: str, params: Mapping[str, Any], timeout: float) -> None:
        what = f"tool {params['name']}" if method == "tools/call" else method
        self._break(WorldError("tool_timeout", f"{what} of server {self.name} did not answer within {timeout:g} s"))

    def _break(self, error: WorldError) -> None:
        if self.broken is None:
            self.broken = error
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(self.broken)
        self._pending.clear()
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # of whatever loop: uvloop's transports are no subclass

    def data_received(self, data: bytes) -> None:
        if self.broken is not None:
            return
        buffer = self._buffer
        buffer += data
        while (end := buffer.find(b"\n", self._seen)) >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            self._seen = 0
            self._line(line)
        self._seen = len(buffer)
        if self._seen > MAX_LINE:
            self._break(WorldError("server_garbage", f"server {self.name} sent a line of more than {MAX_LINE} bytes"))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exception: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        if self.broken is None:
            # The launcher reports the exit a moment after the socket closes; a server may also close it and live on.
            self.broken = WorldError("server_crashed", f"server {self.name} ended")
            self.ended.add_done_callback(self._crashed)
            asyncio.get_running_loop().call_later(END_REPORT_S, self._crashed)

    def _crashed(self, ended: asyncio.Future[int] | None = None) -> None:
        self.broken = WorldError("server_crashed", f"server {self.name} ended{self.describe_end()}")
        self._break(self.broken)

    def _line(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            start = line[:200].decode("utf-8", "replace")
            self._break(WorldError("server_garbage", f"server {self.name} wrote what is no message: {start!r}"))
            return
        method = message.get("method")
        if method is None:
            number = message.get("id")
            answer = self._pending.get(number) if isinstance(number, int) else None
            if answer is not None and not answer.done():
                answer.set_result(message)
        elif "id" not in message:
            self.tools_changed = self.tools_changed or method == "notifications/tools/list_changed"
        elif method == "ping":
            self._send({"jsonrpc": "2.0", "id": message["id"], "result": {}})
        else:
            error = {"code": -32601, "message": f"this client does not offer {method}"}
            self._send({"jsonrpc": "2.0", "id": message["id"], "error": error})
