"""The guard of the public benchmark: its 507 tasks are for evaluation only.

Decided here: what counts as a benchmark task. It is known by its uid, or by its content whatever it is called; only
hashes are shipped, no text. Left to others: which uses are refused (selection leaves such tasks out, training stops).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from tbexp.errors import Problem, UserError
from tbexp.tasks.records import Task

_SHOWN = 10


@cache
def _shipped() -> tuple[frozenset[str], frozenset[str]]:
    """The uids, and the hashes of queries and of queries with their user contexts."""
    data = json.loads(files("tbexp.tasks").joinpath("benchmark.json").read_text(encoding="utf-8"))
    tasks = data["tasks"]
    return frozenset(task[0] for task in tasks), frozenset(part for task in tasks for part in task[1:])


def benchmark_uids() -> frozenset[str]:
    """The uids of ThinkingBox-Bench v1.0."""
    return _shipped()[0]


def is_benchmark(task: Task | str) -> bool:
    """Whether a task is one of the benchmark, by uid or by query; of a uid alone, only the uid can tell."""
    uids, hashes = _shipped()
    if isinstance(task, str):
        return task in uids
    query = task.query.strip()
    with_context = f"{query}\n{(task.user_context or '').strip()}"
    return task.uid in uids or not hashes.isdisjoint((_sha(query), _sha(with_context)))


def is_benchmark_query(text: str) -> bool:
    """Whether a text is the query of a benchmark task: all that rows made elsewhere tell of what a task is."""
    return _sha(text.strip()) in _shipped()[1]


def refuse_benchmark(tasks: Iterable[Task | str], *, use: str) -> None:
    """UserError when a benchmark task is among the tasks (or uids); use: what they were to be used for."""
    found = [task if isinstance(task, str) else task.uid for task in tasks if is_benchmark(task)]
    if found:
        named = ", ".join(found[:_SHOWN]) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
        what = f"{len(found)} of the tasks for {use} are ThinkingBox-Bench v1.0, which is for evaluation only: {named}"
        raise UserError(Problem(what, fix="leave them out (a renamed copy is known by its content)"))


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
