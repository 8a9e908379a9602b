"""Whole attempts a second, forked sessions against a process for each: `python tests/benchmarks/bench_attempts.py`.

An instant scripted policy plays recorded solutions of the sample domain through the campaign that probe and evaluate
use: backend, tools, simulated user, grading, storage. Both kinds of sandbox run in one process on one machine and take
turns, block by block, so that whatever else the machine does falls on both. Seconds of a block are all of it, the
start of the servers' launcher and of the grader included. CPU time, which other work on the machine changes less, is
told beside it. Wanted: 30 attempts a second, and 30 times as many as with a process for each session. Exit status 1
when an attempt had a system error or did not pass, or a figure is below.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

from many_attempts import Watching, played, sample

from tbexp.attempts import AttemptStore

WANTED = 30


def block(kind: str, attempts: int, at_once: int) -> tuple[float, float, int]:
    """Attempts a second of one campaign, CPU seconds of an attempt, and how many attempts passed."""
    tasks = sample(attempts)
    with tempfile.TemporaryDirectory() as folder:
        start, before = time.perf_counter(), cpu()
        played(Watching(tasks, ()), tasks, 1, at_once, Path(folder), kind=kind)
        seconds, spent = time.perf_counter() - start, cpu() - before
        with AttemptStore(Path(folder), read_only=True) as store:
            return attempts / seconds, spent / attempts, sum(row.passed is True for row in store.rows())


def cpu() -> float:
    """Seconds of CPU of this process and of what it started and has ended: launcher, sessions, grader."""
    each = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in each)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--attempts", type=int, default=1500, help="in a block of forked sessions")
    parser.add_argument("--by-process", type=int, default=48, help="in a block of sessions with a process each")
    parser.add_argument("--at-once", type=int, default=64)
    args = parser.parse_args()
    sizes = {"prefork": args.attempts, "process": args.by_process}
    rates: dict[str, list[float]] = {kind: [] for kind in sizes}
    spent: dict[str, list[float]] = {kind: [] for kind in sizes}
    failed = 0
    before = os.getloadavg()[0]
    for _ in range(args.blocks):
        for kind, attempts in sizes.items():
            rate, seconds, passed = block(kind, attempts, min(args.at_once, attempts))
            rates[kind].append(rate)
            spent[kind].append(seconds)
            failed += attempts - passed
    medians = {kind: statistics.median(each) for kind, each in rates.items()}
    ratio = medians["prefork"] / medians["process"]
    for kind, what in (("prefork", "forked sessions"), ("process", "a process for each session")):
        blocks = ", ".join(f"{rate:.1f}" for rate in rates[kind])
        print(f"{what:28}{medians[kind]:8.1f} attempts a second (blocks of {sizes[kind]}: {blocks})")
    print(f"{'ratio':28}{ratio:8.1f}")
    by_cpu = {kind: statistics.median(each) for kind, each in spent.items()}
    forked, each = (1e3 * by_cpu[kind] for kind in ("prefork", "process"))
    cores = len(os.sched_getaffinity(0))
    print(f"CPU of an attempt: {forked:.0f} ms forked, {each:.0f} ms with a process each, ratio {each / forked:.1f}")
    print(f"{cores} cores without other work: {1e3 * cores / forked:.0f} attempts a second at most")
    print(f"wanted: {WANTED} attempts a second, ratio {WANTED}; attempts without a pass: {failed}; ", end="")
    print(f"load average before and after: {before:.1f}, {os.getloadavg()[0]:.1f}")
    return 1 if failed or ratio < WANTED or medians["prefork"] < WANTED else 0


if __name__ == "__main__":
    sys.exit(main())
