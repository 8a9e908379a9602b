"""How fast selection is: `python tests/benchmarks/bench_selection.py [--tasks 50000] [--rows 1000000]`.

Prints the best of some repetitions, in seconds of wall time and of this process (the machine may be busy), and the
ratio to one scipy.stats.beta object per task. One process, one thread.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tbexp.attempts import Counts, read_counts
from tbexp.config.schema import Band, Bands, Buckets, SelectionConfig
from tbexp.selection import posterior, select, write_selection

NAMES = ("rarely", "hard", "medium", "often", "nearly_always")
EDGES = (0.08, 0.4, 0.6, 0.9)


class Seconds(NamedTuple):
    wall: float
    process: float

    def __str__(self) -> str:
        return f"{self.wall:.3f} s ({self.process:.3f} s of the process)"


def best(function: Callable[[], Any], repetitions: int = 5) -> Seconds:
    walls, processes = [], []
    for _ in range(repetitions):
        wall, process = time.perf_counter(), time.process_time()
        function()
        walls.append(time.perf_counter() - wall)
        processes.append(time.process_time() - process)
    return Seconds(min(walls), min(processes))


def one_object_per_task(clean: np.ndarray, passed: np.ndarray) -> list[tuple[Any, ...]]:
    from scipy.stats import beta

    found = []
    for n, k in zip(clean.tolist(), passed.tolist(), strict=True):
        task = beta(k + 0.5, n - k + 0.5)
        below = [0.0, *(task.cdf(edge) for edge in EDGES), 1.0]
        found.append((*np.diff(below), *task.interval(0.95), task.cdf(0.15)))
    return found


def write_rows(file: Path, rows: int, tasks: int) -> None:
    """Rows of about 100 bytes, in the order in which a probe over all tasks makes them."""
    rng = np.random.default_rng(0)
    passed, errors = rng.random(rows) < 0.5, rng.random(rows) < 0.01
    with file.open("w") as out:
        for i, (ok, bad) in enumerate(zip(passed.tolist(), errors.tolist(), strict=True)):
            verdict = f'{{"result":{json.dumps(ok)}}}'
            out.write(
                f'{{"uid":"shop_orders.py:test_{i % tasks:05d}","test_result":{verdict},'
                f'"is_system_error":{json.dumps(bad)},"rep":{i // tasks}}}\n'
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=50_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--objects", type=int, default=500, help="tasks of the comparison with scipy.stats, scaled up")
    args = parser.parse_args()

    rng = np.random.default_rng(1)
    clean = rng.integers(6, 9, args.tasks)
    passed = rng.binomial(clean, rng.beta(0.5, 0.5, args.tasks))
    uids = tuple(f"file_{i // 50:04d}.py:test_{i:06d}" for i in range(args.tasks))
    counts = Counts(uids, clean, passed, 8 - clean)
    bands = Bands(**{n: Band(upper=u, keep=n in NAMES[1:4]) for n, u in zip(NAMES, (*EDGES, None), strict=True)})
    buckets, settings = Buckets(name="bench", bands=bands), SelectionConfig(name="bench")

    def choose() -> Any:
        return select(counts, buckets=buckets, selection=settings, group_size=8)

    choose()  # imports
    out = sys.stdout.write
    out(f"select {args.tasks} tasks from counts: {best(choose)}\n")
    with tempfile.TemporaryDirectory() as folder:
        chosen = choose()
        seconds = best(lambda: write_selection(Path(folder) / "select", chosen), 3)
        out(f"write the files of {args.tasks} tasks: {seconds}\n")
        file = Path(folder) / "rows.jsonl"
        write_rows(file, args.rows, args.tasks)
        size = file.stat().st_size / args.rows
        seconds = best(lambda: select(read_counts([file]), buckets=buckets, selection=settings, group_size=8), 2)
        out(f"select from {args.rows} JSONL rows of {size:.0f} bytes: {seconds}\n")
    few = args.objects
    objects = best(lambda: one_object_per_task(clean[:few], passed[:few]), 2).process * args.tasks / few
    arrays = best(lambda: posterior(clean, passed)).process
    out(f"posteriors of {args.tasks} tasks as arrays: {arrays:.3f} s of the process\n")
    out(f"with one scipy.stats.beta object per task (measured on {few}, scaled): {objects:.1f} s\n")
    out(f"ratio: {objects / arrays:.0f}\n")


if __name__ == "__main__":
    main()
