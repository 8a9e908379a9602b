"""Thousands of attempts in one process: `python tests/benchmarks/many_attempts.py [--attempts N] [--at-once N]`.

A scripted policy plays recorded solutions of the sample domain through a whole campaign: server processes, grader,
store. First `--at-once` attempts at the same time, then 507 tasks as often as `--attempts` asks (507 x 20 by default).
Printed are system errors, and the memory and open files of this process, of the servers' launcher and of the grader, at
a tenth of the way and at its end. Exit status 1 when there was a system error.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import io
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tbexp.attempts import AttemptStore
from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder
from tbexp.config.schema import Config
from tbexp.interpret.messages import Message, Reading
from tbexp.pipeline.campaign import run_campaign
from tbexp.pipeline.progress import Progress
from tbexp.pipeline.wanted import FixedNumber
from tbexp.policy import ScriptedPolicy
from tbexp.samples import data_root, solution
from tbexp.sandbox import read_servers
from tbexp.tasks import Task, load_tasks


@dataclass
class Held:
    """What the processes of a campaign hold: open files, and MiB of memory that is no file's."""

    files: list[int]
    mib: list[float]

    def __str__(self) -> str:
        return f"open files {self.files}, memory {[round(mib, 1) for mib in self.mib]} MiB"


class Watching(ScriptedPolicy):
    """Plays recorded solutions, and looks at the processes when so many attempts have begun."""

    def __init__(self, tasks: Sequence[Task], look_at: Sequence[int]):
        self.by_query = {task.query: task.uid.partition("#")[0] for task in tasks}
        self.look_at, self.begun = set(look_at), 0
        self.seen: list[Held] = []
        super().__init__(self.play)

    def play(self, messages: Sequence[Message], seed: int) -> Sequence[Reading]:
        self.begun += 1
        if self.begun in self.look_at:
            self.seen.append(held())
        return solution(self.by_query[messages[-1].content])


def held() -> Held:
    """Of this process and of its children, which live as long as the campaign; sessions are children of those."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # pages that the allocator keeps for later come and go
    pids = [os.getpid(), *children(os.getpid())]
    files = [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids]
    return Held(files, [anonymous_mib(pid) for pid in pids])


def children(pid: int) -> list[int]:
    """Oldest first."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return sorted(int(child) for child in text.split())


def anonymous_mib(pid: int) -> float:
    """Pages that a fork shares for a moment count as before: its parent's private ones do not."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024


def sample(count: int) -> list[Task]:
    """So many tasks: those of the sample domain that their query tells apart, again and again under other names."""
    every = load_tasks(data_root(), "agent")
    queries = [task.query for task in every]
    tasks = [task for task in every if queries.count(task.query) == 1]
    return [replace(tasks[n % len(tasks)], uid=f"{tasks[n % len(tasks)].uid}#{n // len(tasks)}") for n in range(count)]


def campaign(
    tasks: Sequence[Task], attempts: int, at_once: int, look_at: Sequence[int], folder: Path
) -> tuple[Watching, dict[str, int], int]:
    """The policy with what it saw, system errors by kind, and how many attempts passed."""
    policy = Watching(tasks, look_at)
    errors = played(policy, tasks, attempts, at_once, folder)
    with AttemptStore(folder, read_only=True) as store:
        passed = sum(row.passed is True for row in store.rows())
    return policy, errors, passed


def played(
    policy: ScriptedPolicy, tasks: Sequence[Task], attempts: int, at_once: int, folder: Path, *, kind: str = "prefork"
) -> dict[str, int]:
    """Fills the store in `folder`; what is there is kept. System errors by kind. kind: of the sandbox."""
    with opened(conf_folder()) as compose:
        values: dict[str, Any] = plain(compose([]))
    values["policy"]["concurrency"] = at_once
    values["sandbox"]["max_sessions"] = at_once
    values["sandbox"] |= {"kind": kind, "start_timeout_s": 600.0, "call_timeout_s": 600.0, "grade_timeout_s": 600.0}
    servers = read_servers(data_root() / "servers" / "servers.yaml", python=sys.executable)
    with Progress(io.StringIO()) as progress:
        bar = progress.stage("probe", None, "attempts")
        result = run_campaign(
            Config.model_validate(values),
            tasks=tasks, wanted=FixedNumber([task.uid for task in tasks], attempts), retries=0, servers=servers,
            policy=policy, folder=folder, bar=bar,
        )  # fmt: skip
    return dict(result.errors)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=507)
    parser.add_argument("--at-once", type=int, default=200)
    args = parser.parse_args()
    failed = 0
    for tasks, attempts, at_once in ((args.at_once, 1, args.at_once), (args.tasks, args.attempts, 64)):
        total, start = tasks * attempts, time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            look_at = [total // 10, total // 2, total - at_once // 4]  # while sessions come and go
            policy, errors, passed = campaign(sample(tasks), attempts, at_once, look_at, Path(folder))
        seconds = time.perf_counter() - start
        print(
            f"{total} attempts, {at_once} at once: {passed} passed, system errors: {errors or 'none'}; {seconds:.0f} s"
        )
        for when, seen in zip(("a tenth", "half", "the end"), policy.seen, strict=False):
            print(f"  {when:8} {seen}", flush=True)
        failed += sum(errors.values())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
