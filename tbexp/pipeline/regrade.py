"""`tbexp stages=[regrade]`: a run's stored final states, judged again by the tasks' checks as they are now.

Decided here: which attempts are judged again and what comes of it. Nothing is played again: no policy, no server. An
attempt that ended by a limit of its own stays failed; one that had no verdict stays so. What a check needs and the
store does not hold (a live session; what the servers said at the start, in attempts of older versions) is told as a
system error, never as a failure. The run's own files stay as they are: the new verdicts stand in `regrade/`.

    regrade/<policy>.jsonl   every attempt with its new verdict, in the form of the attempt store
    regrade/changed.jsonl    the attempts whose verdict differs: uid, attempt, policy, before, after, message
    regrade/summary.json     the figures of the new verdicts, of evaluated policies
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from tbexp.attempts import AttemptRow, AttemptStore
from tbexp.config.checks import named_keys
from tbexp.config.schema import Config
from tbexp.config.secrets import provide
from tbexp.config.whole import write_whole
from tbexp.episode import open_judge
from tbexp.episode.loop import OWN_LIMITS
from tbexp.errors import Problem, UserError, WorldError, WorldFailure, counted, one_line
from tbexp.grading import Grader, Judge, TestContext, Verdict, open_grader
from tbexp.pipeline.evaluated import partial
from tbexp.pipeline.files import write_json
from tbexp.pipeline.inputs import Inputs
from tbexp.pipeline.progress import Progress
from tbexp.tasks import Task

AT_ONCE = 256  # trajectories held in memory
FILL = (
    "regrade/changed.jsonl names the attempts that lost their verdict and why: mend the check or the judge, or bring "
    "back the trajectories that are gone, and regrade again; attempts that never had one are made by the run's stage "
    "evaluate"
)


class _NoSession:
    """A check that calls a server asks a session that has long ended."""

    async def server_tool(self, server: str, tool: str, arguments: Mapping[str, Any]) -> str:
        raise WorldError("no_session", f"the check calls {server}.{tool}, and a stored state has no live session")


def regrade(config: Config, *, run_dir: Path, inputs: Inputs | None = None) -> None:
    """Judges the attempts in `run_dir` again. UserError where there are none; WorldFailure where evaluated attempts are
    left without a verdict (from the summary), or any others have lost theirs, and evaluation.allow_partial is false.
    """
    folders = stores_of(run_dir)
    if not folders:
        raise UserError(
            Problem(
                f"there are no attempts in {run_dir}",
                "hydra.run.dir",
                "give the settings of the run whose attempts are to be judged again, or hydra.run.dir=<its folder>",
            )
        )
    inputs = inputs or Inputs()
    held_out = inputs.held_out(config)
    tasks = {task.uid: task for task in [*inputs.candidates(config), *held_out]}
    with Progress() as progress:
        if config.dry_run:
            progress.say(f"would judge the attempts of {', '.join(folders)} again; nothing was written")
            return
        asked = [variable for key, variable in named_keys(config) if key.startswith("judge.")]
        provide(config.launcher.secrets_file, asked)
        out = run_dir / "regrade"
        out.mkdir(exist_ok=True)
        changed: list[dict[str, Any]] = []
        table, evaluated = [], {}
        for name, folder in folders.items():
            with AttemptStore(folder, read_only=True) as store:
                before = store.rows()
                after = asyncio.run(judged_again(config, store, before, tasks))
            write_whole(
                out / f"{name}.jsonl",
                "".join(json.dumps(row.as_dict(), ensure_ascii=False) + "\n" for row, _ in after),
            )
            different = [
                change(name, old, new, message)
                for old, (new, message) in zip(before, after, strict=True)
                if (old.passed, old.reward) != (new.passed, new.reward)
            ]
            changed += different
            kinds = Counter(f"{told(row['before'])} -> {told(row['after'])}" for row in different)
            what = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"
            table.append((name, str(len(before)), str(len(different)), what))
            if name not in ("probe", "reference"):
                evaluated[name] = [row for row, _ in after if row.uid in {task.uid for task in held_out}]
        write_whole(out / "changed.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in changed))
        progress.table("judged again", ["policy", "attempts", "other verdict", "what changed"], table)
        progress.say(f"new verdicts: {os.path.relpath(out)}")
        if evaluated:
            from tbexp.evaluation import summarise

            summary = summarise(
                evaluated,
                attempts=config.evaluation.attempts,
                tasks={task.uid: task.domain for task in held_out},
                settings=config.evaluation,
                advice=FILL,
            )
            write_json(out / "summary.json", summary)
            for name, found in summary["policies"].items():
                figure, every = found["pass_at_1"]["value"], found["observed_all_k"]["tasks"]
                progress.say(f"{name}: pass@1 {figure:.1%}, every time {counted(every, 'task')}{partial(found)}")
        lost = [row for row in changed if row["after"] is None]
        if lost and not config.evaluation.allow_partial:
            each = ", ".join(f"{count} of {name}" for name, count in Counter(row["policy"] for row in lost).items())
            first = lost[0]["system_error"]
            raise WorldFailure(
                f"attempts have lost their verdict: {each}; the first, {lost[0]['uid']} attempt {lost[0]['attempt']}: "
                f"{first['kind']}, {one_line(first['message'])}\n{FILL}, or set evaluation.allow_partial=true"
            )


def stores_of(run_dir: Path) -> dict[str, Path]:
    """{name: folder} of the attempts of a run: its screen, its probe, its evaluated policies."""
    places = [("reference", run_dir / "reference"), ("probe", run_dir / "probe")]
    if (run_dir / "evaluate").is_dir():
        places += [(path.name, path) for path in sorted((run_dir / "evaluate").iterdir()) if path.is_dir()]
    return {name: path for name, path in places if any(path.glob("attempts*.jsonl"))}


async def judged_again(
    config: Config, store: AttemptStore, rows: Sequence[AttemptRow], tasks: Mapping[str, Task]
) -> list[tuple[AttemptRow, str]]:
    """Each row with its new verdict, and what the check says."""
    async with AsyncExitStack() as stack:
        judge = open_judge(config.judge, config.prices)
        if (close := getattr(judge, "close", None)) is not None:
            stack.push_async_callback(close)
        grader = await stack.enter_async_context(open_grader(config.sandbox))
        found: list[tuple[AttemptRow, str]] = []
        for start in range(0, len(rows), AT_ONCE):
            part = rows[start : start + AT_ONCE]
            found += await asyncio.gather(*(_again(row, store, tasks.get(row.uid), grader, judge) for row in part))
    return found


async def _again(
    row: AttemptRow, store: AttemptStore, task: Task | None, grader: Grader, judge: Judge
) -> tuple[AttemptRow, str]:
    if not row.clean or row.finish_reason in OWN_LIMITS:
        return row, ""
    trajectory = store.trajectory(row)
    lacking = None
    if task is None:
        lacking = "the task is not among the tasks of this config"
    elif trajectory is None:
        lacking = "its final state was not kept, or cannot be read"
    elif "init_result" not in trajectory and "init_result" in task.test_code:
        lacking = "the check asks what the servers said at the start, which was not kept"
    if lacking is not None or task is None or trajectory is None:
        return with_verdict(row, Verdict(None, 0.0, WorldError("not_kept", lacking or ""))), lacking or ""
    verdict = await grader.grade(
        task.test_code, context_of(task, trajectory), judge=judge, fixtures=task.fixtures, servers=_NoSession()
    )
    return with_verdict(row, verdict), verdict.message


def with_verdict(row: AttemptRow, verdict: Verdict) -> AttemptRow:
    error = verdict.system_error
    return replace(
        row,
        passed=verdict.passed,
        reward=verdict.reward,
        system_error=None if error is None else {"kind": error.kind, "message": error.message[:2000]},
        judged=verdict.judged if error is None else row.judged,
    )


def context_of(task: Task, trajectory: Mapping[str, Any]) -> TestContext:
    """What the check saw at the end of the attempt, from what was kept of it."""
    messages = list(trajectory["messages"])
    own = messages[len(task.system_messages()) + len(task.history or ()) :]
    texts = [(m["content"], (m.get("metadata") or {}).get("tag", "text")) for m in own if speaks(m)]
    every = [(m["content"], (m.get("metadata") or {}).get("tag", "text")) for m in messages if speaks(m)]
    return TestContext(
        response=next((str(text) for text, tag in reversed(every) if tag == "text"), ""),
        tool_direct_responses=[str(text) for text, tag in texts if tag == "direct"],
        effects=dict(trajectory.get("effects") or {}),
        tool_calls=calls_of(own),
        messages=messages,
        init_result=dict(trajectory.get("init_result") or {}),
        session_id=str(trajectory.get("session_id") or f"{task.uid}#regrade"),
    )


def speaks(message: Mapping[str, Any]) -> bool:
    return bool(message.get("T") == "Text" and message.get("role") == "assistant")


def calls_of(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every call with its response, in order; a call that ended the turn has an empty one, others without are left
    out: they were never made.
    """
    answers = {m["id"]: m for m in messages if m.get("T") == "ToolResponse"}
    found = []
    for message in messages:
        for call in message.get("tool_calls") or () if message.get("T") == "ParallelToolCall" else ():
            answer = answers.get(call["id"])
            if answer is None and (call.get("metadata") or {}).get("is_end_turn_tool"):
                answer = {"T": "ToolResponse", "name": call["name"], "content": "", "id": call["id"], "metadata": {}}
            if answer is not None:
                found.append({"tool_call": dict(call), "tool_response": dict(answer)})
    return found


def change(name: str, old: AttemptRow, new: AttemptRow, message: str) -> dict[str, Any]:
    return {
        "policy": name,
        "uid": old.uid,
        "attempt": old.attempt,
        "before": old.passed,
        "after": new.passed,
        "reward": new.reward,
        "system_error": None if new.system_error is None else dict(new.system_error),
        "message": message[:2000],
    }


def told(passed: bool | None) -> str:
    return "no verdict" if passed is None else "passed" if passed else "failed"
