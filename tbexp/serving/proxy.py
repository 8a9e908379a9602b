"""An OpenAI-compatible proxy in front of one OpenAI-compatible server, for harnesses other than tbexp.

Decided here: what of a request is changed (leading system messages become one; the key is the configured one), what is
ours to answer (/readyz), and what a client is told when the server behind fails (502). Everything else passes as it
came, bytes included, and streams pass as they arrive. Of a request the log has method, path, status and time: no
header, no query, no body.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tbexp.config.secrets import key_in
from tbexp.policy.endpoint import is_loopback

log = logging.getLogger(__name__)

# RFC 9110 section 7.6.1, and what is this connection's own. Expect has been answered when a body is here.
HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host", b"content-length", b"expect"),
    }
)
CONNECT_S, READY_S = 10.0, 5.0
KEPT_S = 2.0  # an idle connection; servers close theirs after 5 s, and a request sent into a closing one is lost
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Upstream:
    """The server behind. base_url: as clients of it have it, ending in /v1 as a rule. model: that it has to list.

    ended: why it is gone for good, None while it is not known to be.
    """

    base_url: str
    api_key_env: str | None = None
    model: str | None = None
    ended: Callable[[], str | None] = lambda: None

    def url(self, raw_path: bytes, query: bytes = b"") -> httpx.URL:
        """Where a path of ours is there: below /v1 it is below base_url, anything else is beside it."""
        base = httpx.URL(self.base_url.rstrip("/"))
        prefix = base.raw_path.rstrip(b"/")
        if raw_path == b"/v1" or raw_path.startswith(b"/v1/"):
            raw_path = prefix + raw_path[3:]
        else:
            raw_path = prefix.removesuffix(b"/v1") + raw_path
        return base.copy_with(raw_path=raw_path + (b"?" + query if query else b""))

    def authorization(self) -> Headers:
        """The header with the configured key; none where none is configured, or it is not there."""
        key = key_in(self.api_key_env)[0] if self.api_key_env else ""
        return [(b"authorization", b"Bearer " + key.encode())] if key else []


def proxy_app(upstream: Upstream, *, merge_system: bool) -> Starlette:
    """The application."""
    passing = _Passing(upstream, merge_system)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=KEPT_S)
        timeout = httpx.Timeout(None, connect=CONNECT_S)
        trust = not is_loopback(httpx.URL(upstream.base_url).host)
        async with httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=trust) as client:
            passing.client = client
            yield

    return Starlette(
        routes=[Route("/readyz", passing.readyz, methods=["GET"]), Route("/{path:path}", passing)], lifespan=lifespan
    )


class _Passing:
    """Passes requests on; an ASGI application."""

    client: httpx.AsyncClient

    def __init__(self, upstream: Upstream, merge_system: bool):
        self._upstream, self._merge_system = upstream, merge_system

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, begun = Request(scope, receive), time.monotonic()
        try:
            body = await request.body()
        except ClientDisconnect:
            return
        passing = asyncio.ensure_future(self._pass(request, body, send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({passing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not passing.done():  # the client has gone: whoever generates for it can stop
                passing.cancel()
            status = (await asyncio.gather(passing, return_exceptions=True))[0]
            if isinstance(status, Exception):
                raise status
            told = status if isinstance(status, int) else "the client left"
            log.info("%s %s: %s after %.1f s", request.method, scope["path"], told, time.monotonic() - begun)
        finally:
            leaving.cancel()
            passing.cancel()

    async def _pass(self, request: Request, body: bytes, send: Send) -> int:
        """The status that the client got; 0 when the answer broke off."""
        scope = request.scope
        if self._merge_system and scope["path"].endswith("/chat/completions") and request.method == "POST":
            body = merged(body, request.headers.get("content-encoding"))
        url = self._upstream.url(scope["raw_path"], scope["query_string"])
        headers = [pair for pair in passed_on(scope["headers"]) if pair[0] != b"authorization"]
        # Made without the client's defaults: the server sees the headers of whoever asks, no agent of ours.
        outgoing = httpx.Request(
            request.method, url, headers=[*headers, *self._upstream.authorization()], content=body or None
        )
        try:
            answer = await self.client.send(outgoing, stream=True)
        except httpx.HTTPError as error:
            return await self._failed(request, send, error)
        try:
            if answer.status_code in (401, 403):
                return await self._refused(request, send, answer)
            start = {"type": "http.response.start", "status": answer.status_code}
            await send({**start, "headers": passed_on(answer.headers.raw, keep_length=True)})
            async for chunk in answer.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except httpx.HTTPError as error:  # the connection is cut: a client must not take it for a whole answer
            log.warning("%s broke off: %s", url.path, _said(error))
            return 0
        finally:
            await answer.aclose()
        return answer.status_code

    async def _failed(self, request: Request, send: Send, error: httpx.HTTPError) -> int:
        why = self._upstream.ended() or f"{self._upstream.base_url} does not answer: {_said(error)}"
        log.warning("%s %s: 502, %s", request.method, request.scope["path"], why.splitlines()[0])
        message = {"message": why, "type": "upstream_error", "param": None, "code": 502}
        await JSONResponse({"error": message}, 502)(request.scope, request.receive, send)
        return 502

    async def _refused(self, request: Request, send: Send, answer: httpx.Response) -> int:
        """A refusal may repeat the key that it was sent, which the client has not."""
        content = await answer.aread()
        for _, value in self._upstream.authorization():
            content = content.replace(value.removeprefix(b"Bearer "), b"***")
        response = Response(content, answer.status_code)
        dropped = (b"content-encoding", b"content-length")
        response.raw_headers = [
            *(pair for pair in passed_on(answer.headers.raw) if pair[0].lower() not in dropped),
            (b"content-length", str(len(content)).encode()),
        ]
        await response(request.scope, request.receive, send)
        return answer.status_code

    async def readyz(self, request: Request) -> JSONResponse:
        why = await self.not_ready()
        body: dict[str, Any] = {"ready": why is None, "upstream": self._upstream.base_url}
        return JSONResponse(body if why is None else {**body, "reason": why}, 200 if why is None else 503)

    async def not_ready(self) -> str | None:
        """Why the server behind is not ready; None if it is: its list of models or its /health answers."""
        if (end := self._upstream.ended()) is not None:
            return end
        upstream = self._upstream
        wrong = key_in(upstream.api_key_env)[1] if upstream.api_key_env else ""
        if wrong:
            return wrong
        listed = await self._get(b"/v1/models", upstream.authorization())
        if isinstance(listed, str):
            return listed
        if listed.status_code in (401, 403):
            key = f"the key in {upstream.api_key_env}" if upstream.api_key_env else "a call without a key"
            return f"it refuses {key} (HTTP {listed.status_code})"
        if listed.status_code == 200:
            return None if upstream.model is None else _lacks(listed, upstream.model)
        health = await self._get(b"/health", upstream.authorization())
        if isinstance(health, str):
            return health
        if health.status_code == 200:
            return None
        return f"/v1/models answers with HTTP {listed.status_code}, /health with {health.status_code}"

    async def _get(self, path: bytes, headers: Headers) -> httpx.Response | str:
        """The answer, or why there is none."""
        try:
            return await self.client.get(self._upstream.url(path), headers=headers, timeout=READY_S)
        except httpx.HTTPError as error:
            return f"it does not answer: {_said(error)}"


def passed_on(headers: Sequence[tuple[bytes, bytes]], *, keep_length: bool = False) -> Headers:
    """The headers without those that belong to one connection."""
    named = {
        token.strip().lower() for name, value in headers if name.lower() == b"connection" for token in value.split(b",")
    }
    dropped = (HOP_BY_HOP | named) - ({b"content-length"} if keep_length else set())
    return [(name.lower(), value) for name, value in headers if name.lower() not in dropped]


def merged(body: bytes, encoding: str | None = None) -> bytes:
    """The body of a chat completion with its leading system messages joined into one, by blank lines as tbexp's own
    rendering does; the same bytes where there is nothing to join.
    """
    if encoding not in (None, "identity"):
        return body
    try:
        asked = json.loads(body)
    except ValueError:
        return body
    messages = asked.get("messages") if isinstance(asked, dict) else None
    if not isinstance(messages, list):
        return body
    is_system = [isinstance(each, Mapping) and each.get("role") == "system" for each in messages]
    count = is_system.index(False) if False in is_system else len(messages)
    contents = [each.get("content") for each in messages[:count]]
    if count < 2 or not all(isinstance(content, str | list) for content in contents):
        return body
    texts = [_text(content) for content in contents]
    joined: Any
    if None not in texts:
        joined = "\n\n".join(text for text in texts if text is not None)
    else:  # an image, say
        joined = _parts(contents[0])
        for content in contents[1:]:
            joined += [{"type": "text", "text": "\n\n"}, *_parts(content)]
    asked["messages"] = [{**messages[0], "content": joined}, *messages[count:]]
    return json.dumps(asked).encode()


def _text(content: Any) -> str | None:
    """A content's text; of a list of texts as vLLM reads it, a line each. None: it holds something else."""
    if isinstance(content, str):
        return content
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in content]
    known = [text for text in texts if isinstance(text, str)]
    return "\n".join(known) if len(known) == len(texts) else None


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


def _lacks(listed: httpx.Response, model: str) -> str | None:
    try:
        names = [str(each.get("id")) for each in listed.json()["data"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        return "/v1/models answers with no list of models"
    return None if model in names else f"it serves {', '.join(names[:5]) or 'nothing'}, not {model} (serve.model)"


def _said(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")[:300]
