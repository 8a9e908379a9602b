"""MCP servers that run elsewhere: streamable HTTP or SSE, with the SDK's client.

Decided here: what of a remote server's faults is the world's and what the user can fix. The SDK's client logs a
request that failed and lets its caller wait, so the HTTP traffic is watched: a refused connection, a status of 300 or
more, or a stream that breaks ends the session at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
from mcp import ClientSession, McpError, types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from tbexp.errors import Problem, UserError, WorldError
from tbexp.interpret.messages import ToolSpec
from tbexp.sandbox.mcp_client import RpcError
from tbexp.sandbox.servers import Remote, Server
from tbexp.sandbox.session import list_tools

CLOSING_S = 5.0
CONNECTION_CLOSED = "Connection closed"  # what the SDK's client answers when the transport has ended


class RemoteBackend:
    """One remote server. Each session has a conversation of its own with it; isolating them is the server's part."""

    level = "remote"

    def __init__(self, server: Server, start_timeout_s: float):
        self.server = server
        self.start_timeout_s = start_timeout_s
        self.used = False
        self.open: set[RemoteConnection] = set()

    async def connect(self) -> tuple[RemoteConnection, dict[str, ToolSpec]]:
        """A conversation, past the handshake, and the tools. Raises WorldError, or UserError when it is refused."""
        assert self.server.remote is not None
        self.used = True
        connection = RemoteConnection(self.server.name, self.server.remote)
        self.open.add(connection)
        connection.running.add_done_callback(lambda _: self.open.discard(connection))
        try:
            await connection.handshake(self.start_timeout_s)
            return connection, await list_tools(connection, self.start_timeout_s)
        except WorldError as error:
            connection.close()
            raise WorldError("server_init", error.message) from error
        except BaseException:
            connection.close()
            raise

    async def close(self) -> None:
        running = [connection.running for connection in self.open]
        for connection in set(self.open):
            connection.close()
        if running:
            await asyncio.wait(running, timeout=CLOSING_S)
        for task in running:
            task.cancel()


class RemoteConnection:
    """Requests to one remote server and their answers, as `Connection` has them for a process of ours."""

    def __init__(self, name: str, remote: Remote):
        self.name = name
        self.remote = remote
        self.broken: WorldError | UserError | None = None
        self.tools_changed = False
        self._lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._up: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self.running = asyncio.create_task(self._run())

    async def handshake(self, timeout: float) -> None:
        await asyncio.wait({self._up, self._lost}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if self.broken is None and not self._up.done():
            self._break(WorldError("tool_timeout", f"server {self.name} did not greet within {timeout:g} s"))
        if self.broken is not None:
            raise self.broken

    async def request(self, method: str, params: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """The `result` of tools/list or tools/call. Raises WorldError, UserError, or RpcError for a reported error."""
        if self.broken is not None:
            raise self.broken
        timeout = min(timeout, self.remote.timeout_s)
        asking: asyncio.Future[Any] = asyncio.ensure_future(self._ask(self._up.result(), method, params))
        try:
            await asyncio.wait({asking, self._lost}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._break(WorldError("session_cancelled", f"a call of server {self.name} was given up"))
            raise
        finally:
            if not asking.done():
                asking.cancel()
        if asking.done() and not asking.cancelled():
            error = asking.exception()
            if error is None:
                result: dict[str, Any] = asking.result()
                return result
            if isinstance(error, McpError) and error.error.message != CONNECTION_CLOSED and self.broken is None:
                raise RpcError(error.error.message)
            if self.broken is None and isinstance(error, ValueError):  # pydantic's, too
                self._break(WorldError("server_garbage", f"server {self.name} answered {method} with {error}"))
            elif self.broken is None:
                self._break(WorldError("server_crashed", f"server {self.name} ended the session"))
        elif self.broken is None:
            what = f"tool {params['name']}" if method == "tools/call" else method
            text = f"{what} of server {self.name} did not answer within {timeout:g} s"
            self._break(WorldError("tool_timeout", text))
        assert self.broken is not None
        raise self.broken

    @property
    def greeted(self) -> bool:
        return self._up.done()

    def close(self) -> None:
        if self.broken is None:
            self.broken = WorldError("server_crashed", f"the session with server {self.name} is over")
        self._over.set()

    def failed(self, error: WorldError | UserError) -> None:
        """What the HTTP traffic shows."""
        self._break(error)

    def _break(self, error: WorldError | UserError) -> None:
        if self.broken is None:
            self.broken = error
        if not self._lost.done():
            self._lost.set_result(None)
        self._over.set()

    async def _ask(self, session: ClientSession, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if method == "tools/list":
            listed = await session.list_tools(params=types.PaginatedRequestParams(cursor=params.get("cursor")))
            return listed.model_dump(mode="json", by_alias=True, exclude_none=True)
        call = types.CallToolRequestParams(name=params["name"], arguments=dict(params["arguments"]))
        # Not session.call_tool, which fails on answers that do not fit the tool's output schema.
        request = types.ClientRequest(types.CallToolRequest(params=call))
        answer = await session.send_request(request, types.CallToolResult)
        return answer.model_dump(mode="json", by_alias=True, exclude_none=True)

    async def _run(self) -> None:
        """The conversation: the SDK wants its contexts entered and left by one task."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                if self.remote.transport == "sse":
                    streams = await stack.enter_async_context(
                        sse_client(self.remote.endpoint, dict(self.remote.headers), httpx_client_factory=self._client)
                    )
                    read, write = streams
                else:
                    client = await stack.enter_async_context(self._client(dict(self.remote.headers)))
                    read, write, _ = await stack.enter_async_context(
                        streamable_http_client(self.remote.endpoint, http_client=client)
                    )
                session = await stack.enter_async_context(ClientSession(read, write, message_handler=self._heard))
                greeting: asyncio.Future[Any] = asyncio.ensure_future(session.initialize())
                await asyncio.wait({greeting, self._lost}, return_when=asyncio.FIRST_COMPLETED)
                if greeting.done():
                    greeting.result()
                    self._up.set_result(session)
                else:
                    greeting.cancel()
                await self._over.wait()
        except asyncio.CancelledError:
            self._break(WorldError("server_crashed", f"the session with server {self.name} is over"))
        except BaseException as error:
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            text = f"server {self.name} at {self.remote.endpoint}: {type(error).__name__}: {error}"
            self._break(WorldError("server_crashed", text))

    def _client(
        self,
        headers: dict[str, str] | None = None,
        timeout: httpx.Timeout | None = None,
        auth: httpx.Auth | None = None,
    ) -> httpx.AsyncClient:
        # Reading has no limit of its own: a stream is open as long as the session, and each request has its timer.
        patience = httpx.Timeout(self.remote.timeout_s, read=None)
        return httpx.AsyncClient(headers=headers, timeout=patience, auth=auth, transport=_Watched(self))

    async def _heard(self, message: Any) -> None:
        if isinstance(message, Exception):
            self._break(WorldError("server_garbage", f"server {self.name} wrote what is no message: {message}"))
        elif isinstance(message, types.ServerNotification) and isinstance(
            message.root, types.ToolListChangedNotification
        ):
            self.tools_changed = True


class _Watched(httpx.AsyncBaseTransport):
    """Tells the connection of everything that goes wrong."""

    def __init__(self, connection: RemoteConnection):
        self.connection = connection
        self.inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            response = await self.inner.handle_async_request(request)
        except httpx.TransportError as error:
            self._lost(error)
            raise
        # Of streamable HTTP a server may leave out the stream of its own messages (GET) and the farewell (DELETE).
        sse = self.connection.remote.transport == "sse"
        if response.status_code >= 300 and (request.method == "POST" or sse):
            await response.aread()
            self._refused(response)
        if isinstance(response.stream, httpx.AsyncByteStream) and (request.method == "POST" or sse):
            response.stream = _WatchedStream(response.stream, self)
        return response

    def _lost(self, error: Exception) -> None:
        name, endpoint = self.connection.name, self.connection.remote.endpoint
        text = f"server {name} at {endpoint}: {type(error).__name__}: {error}"
        self.connection.failed(WorldError("server_crashed", text))

    def _refused(self, response: httpx.Response) -> None:
        name, remote, status = self.connection.name, self.connection.remote, response.status_code
        text = f"server {name} at {remote.endpoint} answered HTTP {status}: {response.text[:500]}"
        if status in (401, 403):
            fix = "give it a key: headers: {Authorization: 'Bearer {env[NAME]}'}, and NAME in sandbox.remote_env"
            self.connection.failed(UserError(Problem(f"{text}; it refuses the credentials", "servers.yaml", fix)))
        elif status in (404, 405) and not self.connection.greeted:
            fix = "correct `endpoint`, or `transport`, in servers.yaml"
            self.connection.failed(UserError(Problem(f"{text}; no MCP server is there", "servers.yaml", fix)))
        elif status == 404:
            self.connection.failed(WorldError("session_lost", f"server {name} has lost the session"))
        else:
            self.connection.failed(WorldError("server_crashed", text))

    async def aclose(self) -> None:
        await self.inner.aclose()


class _WatchedStream(httpx.AsyncByteStream):
    def __init__(self, inner: httpx.AsyncByteStream, watched: _Watched):
        self.inner = inner
        self.watched = watched

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for data in self.inner:
                yield data
        except httpx.TransportError as error:
            self.watched._lost(error)
            raise

    async def aclose(self) -> None:
        await self.inner.aclose()
