"""A small search server: the part of the Typesense HTTP API that knowledge-base servers use, on SQLite's FTS5.

A standalone script that needs nothing but the standard library; search.py starts it. It ends with its parent, keeps
everything in memory and listens on loopback only. API keys are not looked at.

- `GET /health`
- `POST /collections`, `GET|DELETE /collections/NAME`
- `POST /collections/NAME/documents[?action=create|upsert]`, `POST .../documents/import` (JSON lines)
- `GET /collections/NAME/documents/search`, `POST /multi_search`: `q`, `query_by`, `filter_by` (`field:=value`, joined
  by `||`), `group_by`, `group_limit`, `page`, `per_page`, `include_fields`, `exclude_fields`

What it is not: there are no embeddings. A search by an embedding field ranks by BM25 over the texts that the embedding
is made from, stems of words instead of meanings; documents without a word in common come last, as distant ones would.
Its `text_match` and `vector_distance` are in the right order and in a scale of their own.

Sessions upload the same few documents again and again under ids of their own. So texts are kept once, and an index
belongs to a sequence of texts, not to a collection: it is built at the first search in any collection with that
content.
"""

# ruff: noqa: PTH100, PTH118, PTH120
from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import math
import os
import sqlite3
import time
import urllib.parse
import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, cast
from weakref import WeakValueDictionary

MAX_BODY = 1 << 26  # bytes
MAX_HEAD = 1 << 16
KEPT_INDEXES = 64
GROUP_LIMIT = 3
PER_PAGE = 10
MAX_PER_PAGE = 250


class Refused(Exception):
    """The answer to a request that can't be met."""

    def __init__(self, status: int, message: str):
        self.status = status
        self.message = message
        super().__init__(message)


# --- documents


@dataclass(slots=True, weakref_slot=True, eq=False)
class Content:
    """A document without its id; equal ones are one object."""

    digest: bytes
    fields: dict[str, Any]


@dataclass(slots=True)
class Collection:
    """Documents in the order in which they came. `state`: a hash of all contents, which equal collections share."""

    name: str
    fields: list[dict[str, Any]]
    created: int
    ids: dict[str, int] = field(default_factory=dict)  # id -> place
    contents: list[Content] = field(default_factory=list)
    state: bytes = b""

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name, "fields": self.fields, "num_documents": len(self.ids), "created_at": self.created,
            "default_sorting_field": "", "enable_nested_fields": False, "symbols_to_index": [], "token_separators": [],
        }  # fmt: skip

    def columns(self) -> tuple[str, ...]:
        """The fields that are searched as text."""
        return tuple(f["name"] for f in self.fields if f["type"] in ("string", "string[]") and f["name"] != "id")

    def searched(self, query_by: str) -> tuple[tuple[str, ...], bool]:
        """The columns behind `query_by`, and whether an embedding is among them."""
        by_name = {f["name"]: f for f in self.fields}
        columns: list[str] = []
        embedded = False
        for name in split(query_by):
            if name not in by_name:
                raise Refused(404, f"Could not find a field named `{name}` in the schema.")
            made_from = by_name[name].get("embed", {}).get("from")
            embedded = embedded or bool(made_from)
            columns += made_from or [name]
        known = self.columns()
        for name in columns:
            if name not in known:
                raise Refused(400, f"Field `{name}` should be a string or a string array.")
        return tuple(dict.fromkeys(columns)), embedded


class Index:
    """The words of one sequence of documents, as FTS5 reads them: lower case, without accents, stemmed (Porter).

    The ranking is not FTS5's own: its weight of a word that stands in half of the documents or more is next to
    nothing, and here a collection has about ten documents. The weight ln(1 + (N - n + 1/2) / (n + 1/2)) stays above 0
    (BM25 as in Lucene; k1 = 1.2, b = 0.75).
    """

    def __init__(self, columns: Sequence[str], contents: Sequence[Content]):
        texts = [tuple(text_of(content.fields.get(name, "")) for name in columns) for content in contents]
        self.count = len(contents)
        self.lengths: Counter[tuple[str, int]] = Counter()  # of a column in a document, in words
        self.found: dict[str, Counter[tuple[str, int]]] = {}  # word -> how often in which column of which document
        for word, place, column in words_of(texts, len(columns)):
            self.lengths[columns[column], place] += 1
            self.found.setdefault(word, Counter())[columns[column], place] += 1

    def ranked(self, query: str, columns: Sequence[str]) -> list[tuple[int, float]]:
        """Places of the documents that have a word of the query, best first, with their scores (above 0)."""
        scores: dict[int, float] = {}
        mean = sum(n for (column, _), n in self.lengths.items() if column in columns) / max(self.count, 1)
        length = Counter[int]()
        for (column, place), n in self.lengths.items():
            length[place] += n if column in columns else 0
        for word in query_words(query):
            times = Counter[int]()
            for (column, place), n in self.found.get(word, {}).items():
                times[place] += n if column in columns else 0
            times = +times
            weight = math.log(1 + (self.count - len(times) + 0.5) / (len(times) + 0.5))
            for place, n in times.items():
                norm = 1.2 * (0.25 + 0.75 * length[place] / mean)
                scores[place] = scores.get(place, 0.0) + weight * n * 2.2 / (n + norm)
        return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


@lru_cache(4096)
def query_words(query: str) -> tuple[str, ...]:
    """The different words of a query: 0.8 ms of SQLite, and policies ask the same again and again."""
    return tuple(dict.fromkeys(word for word, _, _ in words_of([(query,)], 1)))


def text_of(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def words_of(texts: Sequence[Sequence[str]], columns: int) -> Iterator[tuple[str, int, int]]:
    """Word, number of text and number of column of each word of the texts."""
    names = ", ".join(f"c{i}" for i in range(columns))
    database = sqlite3.connect(":memory:", isolation_level=None)
    try:
        database.execute(
            f"create virtual table texts using fts5({names}, tokenize='porter unicode61 remove_diacritics 2')"
        )
        database.execute("create virtual table words using fts5vocab(texts, instance)")
        marks = ", ".join("?" * (columns + 1))
        database.executemany(
            f"insert into texts (rowid, {names}) values ({marks})", [(i, *text) for i, text in enumerate(texts)]
        )
        for word, place, column in database.execute("select term, doc, col from words"):
            yield word, place, int(column[1:])
    finally:
        database.close()


class Store:
    """All collections; those that nobody used for longest are dropped beyond `limit`."""

    def __init__(self, limit: int):
        self.limit = limit
        self.collections: OrderedDict[str, Collection] = OrderedDict()
        self.known: WeakValueDictionary[bytes, Content] = WeakValueDictionary()
        self.indexes: OrderedDict[tuple[bytes, tuple[str, ...]], Index] = OrderedDict()

    def create(self, schema: Mapping[str, Any]) -> Collection:
        name, fields = schema.get("name"), schema.get("fields")
        if not isinstance(name, str) or not name or not isinstance(fields, list):
            raise Refused(400, "Parameters `name` and `fields` are required.")
        for entry in fields:
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or "type" not in entry:
                raise Refused(400, "Each field needs a `name` and a `type`.")
        if name in self.collections:
            raise Refused(409, f"A collection with name `{name}` already exists.")
        self.collections[name] = made = Collection(name, fields, int(time.time()))
        while len(self.collections) > self.limit:
            self.collections.popitem(last=False)
        return made

    def get(self, name: str) -> Collection:
        found = self.collections.get(name)
        if found is None:
            raise Refused(404, "Not Found")
        self.collections.move_to_end(name)
        return found

    def add(self, collection: Collection, document: Any, action: str) -> dict[str, Any]:
        if not isinstance(document, dict):
            raise Refused(400, "Bad JSON: a document is an object.")
        for entry in collection.fields:
            missing = entry["name"] not in document and entry["name"] != "id"
            if missing and not entry.get("optional") and not entry.get("embed"):
                raise Refused(
                    400,
                    f"Field `{entry['name']}` has been declared in the schema, but is not found in the document.",
                )
        made: dict[str, Any] = {**document, "id": str(document.get("id") or uuid.uuid4().hex)}
        fields = {name: value for name, value in made.items() if name != "id"}
        digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).digest()
        content = self.known.get(digest)
        if content is None:
            content = self.known[digest] = Content(digest, fields)
        place = collection.ids.get(made["id"])
        if place is None:
            collection.ids[made["id"]] = len(collection.contents)
            collection.contents.append(content)
            collection.state = hashlib.sha256(collection.state + digest).digest()
        elif action == "upsert":
            collection.contents[place] = content
            collection.state = b""
            for other in collection.contents:
                collection.state = hashlib.sha256(collection.state + other.digest).digest()
        else:
            raise Refused(409, f"A document with id {document['id']} already exists.")
        return made

    def index(self, collection: Collection) -> Index:
        key = (collection.state, collection.columns())
        found = self.indexes.get(key)
        if found is None:
            found = self.indexes[key] = Index(key[1], collection.contents)
            if len(self.indexes) > KEPT_INDEXES:
                self.indexes.popitem(last=False)
        self.indexes.move_to_end(key)
        return found

    # --- search

    def search(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        collection = self.get(str(wanted.get("collection", "")))
        query = str(wanted.get("q", ""))
        if "q" not in wanted:
            raise Refused(400, "Parameter `q` is required.")
        per_page = number(wanted, "per_page", PER_PAGE, 0, MAX_PER_PAGE)
        page = number(wanted, "page", 1, 1, 1 << 30)
        everything = query.strip() == "*"
        columns, embedded = collection.searched(str(wanted.get("query_by", ""))) if not everything else ((), False)
        if not everything and not columns:
            raise Refused(400, "Parameter `query_by` is required.")
        ids = {place: id_ for id_, place in collection.ids.items()}
        scores = dict(self.index(collection).ranked(query, columns)) if columns and query.strip() else {}
        places = list(scores)
        if everything or (embedded and query.strip()):
            places += [place for place in ids if place not in scores]
        allowed = filtered(collection, str(wanted.get("filter_by", "")))
        places = [place for place in places if allowed is None or place in allowed]
        shown = partial(self._document, collection, ids, wanted)
        hits = []
        for place in places:
            score = scores.get(place, 0.0)
            hit: dict[str, Any] = {
                "document": shown(place),
                "highlight": {},
                "highlights": [],
                "text_match": round(score * 1e6),
            }
            if embedded:
                hit["vector_distance"] = round(1.0 / (1.0 + score), 6)
            hits.append(hit)
        answer: dict[str, Any] = {
            "facet_counts": [], "out_of": len(ids), "page": page, "search_cutoff": False, "search_time_ms": 0,
            "request_params": {"collection_name": collection.name, "q": query, "per_page": per_page},
        }  # fmt: skip
        first = (page - 1) * per_page
        if group_by := split(str(wanted.get("group_by", ""))):
            groups = grouped(hits, [collection.contents[place] for place in places], group_by)
            limit = number(wanted, "group_limit", GROUP_LIMIT, 1, 99)
            answer |= {"found": len(groups), "found_docs": len(hits)}
            answer["grouped_hits"] = [
                {"group_key": list(key), "found": len(of_group), "hits": of_group[:limit]}
                for key, of_group in list(groups.items())[first : first + per_page]
            ]
        else:
            answer |= {"found": len(hits), "hits": hits[first : first + per_page]}
        return answer

    def _document(
        self, collection: Collection, ids: Mapping[int, str], wanted: Mapping[str, Any], place: int
    ) -> dict[str, Any]:
        document = {"id": ids[place], **collection.contents[place].fields}
        include = split(str(wanted.get("include_fields", "")))
        exclude = split(str(wanted.get("exclude_fields", "")))
        return {k: v for k, v in document.items() if (not include or k in include) and k not in exclude}


def grouped(
    hits: Sequence[dict[str, Any]], contents: Sequence[Content], group_by: Sequence[str]
) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for hit, content in zip(hits, contents, strict=True):
        groups.setdefault(tuple(str(content.fields.get(name, "")) for name in group_by), []).append(hit)
    return groups


def filtered(collection: Collection, text: str) -> set[int] | None:
    """Places that `filter_by` lets through; None: all."""
    if not text.strip():
        return None
    found: set[int] = set()
    for part in text.split("||"):
        name, equals, value = (piece.strip() for piece in part.partition(":="))
        if not equals or not any(f["name"] == name for f in collection.fields):
            raise Refused(400, f"Could not parse the filter query: `{part.strip()}` is not of the form field:=value.")
        value = value.strip("`")
        found |= {i for i, content in enumerate(collection.contents) if str(content.fields.get(name)) == value}
    return found


def split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def number(wanted: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    try:
        value = int(wanted.get(name, default))
    except (TypeError, ValueError):
        raise Refused(400, f"Parameter `{name}` must be an unsigned integer.") from None
    if not least <= value <= most:
        raise Refused(422, f"Parameter `{name}` must be from {least} to {most}.")
    return value


# --- HTTP


def answer(store: Store, method: str, target: str, body: bytes) -> tuple[int, Any]:
    """Status and body (JSON; text is JSON lines already) of one request."""
    path, _, query = target.partition("?")
    parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
    options = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
    if path == "/health":
        return 200, {"ok": True}
    if path == "/multi_search" and method == "POST":
        searches = parsed(body).get("searches")
        if not isinstance(searches, list):
            raise Refused(400, "Missing `searches` array.")
        return 200, {"results": [one_of_many(store, options, search) for search in searches]}
    if parts[0] == "collections":
        rest = parts[1:]
        if not rest:
            if method == "POST":
                return 201, store.create(parsed(body)).describe()
            if method == "GET":
                return 200, [collection.describe() for collection in store.collections.values()]
        elif len(rest) == 1 and method in ("GET", "DELETE"):
            collection = store.get(rest[0])
            if method == "DELETE":
                del store.collections[rest[0]]
            return 200, collection.describe()
        elif rest[1:] == ["documents"] and method == "POST":
            return 201, store.add(store.get(rest[0]), parsed(body), options.get("action", "create"))
        elif rest[1:] == ["documents", "import"] and method == "POST":
            return 200, imported(store, store.get(rest[0]), body, options.get("action", "create"))
        elif rest[1:] == ["documents", "search"] and method == "GET":
            return 200, store.search({**options, "collection": rest[0]})
    raise Refused(404, f"Not Found: the embedded search does not know {method} {path}")


def one_of_many(store: Store, options: Mapping[str, Any], search: Any) -> dict[str, Any]:
    if not isinstance(search, dict):
        return {"code": 400, "error": "A search is an object."}
    try:
        return store.search({**options, **search})
    except Refused as error:
        return {"code": error.status, "error": error.message}


def imported(store: Store, collection: Collection, body: bytes, action: str) -> str:
    lines: list[dict[str, Any]] = []
    for line in body.splitlines():
        if not line.strip():
            continue
        try:
            store.add(collection, parsed(line), action)
            lines.append({"success": True})
        except Refused as error:
            lines.append({"success": False, "code": error.status, "error": error.message})
    return "\n".join(json.dumps(line) for line in lines)


def parsed(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Refused(400, "Bad JSON.")
    return value


REASONS = {200: "OK", 201: "Created"}


class Http(asyncio.Protocol):
    """One connection: requests one after another, kept open."""

    def __init__(self, store: Store):
        self.store = store
        self.buffer = bytearray()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while self.transport is not None and not self.transport.is_closing() and self._request():
            pass

    def _request(self) -> bool:
        """Answer the first request of the buffer if all of it is there."""
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self.buffer) > MAX_HEAD:
                self._send(431, {"message": "The request's head is too long."}, close=True)
            return False
        first, *lines = bytes(self.buffer[:end]).decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        words = first.split(" ")
        length = headers.get("content-length", "0")
        if len(words) != 3 or not length.isdigit() or "transfer-encoding" in headers or int(length) > MAX_BODY:
            self._send(400, {"message": "No such request is understood here."}, close=True)
            return False
        size = end + 4 + int(length)
        if len(self.buffer) < size:
            return False
        body = bytes(self.buffer[end + 4 : size])
        del self.buffer[:size]
        try:
            status, value = answer(self.store, words[0], words[1], body)
        except Refused as error:
            status, value = error.status, {"message": error.message}
        except Exception as error:  # the client is told, the server lives on
            status, value = 500, {"message": f"{type(error).__name__}: {error}"}
        self._send(status, value, close=headers.get("connection", "").lower() == "close")
        return True

    def _send(self, status: int, value: Any, *, close: bool) -> None:
        assert self.transport is not None
        data = (value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))).encode()
        head = (
            f"HTTP/1.1 {status} {REASONS.get(status, 'Refused')}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\nConnection: {'close' if close else 'keep-alive'}\r\n\r\n"
        )
        self.transport.write(head.encode() + data)
        if close:
            self.transport.close()


# --- process


async def serve(control: Any, hello: Mapping[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    store = Store(int(hello["collections"]))
    server = await loop.create_server(lambda: Http(store), "127.0.0.1", int(hello["port"]), backlog=1024)
    loop.add_reader(control.socket, lambda: os._exit(0))  # it says nothing more, so this is its end
    control.send({"up": "search", "port": server.sockets[0].getsockname()[1]})
    await server.serve_forever()


def main() -> None:
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nursery.py")
    spec = importlib.util.spec_from_file_location("tbexp_nursery", path)
    assert spec is not None and spec.loader is not None
    nursery: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nursery)
    control = nursery.connect()
    received = control.receive()
    if received is None:
        return
    try:
        sqlite3.connect(":memory:").execute("create virtual table probe using fts5(text)")
        asyncio.run(serve(control, received[0]))
    except (OSError, sqlite3.Error) as error:
        control.send({"unfit": str(error)})


if __name__ == "__main__":
    main()
