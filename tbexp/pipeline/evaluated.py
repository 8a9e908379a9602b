"""What the attempts of an evaluation come to: summary.json, the tables beside it, what trackers and the final table say.

Decided here: which figures are told where, and that a figure that cannot be computed (no task has all attempts, say) is
told as such. What figures mean is `evaluation`'s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tbexp.attempts import AttemptRow
from tbexp.config.whole import write_whole
from tbexp.pipeline.context import Context
from tbexp.pipeline.files import write_json
from tbexp.pipeline.prices import spending_of
from tbexp.tasks import Task

UNKNOWN = "unknown"


def evaluate_rows(run: Context, rows_by_policy: Mapping[str, Sequence[AttemptRow]], tasks: Sequence[Task]) -> None:
    """Everything that an evaluation leaves behind, of its attempts. Raises what `evaluation.summarise` raises."""
    summarise(run, rows_by_policy, {task.uid: task.domain for task in tasks})
    write_tallies(run, rows_by_policy, tasks)


def summarise(run: Context, rows_by_policy: Mapping[str, Sequence[AttemptRow]], domains: Mapping[str, str]) -> None:
    """summary.json, the metrics of it, and its lines in the final table."""
    from tbexp.evaluation import summarise as figures_of

    config = run.config
    spending = {
        name: found for name, rows in rows_by_policy.items() if (found := spending_of(config, rows)) is not None
    }
    summary = figures_of(
        rows_by_policy,
        attempts=config.evaluation.attempts,
        tasks=domains,
        settings=config.evaluation,
        spending=spending,
    )
    write_json(run.run_dir / "evaluate" / "summary.json", summary)
    run.tracker.artifact(run.run_dir / "evaluate" / "summary.json", "evaluate")
    k = str(config.evaluation.attempts)
    for name, found in summary["policies"].items():
        run.tracker.metrics(
            evaluation_metrics(found, k, prefix="eval" if name in ("trained", "rows") else f"eval_{name}")
        )
        run.results.append(
            (
                f"evaluate {name}",
                f"pass@1 {percent(found['pass_at_1'])}, pass@{k} {percent(found['pass_at_k'][k])}, "
                f"observed {k}/{k} {percent(found['observed_all_k'])}{partial(found)}",
            )
        )
    if any(found["search"] == "embedded" for found in summary["policies"].values()):
        run.results.append(("search", "embedded: these figures are not comparable with published ones"))
    difference = summary.get("difference")
    if difference:
        run.results.append(
            (
                "difference",
                f"pass@1 {points(difference['pass_at_1'])}, "
                f"observed {k}/{k} {points(difference['observed_all_k'])} points",
            )
        )


def write_tallies(run: Context, rows_by_policy: Mapping[str, Sequence[AttemptRow]], tasks: Sequence[Task]) -> None:
    """evaluate/tasks.jsonl: each task's counts by policy and its content's hash. It is what a comparison of runs needs
    of the attempts, which stay where they were made.
    """
    file, attempts = run.run_dir / "evaluate" / "tasks.jsonl", run.config.evaluation.attempts
    counts: dict[str, dict[str, dict[str, int]]] = {
        task.uid: {name: {"clean": 0, "passed": 0} for name in rows_by_policy} for task in tasks
    }
    for name, rows in rows_by_policy.items():
        for row in rows:
            if row.clean and row.attempt < attempts:
                counts[row.uid][name]["clean"] += 1
                counts[row.uid][name]["passed"] += row.passed is True
    lines = [
        {"uid": task.uid, "domain": task.domain, "content": task.content_hash(), "policies": counts[task.uid]}
        for task in sorted(tasks, key=lambda task: task.uid)
    ]
    write_whole(file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    run.tracker.artifact(file, "evaluate")


def evaluation_metrics(found: Mapping[str, Any], k: str, *, prefix: str) -> dict[str, float]:
    """What a tracker is told; a figure that is unknown or infinite is left out, a tracker takes numbers alone."""
    values: dict[str, Any] = {}
    for name, figure in (
        ("pass_at_1", found["pass_at_1"]),
        (f"pass_at_{k}", found["pass_at_k"][k]),
        ("observed_all_k", found["observed_all_k"]),
    ):
        values[f"{prefix}/{name}"] = figure["value"]
        for side in ("low", "high"):
            values[f"{prefix}/{name}_{side}"] = figure.get(side)
    values[f"{prefix}/tasks_passed_every_time"] = found["observed_all_k"]["tasks"]
    cost = found.get("cost") or {}
    for name in ("campaign_usd", "per_passed_attempt_usd", "per_reliable_task_usd"):
        values[f"{prefix}/cost_{name}"] = cost.get(name)
    for domain, part in found.get("by_domain", {}).items():
        for name in ("pass_at_1", "observed_all_k"):
            values[f"{prefix}/{name}/{domain}"] = part[name]["value"]
    values[f"{prefix}/coverage"] = found["coverage"]["share"]
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def percent(figure: Mapping[str, Any]) -> str:
    if figure["value"] is None:
        return UNKNOWN
    if figure.get("low") is None:
        return f"{figure['value']:.1%}"
    return f"{figure['value']:.1%} [{figure['low']:.1%}, {figure['high']:.1%}]"


def points(figure: Mapping[str, Any]) -> str:
    if figure["value"] is None:
        return UNKNOWN
    if figure.get("low") is None:
        return f"{100 * figure['value']:+.1f}"
    return f"{100 * figure['value']:+.1f} [{100 * figure['low']:+.1f}, {100 * figure['high']:+.1f}]"


def partial(found: Mapping[str, Any]) -> str:
    """What stands behind figures of an incomplete evaluation; nothing behind complete ones."""
    if not found["partial"]:
        return ""
    coverage, k = found["coverage"], found["attempts"]
    missing = coverage["missing"] - coverage["system_errors"]
    text = f"; PARTIAL: {coverage['clean']} of {coverage['expected']} attempts ({coverage['share']:.1%}) have a verdict"
    text += f", {coverage['system_errors']} are system errors, {missing} are missing"
    whole = found["observed_all_k"]["complete_tasks"]
    return f"{text}; {whole} of {found['tasks']} tasks have all {k}, which pass@{k} and {k}/{k} are of"
