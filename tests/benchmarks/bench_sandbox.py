"""What a session, a call and a grading cost: `python tests/benchmarks/bench_sandbox.py [--server FILE] [--sessions N]`.

Forked sessions are compared with a process per session, in one run on one machine. CPU is of all processes: ours, the
launcher and the server.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbexp.config.schema import SandboxConfig
from tbexp.grading import TestContext, open_grader
from tbexp.sandbox import Sandbox, Server, open_sandbox
from tbexp.sandbox.launch import Launcher

SHOP = Path(__file__).parent.parent / "sandbox" / "servers" / "shop.py"
WORLD: dict[str, Any] = {"it": {"stock": {"TP-1": 2}}}
CALL = ("restock", {"sku": "TP-1", "n": 1})
TEST = """
from thinkingbox.common import Judge, TestContext
def test(x: TestContext, judge: Judge):
    assert x.effects["it"]["stock"]["TP-1"] == 3, "wrong stock"
__tb_test_fn = test
"""


@dataclass
class Measured:
    create_ms: float
    per_second: float
    episode_ms: float
    session_cpu_ms: float
    call_cpu_ms: float
    private_mib: float


def cpu(launcher: Launcher | None) -> float:
    """Seconds of CPU of this process, the launcher and its ended children."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    seconds = own.ru_utime + own.ru_stime
    if launcher is not None and launcher._process is not None:
        # In ticks, as the kernel gives it: only sums over many sessions are meant to be read.
        fields = Path(f"/proc/{launcher._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        seconds += sum(map(int, fields[11:15])) / 100
    return seconds


async def settled(sandbox: Sandbox) -> None:
    for backend in sandbox._backends.values():
        if backend.ending:
            await asyncio.wait(set(backend.ending))
    await asyncio.sleep(0.05)


def private_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


async def measure(kind: str, server: Server, sessions: int) -> Measured:
    async with open_sandbox(SandboxConfig(name=kind, kind=kind), {"it": server}) as sandbox:  # type: ignore[arg-type]

        async def session(calls: int) -> float:
            start = time.perf_counter()
            async with sandbox.session(WORLD, [CALL[0]]) as live:
                created = time.perf_counter() - start
                for _ in range(calls):
                    await live.call(*CALL)
                if calls:
                    await live.effects()
            return created

        for _ in range(3):
            await session(1)
        await settled(sandbox)
        launcher = sandbox._backends["it"].launcher

        async def spent(do: Callable[[], Awaitable[Any]]) -> float:
            before = cpu(launcher)
            await do()
            await settled(sandbox)
            return cpu(launcher) - before

        created: list[float] = []

        async def one_after_another(calls: int, n: int) -> None:
            for _ in range(n):
                created.append(await session(calls))

        bare = await spent(lambda: one_after_another(0, sessions))
        create_ms = statistics.median(created) * 1000
        with_calls = await spent(lambda: one_after_another(50, max(3, sessions // 10)))
        call_cpu = (with_calls / max(3, sessions // 10) - bare / sessions) / 51

        start = time.perf_counter()
        for _ in range(max(3, sessions // 5)):
            await session(6)
        episode_ms = (time.perf_counter() - start) / max(3, sessions // 5) * 1000

        places = asyncio.Semaphore(16)

        async def limited() -> None:
            async with places:
                await session(0)

        start = time.perf_counter()
        await asyncio.gather(*(limited() for _ in range(sessions)))
        per_second = sessions / (time.perf_counter() - start)

        async with sandbox.session(WORLD, [CALL[0]]):
            assert launcher is not None
            memory = private_mib(next(iter(launcher._children)))
        return Measured(create_ms, per_second, episode_ms, bare / sessions * 1000, call_cpu * 1000, memory)


async def grading(gradings: int) -> tuple[float, float]:
    """Median wall and mean CPU of one grading, milliseconds."""
    context = TestContext(
        effects={"it": {"stock": {"TP-1": 3}}}, messages=[{"T": "Text", "role": "user", "content": "x"}]
    )
    async with open_grader(SandboxConfig(name="x", kind="prefork")) as grader:
        for _ in range(5):
            assert (await grader.grade(TEST, context)).passed
        before = cpu(grader._launcher)
        walls = []
        for _ in range(gradings):
            start = time.perf_counter()
            await grader.grade(TEST, context)
            walls.append(time.perf_counter() - start)
        await asyncio.sleep(0.05)
        return statistics.median(walls) * 1000, (cpu(grader._launcher) - before) / gradings * 1000


async def compare(server: Server, sessions: int) -> None:
    forked = await measure("prefork", server, sessions)
    fresh = await measure("process", server, max(8, sessions // 40))
    rows = [
        ("session create, median ms", forked.create_ms, fresh.create_ms, fresh.create_ms / forked.create_ms),
        ("sessions/s, 16 at once", forked.per_second, fresh.per_second, forked.per_second / fresh.per_second),
        ("episode of 6 calls, ms", forked.episode_ms, fresh.episode_ms, fresh.episode_ms / forked.episode_ms),
        (
            "open + close, CPU ms",
            forked.session_cpu_ms,
            fresh.session_cpu_ms,
            fresh.session_cpu_ms / forked.session_cpu_ms,
        ),
        ("tool call, CPU ms", forked.call_cpu_ms, fresh.call_cpu_ms, fresh.call_cpu_ms / forked.call_cpu_ms),
        ("private memory idle, MiB", forked.private_mib, fresh.private_mib, fresh.private_mib / forked.private_mib),
    ]
    out = sys.stdout.write
    out(f"{'':28}{'prefork':>10}{'process':>10}{'ratio':>8}\n")
    for name, ours, theirs, ratio in rows:
        out(f"{name:28}{ours:10.2f}{theirs:10.2f}{ratio:8.1f}\n")
    wall, used = await grading(sessions)
    out(f"grading: {wall:.2f} ms (median), {used:.2f} ms of CPU\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, default=SHOP)
    parser.add_argument("--sessions", type=int, default=400)
    args = parser.parse_args()
    server = Server("it", (sys.executable, str(args.server)), {}, str(args.server.parent))
    asyncio.run(compare(server, args.sessions))


if __name__ == "__main__":
    main()
