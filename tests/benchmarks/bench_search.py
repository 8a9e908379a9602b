"""What the knowledge search costs: requests a second of the embedded server, and sessions with and without it.

    python tests/benchmarks/bench_search.py
    python tests/benchmarks/bench_search.py --root DATASET --list TESTLIST --python INTERPRETER [--sessions 30]

The second form opens sessions of a dataset's own tasks, one of each server: with `sandbox.search=embedded`, and without
a search and without what the servers would upload to it (`sources`). The search call is one of the tool
whose name ends in `search_policy`.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import http.client
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tbexp.config.schema import SandboxConfig
from tbexp.sandbox import open_sandbox, read_servers
from tbexp.sandbox.search import EmbeddedSearch
from tbexp.tasks import load_tasks, read_selectors

FIELDS = [
    {"name": "source", "type": "string"},
    {"name": "text", "type": "string"},
    {"name": "embedding", "type": "float[]", "embed": {"from": ["text"]}},
]
WORDS = [f"word{n}" for n in range(400)]


def ms(times: Sequence[float]) -> str:
    return f"median {statistics.median(times) * 1e3:.2f} ms, least {min(times) * 1e3:.2f} ms"


def cpu_seconds(pid: int) -> float:
    """Of a process, user and system: what a busy machine does not change."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def talk(port: int, rounds: int) -> int:
    """What a session sends, over one kept connection: a collection, ten documents of 5 KB, two searches, its end."""
    connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(method: str, path: str, body: Any = None) -> Any:
        connection.request(method, path, json.dumps(body) if body is not None else None)
        answer = connection.getresponse()
        value = json.loads(answer.read())
        assert answer.status < 300, value
        return value

    texts = [" ".join(WORDS[(n * 37 + i * (n + 1)) % 400] for i in range(700)) for n in range(10)]
    search = {"q": "word3 word17 word200", "query_by": "embedding,text", "group_by": "source"}
    times: dict[str, list[float]] = {"create": [], "document": [], "first search": [], "search": [], "delete": []}

    def timed(what: str, *request: Any) -> Any:
        start = time.perf_counter()
        value = ask(*request)
        times[what].append(time.perf_counter() - start)
        return value

    start = time.perf_counter()
    for n in range(rounds):
        name = f"kb{n}"
        timed("create", "POST", "/collections", {"name": name, "fields": FIELDS})
        for i, text in enumerate(texts):
            timed("document", "POST", f"/collections/{name}/documents", {"source": f"s{i}", "text": text})
        for what in ("first search" if n == 0 else "search", "search"):
            timed(what, "POST", "/multi_search", {"searches": [{**search, "collection": name}]})
        timed("delete", "DELETE", f"/collections/{name}")
    seconds = time.perf_counter() - start
    count = sum(map(len, times.values()))
    print(f"embedded search, one client: {count} requests in {seconds:.2f} s, {count / seconds:.0f} a second")
    for what, found in times.items():
        print(f"  {what}: {ms(found)}")
    return count


async def requests(rounds: int) -> None:
    search = EmbeddedSearch(4, 60)
    start = time.perf_counter()
    await search.ready()
    print(f"embedded search: up after {(time.perf_counter() - start) * 1e3:.0f} ms")
    assert search.launcher is not None and search.launcher._process is not None
    pid = search.launcher._process.pid
    before = cpu_seconds(pid)
    count = await asyncio.to_thread(talk, search.port, rounds)
    print(f"  CPU of the server: {(cpu_seconds(pid) - before) / count * 1e6:.0f} us a request")
    memory = Path(f"/proc/{pid}/smaps_rollup").read_text()
    private = sum(int(line.split()[1]) for line in memory.splitlines() if line.startswith("Private_"))
    print(f"  private memory after {rounds} collections: {private / 1024:.1f} MiB")
    await search.close()


async def sessions(root: Path, listed: str, python: str, count: int) -> None:
    tasks = load_tasks(root, "think", read_selectors(listed))
    servers = read_servers(root / "servers" / "servers.yaml", python=python)
    by_server = {}
    for task in tasks:
        by_server.setdefault(next(iter(task.server_config())), task)
    for search in ("embedded", "none"):
        config = SandboxConfig(name="bench", kind="prefork", search=search)
        async with open_sandbox(config, servers) as sandbox:
            for name, task in by_server.items():
                world = copy.deepcopy(task.server_config())
                if search == "none":
                    world[name].pop("sources", None)
                tool = next(t.name for t in task.scenario.tools if t.name.endswith("search_policy"))
                opened, searched = [], []
                for _ in range(count):
                    start = time.perf_counter()
                    async with sandbox.session(world, [tool]) as session:
                        opened.append(time.perf_counter() - start)
                        if search != "none":
                            start = time.perf_counter()
                            answer = json.loads(await session.call(tool, {"query": "cancellation and refund"}))
                            searched.append(time.perf_counter() - start)
                            assert answer["snippets"], answer
                says = f"; search call {ms(searched)}" if searched else ""
                print(f"search={search} {name} ({sandbox.levels()[name]}): session {ms(opened)}{says}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path)
    parser.add_argument("--list")
    parser.add_argument("--python")
    parser.add_argument("--sessions", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    asyncio.run(requests(given.rounds))
    if given.root is not None:
        asyncio.run(sessions(given.root, given.list, given.python, given.sessions))


if __name__ == "__main__":
    main()
