"""What sessions cost, forked against a process each: ratios, for the sample server and for one of a dataset.

    python tests/benchmarks/bench_sandbox.py [--root DATA --python SERVER_PYTHON] [--blocks N] [--long N]

Both kinds run in one process on one machine and take turns, block by block, so that whatever else the machine does
falls on both. Times are medians over all blocks. CPU is that of this process, the launcher and the servers. A session
is opened (init included) for a task of the dataset; an episode is a session with the task's recorded calls and effects.
A server of the public benchmark is measured with an empty knowledge base and with the embedded search, to which each
session uploads its documents on init. Memory and open files are looked at after thousands of sessions (--long).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from replay_benchmark import LIST, recorded, without_sources

from tbexp.config.schema import SandboxConfig
from tbexp.grading import Grader, TestContext, open_grader
from tbexp.interpret.messages import ToolCall
from tbexp.samples import data_root, solution
from tbexp.sandbox import Sandbox, Server, open_sandbox, read_servers
from tbexp.sandbox.launch import Launcher
from tbexp.tasks import Task, load_tasks, read_selectors

AT_ONCE = 16
PER_BLOCK = {"prefork": 40, "process": 3}  # sessions one after the other, in a block
BURST = {"prefork": 160, "process": 16}  # sessions AT_ONCE at a time, in a block


@dataclass
class Measured:
    """Seconds; lists hold one figure for each session, rates one for each block."""

    create: list[float] = field(default_factory=list)
    episode: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # of opening and closing a session, one figure for each block
    private_mib: float = 0.0


@dataclass(frozen=True)
class Subject:
    """What is measured: tasks of one server, with their recorded calls."""

    name: str
    tasks: Sequence[Task]
    calls: Sequence[Sequence[ToolCall]]
    servers: dict[str, Server]
    search: str
    wanted: float  # how many times faster a session is to be created


def sample() -> Subject:
    tasks = load_tasks(data_root(), "agent")[:24]
    servers = read_servers(data_root() / "servers" / "servers.yaml", python=sys.executable)
    calls = [[call for reading in solution(task.uid) for call in reading.calls] for task in tasks]
    return Subject("sample server", tasks, calls, servers, "none", 50)


def of_dataset(root: Path, python: str, server: str) -> list[Subject]:
    selectors = read_selectors(root / LIST)
    tasks = [t for t in load_tasks(root, "think", selectors) if server in t.server_names()][:24]
    servers = read_servers(root / "servers" / "servers.yaml", python=python)
    calls = [recorded(task) for task in tasks]
    bare = [without_sources(task) for task in tasks]
    return [
        Subject(f"{server}, no knowledge base", bare, calls, servers, "none", 50),
        Subject(f"{server}, knowledge base uploaded", tasks, calls, servers, "embedded", 12),
    ]


def configured(kind: str, subject: Subject) -> SandboxConfig:
    # A busy machine takes minutes to start 16 processes at once; that is measured here, not refused.
    return SandboxConfig(name=kind, kind=kind, search=subject.search, start_timeout_s=600.0)  # type: ignore[arg-type]


def launcher_of(sandbox: Sandbox) -> Launcher | None:
    return next((backend.launcher for backend in sandbox._backends.values() if backend.launcher), None)


def cpu(launcher: Launcher | None) -> float:
    """Seconds of CPU of this process, the launcher and its ended children."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    seconds = own.ru_utime + own.ru_stime
    if launcher is not None and launcher._process is not None:
        # In ticks, as the kernel gives it: only sums over many sessions are meant to be read.
        fields = Path(f"/proc/{launcher._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds


async def settled(sandbox: Sandbox) -> None:
    for backend in sandbox._backends.values():
        if backend.ending:
            await asyncio.wait(set(backend.ending))


def private_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


async def session(sandbox: Sandbox, subject: Subject, number: int, *, calls: bool) -> float:
    """Seconds until the session was open."""
    place = number % len(subject.tasks)
    task = subject.tasks[place]
    start = time.perf_counter()
    async with sandbox.session(task.server_config(), task.scenario.tools) as live:
        created = time.perf_counter() - start
        if calls:
            for call in subject.calls[place]:
                if call.name in live.tools:
                    await live.call(call.name, call.arguments)
            await live.effects()
    return created


async def block(sandbox: Sandbox, subject: Subject, kind: str, first: int, found: Measured) -> None:
    """One turn of one kind."""
    before = cpu(launcher_of(sandbox))
    for number in range(first, first + PER_BLOCK[kind]):
        found.create.append(await session(sandbox, subject, number, calls=False))
    await settled(sandbox)
    found.cpu.append((cpu(launcher_of(sandbox)) - before) / PER_BLOCK[kind])
    for number in range(first, first + PER_BLOCK[kind]):
        start = time.perf_counter()
        await session(sandbox, subject, number, calls=True)
        found.episode.append(time.perf_counter() - start)
    places = asyncio.Semaphore(AT_ONCE)

    async def limited(number: int) -> None:
        async with places:
            await session(sandbox, subject, number, calls=False)

    start = time.perf_counter()
    await asyncio.gather(*(limited(number) for number in range(BURST[kind])))
    found.rate.append(BURST[kind] / (time.perf_counter() - start))
    await settled(sandbox)


async def compare(subject: Subject, blocks: int) -> dict[str, Measured]:
    found = {kind: Measured() for kind in PER_BLOCK}
    async with AsyncExitStack() as stack:
        sandboxes = {}
        for kind in found:
            config = configured(kind, subject)
            sandboxes[kind] = await stack.enter_async_context(open_sandbox(config, subject.servers))
            for number in range(2):
                await session(sandboxes[kind], subject, number, calls=True)
        for number in range(blocks):
            for kind, sandbox in sandboxes.items():
                await block(sandbox, subject, kind, number * PER_BLOCK[kind], found[kind])
        for kind, sandbox in sandboxes.items():
            task = subject.tasks[0]
            async with sandbox.session(task.server_config(), task.scenario.tools):
                launcher = launcher_of(sandbox)
                assert launcher is not None
                found[kind].private_mib = private_mib(next(iter(launcher._children)))
        print(f"{subject.name}: prefork is at level {', '.join(sandboxes['prefork'].levels().values())}")
    return found


def table(found: dict[str, Measured], subject: Subject) -> None:
    ours, theirs = found["prefork"], found["process"]
    print(f"  {'':34}{'prefork':>10}{'process':>10}{'ratio':>8}{'wanted':>8}")
    for name, one, other, wanted in (
        ("create, ms", *(statistics.median(m.create) * 1e3 for m in (ours, theirs)), subject.wanted),
        (f"sessions/s, {AT_ONCE} at once", statistics.median(ours.rate), statistics.median(theirs.rate), 60),
        ("episode of recorded calls, ms", *(statistics.median(m.episode) * 1e3 for m in (ours, theirs)), 20),
        ("open and close, CPU ms", *(statistics.median(m.cpu) * 1e3 for m in (ours, theirs)), None),
        ("private memory of an idle one, MiB", ours.private_mib, theirs.private_mib, None),
    ):
        ratio = one / other if name.startswith("sessions") else other / one
        wish = f"{wanted:8.0f}" if wanted else ""
        print(f"  {name:34}{one:10.2f}{other:10.2f}{ratio:8.1f}{wish}")


async def drift(subject: Subject, sessions: int) -> None:
    """The last sessions of many against the first, and what this process and the launcher hold."""
    config = configured("prefork", subject)
    async with open_sandbox(config, subject.servers) as sandbox:
        for number in range(20):
            await session(sandbox, subject, number, calls=False)
        await settled(sandbox)
        launcher = launcher_of(sandbox)
        assert launcher is not None and launcher._process is not None
        pids = [os.getpid(), launcher._process.pid]
        before = [held(pid) for pid in pids]
        created = [await session(sandbox, subject, number, calls=False) for number in range(sessions)]
        await settled(sandbox)
        after = [held(pid) for pid in pids]
    first, last = (statistics.median(part) * 1e3 for part in (created[:100], created[-100:]))
    print(f"  {sessions} sessions: median of the first 100 {first:.1f} ms, of the last 100 {last:.1f} ms "
          f"({last / first - 1:+.0%}; wanted: within 25%)")  # fmt: skip
    for name, (files, mib), (files_after, mib_after) in zip(("this process", "launcher"), before, after, strict=True):
        print(f"  {name}: open files {files} -> {files_after}, memory {mib:.1f} -> {mib_after:.1f} MiB")


def held(pid: int) -> tuple[int, float]:
    """Open files and private memory in MiB of a process."""
    gc.collect()
    return len(list(Path(f"/proc/{pid}/fd").iterdir())), private_mib(pid)


async def grading(subject: Subject, gradings: int) -> None:
    """Of real tasks on the real effects of their recorded calls."""
    config = configured("prefork", subject)
    cases: list[tuple[Task, TestContext]] = []
    async with open_sandbox(config, subject.servers) as sandbox, open_grader(config) as grader:
        for task, calls in list(zip(subject.tasks, subject.calls, strict=True))[:8]:
            async with sandbox.session(task.server_config(), task.scenario.tools) as live:
                for call in calls:
                    await live.call(call.name, call.arguments)
                cases.append((task, TestContext(effects=await live.effects(), init_result=live.init_result)))
        first = await graded(grader, cases, len(cases))
        walls = await graded(grader, cases, gradings)
    again, once = (statistics.median(part) * 1e3 for part in (walls, first))
    print(f"  grading of a task: {again:.2f} ms, for the first time {once:.2f} ms (wanted: at most 8)")


async def graded(grader: Grader, cases: Sequence[tuple[Task, TestContext]], count: int) -> list[float]:
    walls = []
    for number in range(count):
        task, context = cases[number % len(cases)]
        start = time.perf_counter()
        verdict = await grader.grade(task.test_code, context)
        walls.append(time.perf_counter() - start)
        assert verdict.system_error is None, verdict
    return walls


def main() -> None:
    logging.disable(logging.WARNING)  # a server without a knowledge base has none to tear down, and says so
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="a checkout of the public benchmark's data")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has its servers' packages")
    parser.add_argument("--server", default="sandbox_external_retail")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--long", type=int, default=5000, help="sessions of the look at memory and files; 0: none")
    args = parser.parse_args()
    subjects = [sample()]
    if args.root is not None:
        subjects += of_dataset(args.root, args.python, args.server)
    for subject in subjects:
        load = os.getloadavg()[0]
        table(asyncio.run(compare(subject, args.blocks)), subject)
        if args.long and subject is not subjects[-1]:
            asyncio.run(drift(subject, args.long))
        asyncio.run(grading(subject, 200))
        print(f"  load average before and after: {load:.1f}, {os.getloadavg()[0]:.1f}\n", flush=True)


if __name__ == "__main__":
    main()
