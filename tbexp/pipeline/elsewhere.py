"""How long the jobs worked that made a stage's attempts: the job of one CPU that reads them has no time of its own.

Decided here: it is the time during which any of them was at work, so jobs beside each other count once and waiting in
the queue does not count; and that of a shared store those attempts count which this run's jobs made or it waited for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tbexp.pipeline.files import read_json

RECORD = Path("slurm", "jobs.json")  # in a shared store: the array that fills it, and the runs that wait for it
Span = tuple[float, float]  # Unix times


@contextmanager
def noted(store: Path, shard: str, run: Path, begun: float) -> Iterator[None]:
    """Keeps from when to when a start of a shard's job worked; of one that is killed, from when."""
    with (store / f"times-{shard}.jsonl").open("a") as file:
        file.write(json.dumps({"run": str(run), "begun": begun}) + "\n")
        file.flush()
        try:
            yield
        finally:
            file.write(json.dumps({"ended": time.time()}) + "\n")


def spans(store: Path, run: Path) -> list[Span]:
    """When jobs worked at this store's attempts for the run. The last start of a shard, if it was killed, lasted until
    its last attempt.
    """
    waits = str(run) in (read_json(store / RECORD) or {}).get("runs", [])
    found: list[Span] = []
    for file in sorted(store.glob("times-*.jsonl")):
        begun, mine = None, False
        for line in file.read_text().splitlines():
            told = json.loads(line)
            if "begun" in told:
                begun, mine = float(told["begun"]), waits or told["run"] == str(run)
            elif begun is not None:
                found += [(begun, float(told["ended"]))] if mine else []
                begun = None
        rows = store / file.name.replace("times-", "attempts-", 1)
        if begun is not None and mine and rows.exists():
            found.append((begun, max(begun, rows.stat().st_mtime)))
    return found


def covered(spans: Iterable[Span]) -> float:
    """Seconds that are in any of the spans."""
    total, until = 0.0, float("-inf")
    for begun, ended in sorted(spans):
        total += max(0.0, ended - max(begun, until))
        until = max(until, ended)
    return total
