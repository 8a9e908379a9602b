"""The embedded search answers as Typesense does, servers find it at its fixed address, and it is shared and mortal."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tbexp.errors import UserError, WorldError
from tbexp.sandbox import open_sandbox
from tbexp.sandbox.search import EmbeddedSearch
from tbexp.sandbox.search_server import Refused, Store, answer

FIELDS = [
    {"name": "id", "type": "string"},
    {"name": "source", "type": "string", "facet": True},
    {"name": "text", "type": "string"},
    {"name": "embedding", "type": "float[]", "embed": {"from": ["text"]}},
]
TEXTS = {
    "returns.md": ["Goods can be returned within thirty days.", "Refunds go to the card that was charged."],
    "shipping.md": ["Parcels leave the shop every day.", "A parcel that is lost is sent again, days later."],
    "opening.md": ["The shop opens at nine."],
}


def filled(store: Store, name: str = "kb", texts: Any = TEXTS) -> None:
    store.create({"name": name, "fields": FIELDS})
    for source, parts in texts.items():
        for part in parts:
            store.add(store.get(name), {"source": source, "text": part}, "create")


def found(store: Store, query: str, **options: Any) -> list[tuple[str, str]]:
    """Source and text of the hits."""
    search = {"collection": "kb", "q": query, "query_by": "embedding,text", "group_by": "source", **options}
    answered = answer(store, "POST", "/multi_search", json.dumps({"searches": [search]}).encode())[1]["results"][0]
    assert "error" not in answered, answered
    hits = [hit for group in answered["grouped_hits"] for hit in group["hits"]]
    distances = [group["hits"][0].get("vector_distance", 0) for group in answered["grouped_hits"]]
    assert distances == sorted(distances)
    return [(hit["document"]["source"], hit["document"]["text"]) for hit in hits]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("how do I return something", "returns.md"),
        ("REFUND", "returns.md"),
        ("my parcels are lost", "shipping.md"),
        ("when do you open?", "opening.md"),
    ],
)
def test_the_best_source_comes_first_whatever_the_form_of_the_words(query, first):
    store = Store(9)
    filled(store)
    assert found(store, query)[0][0] == first


def test_a_search_by_embedding_gives_all_documents_and_one_by_text_those_with_a_word_of_it():
    store = Store(9)
    filled(store)
    assert len(found(store, "zebra")) == 5
    assert found(store, "zebra", query_by="text") == []
    assert found(store, "", query_by="text") == []
    assert {source for source, _ in found(store, "shop", query_by="text")} == {"shipping.md", "opening.md"}
    assert found(store, 'x" OR ( NEAR * : ^', query_by="text") == []


def test_hits_are_filtered_limited_and_shown_as_asked():
    store = Store(9)
    filled(store)
    only = found(store, "shop", filter_by="source:=opening.md || source:=nothing.md")
    assert only == [("opening.md", "The shop opens at nine.")]
    assert len(found(store, "days", group_limit=1)) == 3
    assert len({source for source, _ in found(store, "days", per_page=1)}) == 1
    flat = answer(
        store, "GET", "/collections/kb/documents/search?q=*&query_by=text&per_page=2&exclude_fields=text", b""
    )
    assert (flat[1]["found"], [sorted(hit["document"]) for hit in flat[1]["hits"]]) == (5, [["id", "source"]] * 2)


REFUSED = {
    "a collection that is not there": ("GET", "/collections/nowhere", "", 404),
    "a second collection of one name": ("POST", "/collections", {"name": "kb", "fields": FIELDS}, 409),
    "a collection without fields": ("POST", "/collections", {"name": "x"}, 400),
    "a document without a field": ("POST", "/collections/kb/documents", {"source": "a"}, 400),
    "a document that is no object": ("POST", "/collections/kb/documents", [1], 400),
    "a second document of one id": ("POST", "/collections/kb/documents", {"id": "1", "source": "a", "text": "b"}, 409),
    "a filter of another form": ("GET", "/collections/kb/documents/search?q=a&query_by=text&filter_by=n:>3", "", 400),
    "a search by an unknown field": ("GET", "/collections/kb/documents/search?q=a&query_by=title", "", 404),
    "a page of no number": ("GET", "/collections/kb/documents/search?q=a&query_by=text&page=x", "", 400),
    "another part of the API": ("GET", "/keys", "", 404),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_met_is_refused_with_its_status(what):
    method, target, body, status = REFUSED[what]
    store = Store(9)
    filled(store)
    store.add(store.get("kb"), {"id": "1", "source": "a", "text": "b"}, "create")
    with pytest.raises(Refused) as caught:
        answer(store, method, target, json.dumps(body).encode())
    assert caught.value.status == status


def test_equal_collections_share_texts_and_index_and_a_changed_one_does_not():
    store = Store(99)
    for i in range(20):
        filled(store, f"kb{i}")
        answer(store, "GET", f"/collections/kb{i}/documents/search?q=shop&query_by=text", b"")
    assert len(store.indexes) == 1
    assert len(store.known) == 5
    target = "/collections/kb7/documents/import?action=upsert"
    line = json.dumps({"id": "new", "source": "hours.md", "text": "Closed on Sundays."}).encode()
    assert answer(store, "POST", target, line + b"\n" + line)[1] == '{"success": true}\n{"success": true}'
    sunday = [answer(store, "GET", f"/collections/kb{i}/documents/search?q=sunday&query_by=text", b"") for i in (6, 7)]
    assert [found["found"] for _, found in sunday] == [0, 1]
    for i in range(20):
        answer(store, "DELETE", f"/collections/kb{i}", b"")
    assert not store.collections


def test_collections_that_nobody_deletes_do_not_pile_up():
    store = Store(3)
    for i in range(5):
        filled(store, f"kb{i}")
        if i:
            store.get("kb0")
    assert list(store.collections) == ["kb3", "kb4", "kb0"]


def ask(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request(method, path, json.dumps(body) if body is not None else None)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def test_the_server_speaks_http_over_kept_connections_and_survives_nonsense():
    async def go():
        search = EmbeddedSearch(4, 60)
        await search.ready()
        try:
            await asyncio.to_thread(talk, search.port)
        finally:
            await search.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.to_thread(ask, search.port, "GET", "/health")

    def talk(port: int) -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            for method, path, body, status in (
                ("GET", "/health", None, 200),
                ("POST", "/collections", {"name": "kö/1", "fields": FIELDS}, 201),
                ("POST", "/collections/k%C3%B6%2F1/documents", {"source": "a", "text": "Grüße " * 9000}, 201),
                ("GET", "/collections/k%C3%B6%2F1/documents/search?q=gr%C3%BC%C3%9Fe&query_by=text", None, 200),
            ):
                connection.request(method, path, json.dumps(body) if body is not None else None)
                response = connection.getresponse()
                answered = json.loads(response.read())
                assert response.status == status, answered
            assert answered["found"] == 1
        for nonsense in (b"hello\r\n\r\n", b"x" * 100_000, b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), 20) as raw:
                raw.sendall(nonsense)
                assert b" 4" in raw.recv(1000).partition(b"\r\n")[0]
        assert ask(port, "GET", "/health") == (200, {"ok": True})

    asyncio.run(go())


KB = {"library": {"sources": [{"name": name, "snippets": parts} for name, parts in TEXTS.items()]}}


@pytest.mark.parametrize("kind", ["prefork", "process"])
def test_a_server_finds_the_search_at_the_address_in_its_code_and_two_runs_do_not_meet(server, config, kind):
    async def go():
        settings = config(kind, search="embedded")
        servers = {"library": server("library")}
        async with open_sandbox(settings, servers) as one, open_sandbox(settings, servers) as other:
            for sandbox in (one, other, one):
                async with sandbox.session(KB, ["look_up", "collections"]) as session:
                    assert json.loads(await session.call("look_up", {"query": "refund"}))[0] == "returns.md"
                    # Neither the other run's, nor an earlier session's, which tore its own down.
                    assert await session.call("collections", {}) == "1"
            assert one.levels() == {"library": "ready" if kind == "prefork" else "exec"}

    asyncio.run(go())


def test_a_search_that_dies_is_a_system_error_of_the_sessions_that_used_it_and_the_next_ones_have_another(
    server, config
):
    async def go():
        async with open_sandbox(config(search="embedded"), {"library": server("library")}) as sandbox:
            async with sandbox.session(KB, ["look_up"]) as session:
                search = sandbox.search
                os.kill(search.launcher._process.pid, signal.SIGKILL)
                while not search.launcher.dead:
                    await asyncio.sleep(0.01)
                with pytest.raises(WorldError) as caught:
                    await session.call("look_up", {"query": "refund"})
                assert caught.value.kind == "search_crashed"
            async with sandbox.session(KB, ["look_up"]) as session:
                assert json.loads(await session.call("look_up", {"query": "refund"}))[0] == "returns.md"

    asyncio.run(go())


def test_the_search_ends_with_a_parent_that_is_killed():
    script = (
        "import asyncio, os, signal\n"
        "from tbexp.sandbox.search import EmbeddedSearch\n"
        "async def go():\n"
        "    search = EmbeddedSearch(4, 60)\n"
        "    await search.ready()\n"
        "    print(search.port, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(go())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", int(done.stdout)), 20).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.02)
    raise AssertionError("the search outlived its parent")


@contextlib.contextmanager
def typesense(status: int, body: bytes) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield served.server_address[1]
        served.shutdown()


def opened(config, address: str) -> None:
    async def go():
        async with open_sandbox(config(search="external", search_address=address), {}):
            pass

    asyncio.run(go())


def test_an_external_search_is_asked_for_its_health_before_anything_starts(config):
    with typesense(200, b'{"ok": true}') as port:
        opened(config, f"localhost:{port}")
    for status, body in ((503, b'{"ok": false}'), (200, b"<html>")):
        with typesense(status, body) as port, pytest.raises(UserError, match="no Typesense server in good health"):
            opened(config, f"127.0.0.1:{port}")
    with pytest.raises(UserError, match="no search server answers at"):
        opened(config, f"127.0.0.1:{port}")
    with pytest.raises(UserError, match="is no address"):
        opened(config, "http://127.0.0.1:8108")
