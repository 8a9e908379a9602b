"""A library whose catalogue is a search at 127.0.0.1:8108: the address is fixed, as in the servers of the benchmark."""

from __future__ import annotations

import http.client
import json
import uuid
from typing import Any

from mcp.server.fastmcp import FastMCP

server = FastMCP("library")
name = ""
FIELDS = [
    {"name": "source", "type": "string"},
    {"name": "text", "type": "string"},
    {"name": "embedding", "type": "float[]", "embed": {"from": ["text"]}},
]


def ask(method: str, path: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", 8108, timeout=20)
    connection.request(method, path, json.dumps(body) if body is not None else None)
    answer = connection.getresponse()
    value = json.loads(answer.read())
    connection.close()
    if answer.status >= 300:
        raise ValueError(f"{answer.status}: {value['message']}")
    return value


@server.tool(name="__reserved__init")
def init(config: dict[str, Any]) -> str:
    global name
    name = uuid.uuid4().hex
    ask("POST", "/collections", {"name": name, "fields": FIELDS})
    for source in config["sources"]:
        for text in source["snippets"]:
            ask("POST", f"/collections/{name}/documents", {"source": source["name"], "text": text})
    return "{}"


@server.tool(name="__reserved__teardown")
def teardown() -> str:
    ask("DELETE", f"/collections/{name}")
    return "{}"


@server.tool()
def look_up(query: str) -> str:
    """The sources that fit, best first."""
    search = {"collection": name, "q": query, "query_by": "embedding,text", "group_by": "source"}
    groups = ask("POST", "/multi_search", {"searches": [search]})["results"][0]["grouped_hits"]
    return json.dumps([group["group_key"][0] for group in groups])


@server.tool()
def collections() -> str:
    """How many collections there are."""
    return str(len(ask("GET", "/collections")))


if __name__ == "__main__":
    server.run()
