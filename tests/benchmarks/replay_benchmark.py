"""Does every task of a ThinkingBox dataset run here? Its recorded calls are replayed, and nothing at all is done.

    python tests/benchmarks/replay_benchmark.py --root DATA --python SERVER_PYTHON [--list FILE] [--out DIR]

Each task is attempted twice: by a scripted agent that makes the calls of the task's `golden_test_case` in order and is
done, and by one that is done at once. Rubric questions are answered with yes, so that the state check decides. Printed
is a table by domain and, for each task that the recorded calls do not solve, why. `--out` gets verdicts by uid, no text
of a task. Nothing is trained and no model is asked.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import hashlib
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tbexp.config.schema import Limits, SandboxConfig
from tbexp.episode import Attempt, ScriptedJudge, World, run_attempt
from tbexp.grading import open_grader
from tbexp.interpret.messages import Reading, ToolCall
from tbexp.policy import ScriptedPolicy
from tbexp.sandbox import open_sandbox, read_servers
from tbexp.tasks import Task, is_benchmark, load_tasks, read_selectors

LIST = "releases/thinkingbox_bench_v1/testlist_thinkingbox_bench_v1.yaml"
HYDRATIONS = Path(__file__).parent.parent / "tasks" / "golden" / "hydration.json"
DONE = Reading("<DONE>")
LIMITS = Limits(actions=200, tokens=1_000_000)


def recorded(task: Task) -> list[ToolCall]:
    """The calls of the task's own solution, over all of its servers."""
    found: list[ToolCall] = []
    for server in task.server_config().values():
        golden = (server or {}).get("golden_test_case") or {}
        for call in golden.get("tool_interactions", ()):
            found.append(ToolCall(call["tool"], call.get("parameters") or {}, f"call_{len(found)}"))
    return found


def without_sources(task: Task) -> Task:
    """The task with no documents to search, for a machine without a search server: search calls then fail."""
    world = {name: {**state, "sources": []} for name, state in task.scenario.world_state.items()}
    return dataclasses.replace(task, scenario=dataclasses.replace(task.scenario, world_state=world))


async def play(tasks: Sequence[Task], world: World, concurrency: int) -> dict[str, dict[str, Attempt]]:
    """Attempts by agent and uid."""
    done: dict[str, dict[str, Attempt]] = {"recorded": {}, "idle": {}}
    queue = iter([(agent, task) for task in tasks for agent in done])

    async def worker() -> None:
        for agent, task in queue:
            calls = recorded(task) if agent == "recorded" else []
            policy = ScriptedPolicy([*(Reading("", (call,)) for call in calls), DONE])
            done[agent][task.uid] = await run_attempt(
                task, attempt=0, seed=1, policy=policy, world=world, limits=LIMITS
            )
            total = sum(map(len, done.values()))
            if total % 100 == 0:
                print(f"{total} of {2 * len(tasks)} attempts", file=sys.stderr)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())
    return done


def verdict(attempt: Attempt) -> str:
    if attempt.system_error is not None:
        return f"system error: {attempt.system_error.kind}"
    return "passed" if attempt.passed else "failed"


def why(attempt: Attempt) -> str:
    """What went wrong, and what the tools said to the recorded calls that were no success."""
    if attempt.system_error is not None:
        return attempt.system_error.message
    return str((attempt.trajectory.get("verdict") or {}).get("message", ""))


def table(tasks: Sequence[Task], done: dict[str, dict[str, Attempt]]) -> str:
    by_domain: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        by_domain[task.domain].append(task)
    rows = []
    for domain, mine in [*sorted(by_domain.items()), ("all", list(tasks))]:
        counts = {agent: Counter(verdict(found[t.uid]) for t in mine) for agent, found in done.items()}
        errors = [sum(n for v, n in counts[agent].items() if v.startswith("system")) for agent in done]
        rows.append((domain, len(mine), counts["recorded"]["passed"], counts["idle"]["passed"], sum(errors)))
    head = f"{'domain':32}{'tasks':>7}{'recorded calls pass':>22}{'doing nothing passes':>23}{'system errors':>16}"
    return "\n".join([head, *(f"{a:32}{b:7}{c:22}{d:23}{e:16}" for a, b, c, d, e in rows)])


def differently_hydrated(tasks: Sequence[Task]) -> tuple[int, list[str]]:
    """Of how many tasks the reference's hydration is recorded (tests/tasks/golden), and what differs from it."""

    def mark(value: Any) -> str:
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"),
                                                               ensure_ascii=False)  # fmt: skip
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    known = {row["uid"]: row for row in json.loads(HYDRATIONS.read_text(encoding="utf-8"))["tasks"]}
    differ: list[str] = []
    for task in tasks:
        own = {
            "query": mark(task.query),
            "user_context": mark(task.user_context or ""),
            "test_code": mark(task.test_code),
            "server_config": mark(task.server_config()),
            "server_order": list(task.server_names()),
            "tools": mark([tool.name for tool in task.scenario.tools]),
            "bot_instructions": mark(task.scenario.bot_instructions or ""),
            "system_instructions": mark(task.agent.system_instructions),
            "max_user_sim_turns": task.max_user_sim_turns,
            "max_agent_sim_turns": task.max_agent_sim_turns,
            "golden_calls": len(recorded(task)),
        }
        row = known.get(task.uid)
        differ += [f"{task.uid} {name}" for name, value in own.items() if row is not None and row[name] != value]
    return sum(task.uid in known for task in tasks), differ


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="folder that holds dataset/ and servers/")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the servers' packages")
    parser.add_argument("--list", default=LIST, help="test list, relative to the root")
    parser.add_argument("--agent", default="think")
    parser.add_argument("--kind", default="prefork", choices=["prefork", "process"])
    parser.add_argument("--search", default="embedded", choices=["embedded", "external", "none"])
    parser.add_argument("--limit", type=int, help="only the first tasks")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--out", type=Path, help="folder for verdicts.jsonl")
    args = parser.parse_args()

    start = time.perf_counter()
    tasks = load_tasks(args.root, args.agent, read_selectors(args.root / args.list)[: args.limit])
    print(f"{len(tasks)} tasks hydrated in {time.perf_counter() - start:.1f} s; "
          f"{sum(map(is_benchmark, tasks))} of them are known to the benchmark guard")  # fmt: skip
    count, differ = differently_hydrated(tasks)
    print(f"{count} hydrations of the reference are recorded; what differs: {', '.join(differ) or 'nothing'}")
    settings: dict[str, Any] = {"name": args.kind, "kind": args.kind}
    if args.search == "none":
        tasks = [without_sources(task) for task in tasks]
    else:
        settings["search"] = args.search
    servers = read_servers(args.root / "servers" / "servers.yaml", python=args.python)
    config = SandboxConfig(**settings)
    start = time.perf_counter()
    async with open_sandbox(config, servers) as sandbox, open_grader(config) as grader:
        world = World(sandbox, grader, user=None, judge=ScriptedJudge({"": True}))
        done = await play(tasks, world, args.concurrency)
        levels = sandbox.levels()
    print(f"{2 * len(tasks)} attempts in {time.perf_counter() - start:.0f} s; servers are started by: {levels}\n")
    print(table(tasks, done))
    wrong = [uid for uid, attempt in done["recorded"].items() if not attempt.passed]
    for uid in wrong:
        print(f"\n{uid}: {verdict(done['recorded'][uid])}\n  {why(done['recorded'][uid])[:600]}")
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        with (args.out / "verdicts.jsonl").open("w", encoding="utf-8") as stream:
            for task in tasks:
                row = {"uid": task.uid, **{agent: verdict(found[task.uid]) for agent, found in done.items()}}
                stream.write(json.dumps(row) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
