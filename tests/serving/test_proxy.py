from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbexp.errors import UserError
from tbexp.serving.listening import address_of, listen, serve_until_ended
from tbexp.serving.proxy import Upstream, merged, proxy_app

KEY, ENV = "sk-planted-0123456789", "TBEXP_TEST_UPSTREAM_KEY"
PATIENCE_S = 20.0  # of a test that would otherwise hang


class Behind(ThreadingHTTPServer):
    """A server that keeps what it was sent, byte for byte, and answers what `paths` says, else with a short JSON."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), BehindHandler)
        self.seen: list[dict[str, Any]] = []
        self.paths: dict[str, Callable[[BehindHandler], None]] = {}
        self.seen_first, self.left = threading.Event(), threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class BehindHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Behind

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = [(name.lower(), value) for name, value in self.headers.items()]
        self.server.seen.append({"method": self.command, "path": self.path, "headers": headers, "body": body})
        self.server.paths.get(self.path, BehindHandler.plain)(self)

    def plain(self, status: int = 200, value: Any = None, **headers: str) -> None:
        data = json.dumps({"fine": True} if value is None else value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return None

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = answer


@pytest.fixture
def behind() -> Iterator[Behind]:
    server = Behind()
    yield server
    server.shutdown()
    server.server_close()


@contextmanager
def proxy(upstream: Upstream, *, merge_system: bool = True) -> Iterator[str]:
    """The proxy on a port of its own, in a thread; its address."""
    listening, enough = listen("127.0.0.1", 0), threading.Event()
    app = proxy_app(upstream, merge_system=merge_system)

    def serve() -> None:
        asyncio.run(serve_until_ended(app, listening, reason=lambda: "enough" if enough.is_set() else None))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield address_of(listening)
    finally:
        enough.set()
        thread.join(PATIENCE_S)
        listening.close()
        assert not thread.is_alive()


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tbexp.serving.listening.LOOK_S", 0.01)
    monkeypatch.setenv(ENV, KEY)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def system(*contents: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": content} for content in contents]


USER = {"role": "user", "content": "hi"}
TEXT, BLANK = ({"type": "text", "text": text} for text in ("t", "\n\n"))
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([*system("a", "b"), USER], [*system("a\n\nb"), USER]),
        ([*system("a", "b", "c")], [*system("a\n\nb\n\nc")]),
        ([*system("a"), USER, *system("b")], None),
        ([USER], None),
        ([], None),
        ([*system("a", [{"type": "text", "text": "b"}]), USER], [*system("a\n\nb"), USER]),
        ([*system([TEXT, TEXT], [TEXT]), USER], [*system("t\nt\n\nt"), USER]),
        ([*system([], "a"), USER], [*system("\n\na"), USER]),
        ([*system([TEXT, TEXT]), USER], None),
        ([*system([TEXT], ["odd"]), USER], [*system([TEXT, {"type": "text", "text": "\n\n"}, "odd"]), USER]),
        (
            [*system("a", [IMAGE, TEXT], "b"), USER],
            [*system([{**TEXT, "text": "a"}, BLANK, IMAGE, TEXT, BLANK, {**TEXT, "text": "b"}]), USER],
        ),
        ([*system("a", None), USER], None),  # no content of the kind that can be joined: the server will say so
        ([{"role": "system", "content": "a", "name": "n"}, *system("b")], [{**system("a\n\nb")[0], "name": "n"}]),
    ],
)
def test_leading_system_messages_are_joined_and_all_else_stays(messages: list[Any], expected: list[Any] | None) -> None:
    body = json.dumps({"model": "m", "messages": messages, "x": [1.5, "ü"]}, indent=3).encode()
    if expected is None:
        assert merged(body) == body
    else:
        assert json.loads(merged(body)) == {"model": "m", "messages": expected, "x": [1.5, "ü"]}


@pytest.mark.parametrize("body", [b"", b"no JSON", b"[1]", b'{"messages": 3}', b'{"messages": ["a", "b"]}', b"\xff"])
def test_what_is_no_chat_completion_passes_as_it_is(body: bytes) -> None:
    assert merged(body) == body


@given(st.lists(st.text(), max_size=4), st.lists(st.sampled_from(["user", "assistant", "system"]), max_size=4))
def test_joining_keeps_every_text_and_leaves_one_system_message_at_the_start(
    systems: list[str], others: list[str]
) -> None:
    rest = [{"role": role, "content": role} for role in ["user", *others]]
    found = json.loads(merged(json.dumps({"messages": [*system(*systems), *rest]}).encode()))["messages"]
    assert found == [*system(*(["\n\n".join(systems)] if systems else [])), *rest]


def test_paths_queries_headers_and_bodies_pass_unchanged_both_ways(behind: Behind) -> None:
    sent = {"X-Odd": "a; b", "Accept": "x/y", "User-Agent": "odd/1", "Connection": "keep-alive, X-Once", "X-Once": "1"}
    path = "/v1/files/a%2Fb%20c?x=1&y=%26&y="
    behind.paths[path] = lambda h: h.plain(418, {"tea": "ü"}, X_Back="1", Keep_Alive="timeout=9", Date="then")
    with proxy(Upstream(behind.url)) as url:
        answer = httpx.put(url + path, content=b"\x00\xff\r\n", headers=sent)
    seen = behind.seen[0]
    assert (seen["method"], seen["path"], seen["body"]) == ("PUT", path, b"\x00\xff\r\n")
    headers = dict(seen["headers"])
    assert (headers["x-odd"], headers["accept"], headers["user-agent"]) == ("a; b", "x/y", "odd/1")
    assert not {"x-once", "authorization"} & set(headers)
    assert headers["host"] == f"127.0.0.1:{behind.server_port}" and headers["content-length"] == "4"
    assert (answer.status_code, answer.json(), answer.headers["x-back"]) == (418, {"tea": "ü"}, "1")
    assert "keep-alive" not in answer.headers and answer.headers.get_list("date")[-1] == "then"


@pytest.mark.parametrize(
    ("base", "asked", "expected"),
    [
        ("http://h:1/v1", b"/v1/models", "http://h:1/v1/models"),
        ("http://h:1/v1/", b"/health", "http://h:1/health"),
        ("https://h/api/v1", b"/v1/chat/completions", "https://h/api/v1/chat/completions"),
        ("https://h/api/v1", b"/tokenize", "https://h/api/tokenize"),
        ("https://h/openai", b"/v1/models", "https://h/openai/models"),
        ("http://h", b"/v1", "http://h"),
    ],
)
def test_a_path_below_v1_is_below_the_base_url_and_others_are_beside_it(base: str, asked: bytes, expected: str) -> None:
    assert str(Upstream(base).url(asked)).rstrip("/") == expected


def test_a_stream_passes_as_it_arrives(behind: Behind) -> None:
    def stream(handler: BehindHandler) -> None:
        handler.begin_stream()
        handler.chunk('data: {"n": 1}\n\n')
        assert behind.seen_first.wait(PATIENCE_S)  # a proxy that buffers would never show the first
        handler.chunk("data: [DONE]\n\n")
        handler.chunk("")

    behind.paths["/v1/chat/completions"] = stream
    lines = []
    with (
        proxy(Upstream(behind.url)) as url,
        httpx.stream("POST", f"{url}/v1/chat/completions", json={"stream": True, "messages": [USER]}) as answer,
    ):
        for line in answer.iter_lines():
            lines += [line] if line else []
            behind.seen_first.set()
    assert lines == ['data: {"n": 1}', "data: [DONE]"]
    assert answer.headers["content-type"] == "text/event-stream"


def test_a_stream_that_breaks_off_is_no_whole_answer(behind: Behind) -> None:
    def stream(handler: BehindHandler) -> None:
        handler.begin_stream()
        handler.chunk("data: 1\n\n")
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True

    behind.paths["/v1/completions"] = stream
    with proxy(Upstream(behind.url)) as url, pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"{url}/v1/completions", json={"stream": True})


def test_when_the_client_leaves_the_server_behind_is_left_too(behind: Behind) -> None:
    def endless(handler: BehindHandler) -> None:
        handler.begin_stream()
        try:
            while not behind.left.wait(0.01):
                handler.chunk("data: more\n\n")
        except OSError:
            behind.left.set()

    behind.paths["/v1/completions"] = endless
    with proxy(Upstream(behind.url)) as url:
        with httpx.stream("POST", f"{url}/v1/completions", json={}) as answer:
            next(answer.iter_raw())
        assert behind.left.wait(PATIENCE_S)


def test_the_end_of_the_serving_cuts_a_stream_that_goes_on(behind: Behind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tbexp.serving.listening.GRACE_S", 0.1)

    def endless(handler: BehindHandler) -> None:
        handler.begin_stream()
        while not behind.left.wait(0.01):
            handler.chunk("data: more\n\n")

    behind.paths["/v1/completions"] = endless
    with httpx.Client() as client:
        with proxy(Upstream(behind.url)) as url:
            answer = client.send(client.build_request("POST", f"{url}/v1/completions", json={}), stream=True)
            parts = answer.iter_raw()
            next(parts)
        with pytest.raises(httpx.HTTPError):
            list(parts)  # it has an end, and is no whole answer


def test_system_messages_are_joined_on_their_way_unless_told_otherwise(behind: Behind) -> None:
    messages = [*system("a", "b"), USER]
    for merge_system in (True, False):
        with proxy(Upstream(behind.url), merge_system=merge_system) as url:
            httpx.post(f"{url}/v1/chat/completions", json={"messages": messages})
    first, second = (json.loads(each["body"])["messages"] for each in behind.seen)
    assert first == [*system("a\n\nb"), USER] and second == messages


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/metrics"])
def test_a_server_that_does_not_answer_is_a_502_with_a_reason(path: str) -> None:
    base = f"http://127.0.0.1:{closed_port()}/v1"
    with proxy(Upstream(base)) as url:
        answer = httpx.post(url + path, json={"messages": []})
    assert answer.status_code == 502 and answer.json()["error"]["type"] == "upstream_error"
    assert base in answer.json()["error"]["message"]


READY = {
    "its list of models answers": ({"/v1/models": (200, {"data": [{"id": "m"}]})}, None, 200, ""),
    "its health alone answers": ({"/v1/models": (404, {}), "/health": (200, {})}, None, 200, ""),
    "it lists the model": ({"/v1/models": (200, {"data": [{"id": "m"}]})}, "m", 200, ""),
    "it lists another model": ({"/v1/models": (200, {"data": [{"id": "n"}]})}, "m", 503, "it serves n, not m"),
    "it refuses the key": ({"/v1/models": (401, {})}, None, 503, f"refuses the key in {ENV}"),
    "it is not well": ({"/v1/models": (500, {}), "/health": (503, {})}, None, 503, "HTTP 500, /health with 503"),
    "its list is none": ({"/v1/models": (200, {"data": 3})}, "m", 503, "no list of models"),
}


@pytest.mark.parametrize("case", READY)
def test_readyz_says_whether_the_server_behind_answers_and_why_not(behind: Behind, case: str) -> None:
    answers, model, status, reason = READY[case]
    for path, (code, value) in answers.items():
        behind.paths[path] = lambda h, code=code, value=value: h.plain(code, value)  # type: ignore[misc]
    with proxy(Upstream(behind.url, ENV, model)) as url:
        answer = httpx.get(f"{url}/readyz")
    assert answer.status_code == status and answer.json()["ready"] is (status == 200)
    assert reason in answer.json().get("reason", "")


def test_readyz_says_so_when_nothing_is_behind_or_the_key_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy(Upstream(f"http://127.0.0.1:{closed_port()}/v1")) as url:
        answer = httpx.get(f"{url}/readyz")
        assert answer.status_code == 503 and "does not answer" in answer.json()["reason"]
    monkeypatch.delenv(ENV)
    with proxy(Upstream("http://127.0.0.1:1/v1", ENV)) as url:
        answer = httpx.get(f"{url}/readyz")
    assert answer.status_code == 503 and ENV in answer.json()["reason"]


def test_the_configured_key_alone_goes_to_the_server_and_nowhere_else(
    behind: Behind, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    theirs = {"Authorization": "Bearer sk-of-the-client-0123456789"}
    behind.paths["/v1/refused"] = lambda h: h.plain(401, {"error": f"no {dict(h.headers)['authorization']}"})
    behind.paths["/v1/models"] = lambda h: h.plain(200, {"data": []})
    with proxy(Upstream(behind.url, ENV)) as url:
        answers = [httpx.post(f"{url}/v1/{path}?q=1", json={}, headers=theirs) for path in ("completions", "refused")]
        answers.append(httpx.post(f"{url}/v1/refused", json={}))
        answers.append(httpx.get(f"{url}/readyz"))
    with proxy(Upstream(behind.url)) as url:
        httpx.post(f"{url}/v1/completions", json={}, headers=theirs)
    keys = [dict(each["headers"]).get("authorization") for each in behind.seen]
    assert keys == [f"Bearer {KEY}"] * 4 + [None]
    assert answers[2].status_code == 401 and answers[2].json() == {"error": "no Bearer ***"}
    assert KEY not in "".join(str(answer.headers) + answer.text for answer in answers)
    logged = [str(record.__dict__) for record in caplog.records]
    assert any("/v1/completions" in line for line in logged)
    assert not any(KEY in line or "sk-of-the-client" in line for line in logged)


def test_an_address_that_cannot_be_had_is_told_with_its_key() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError) as wrong:
            listen("127.0.0.1", port)
    assert wrong.value.problems[0].where == "serve.port" and str(port) in wrong.value.problems[0].what
    with pytest.raises(UserError) as wrong:
        listen("192.0.2.1", 0)
    assert wrong.value.problems[0].where == "serve.host"


def test_a_client_of_somebody_else_talks_through_the_proxy(behind: Behind) -> None:
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    message = {"role": "assistant", "content": "hello"}
    common = {"id": "c", "created": 1, "model": "m"}
    whole = {**common, "object": "chat.completion", "usage": usage}
    whole["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}]
    piece = {**common, "object": "chat.completion.chunk"}

    def chat(handler: BehindHandler) -> None:
        if not json.loads(behind.seen[-1]["body"]).get("stream"):
            return handler.plain(200, whole)
        handler.begin_stream()
        for text in ("hel", "lo"):
            delta = {"index": 0, "delta": {"content": text}, "finish_reason": None}
            handler.chunk(f"data: {json.dumps({**piece, 'choices': [delta]})}\n\n")
        handler.chunk("data: [DONE]\n\n")
        handler.chunk("")
        return None

    behind.paths["/v1/chat/completions"] = chat
    behind.paths["/v1/models"] = lambda h: h.plain(200, {"object": "list", "data": [{"id": "m", "object": "model"}]})
    with proxy(Upstream(behind.url, ENV)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        asked: dict[str, Any] = {"model": "m", "messages": [*system("a", "b"), USER]}
        assert client.chat.completions.create(**asked).choices[0].message.content == "hello"
        with client.chat.completions.create(**asked, stream=True) as stream:
            assert "".join(part.choices[0].delta.content or "" for part in stream) == "hello"
        assert [model.id for model in client.models.list()] == ["m"]
    assert json.loads(behind.seen[0]["body"])["messages"][0] == system("a\n\nb")[0]
    nobody = Upstream(f"http://127.0.0.1:{closed_port()}/v1")
    with proxy(nobody) as url, pytest.raises(openai.InternalServerError) as failed:
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0).models.list()
    assert failed.value.status_code == 502
