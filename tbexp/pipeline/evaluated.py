"""What the attempts of an evaluation come to: summary.json, the tables beside it, what trackers and the last table say.

Decided here: which figures are told where, and that a figure that cannot be computed (no task has all attempts, say) is
told as such. What figures mean is `evaluation`'s.

    evaluate/summary.json       all figures
    evaluate/groups.csv         the headline figures of every domain, scenario and tag
    evaluate/tasks.jsonl        each task's counts
    evaluate/tb_agg-<policy>.*  the reference's own aggregation, with evaluation.tb_agg=true
"""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tbexp.attempts import AttemptRow, AttemptStore, to_tb_infer_row
from tbexp.config.schema import Fields
from tbexp.config.whole import write_whole
from tbexp.errors import counted
from tbexp.pipeline.context import Context
from tbexp.pipeline.export import as_tb_infer
from tbexp.pipeline.files import write_json
from tbexp.pipeline.prices import faults_of, spending_of, with_besides
from tbexp.reporting.partial import covered, is_partial, marked, percent_of
from tbexp.tasks import Task

log = logging.getLogger(__name__)

UNKNOWN = "unknown"
PARTIAL = "tbexp.partial"  # a tracker's tag
GROUPINGS = ("domain", "scenario", "tag")
FILL = "run the same command again to fill the gaps"  # what to do about missing attempts
FILL_ROWS = (
    "add the missing attempts to evaluation.rows, set evaluation.attempts to what the rows hold of each task, name in "
    "tasks.held_out only tasks that they hold"
)


def evaluate_rows(run: Context, rows_by_policy: Mapping[str, Sequence[AttemptRow]], tasks: Sequence[Task]) -> None:
    """Everything that an evaluation leaves behind, of its attempts. Raises what `evaluation.summarise` raises."""
    summary = summarise(run, rows_by_policy, tasks)
    if run.config.evaluation.tb_agg:
        for name, rows in rows_by_policy.items():
            summary["policies"][name]["tb_agg"] = write_tb_agg(run, name, rows)
    folder, k = run.run_dir / "evaluate", str(run.config.evaluation.attempts)
    write_json(folder / "summary.json", summary)
    write_groups(folder / "groups.csv", summary, k)
    for name in ("summary.json", "groups.csv"):
        run.tracker.artifact(folder / name, "evaluate")
    tell(run, summary, k)
    write_tallies(run, rows_by_policy, tasks)


def forget_figures(folder: Path) -> None:
    """Removes what an earlier evaluation of this run left here: its figures are not those of the one that begins, and
    would stand in a report of this run if it never ended.
    """
    for pattern in ("summary.json", "groups.csv", "tasks.jsonl", "tb_agg-*"):
        for file in folder.glob(pattern):
            file.unlink()


def summarise(
    run: Context, rows_by_policy: Mapping[str, Sequence[AttemptRow]], tasks: Sequence[Task]
) -> dict[str, Any]:
    """The dictionary of summary.json, costs included; what the price table lacks is a warning."""
    from tbexp.evaluation import summarise as figures_of

    config = run.config
    spending = {}
    for name, rows in rows_by_policy.items():
        counted = [row for row in rows if row.attempt < config.evaluation.attempts]  # the others are in no figure
        if (found := spending_of(config, counted)) is not None:
            spending[name] = found
    for fault in faults_of(config, spending):
        log.warning("evaluate: %s", fault)
    if "trained" in spending:
        spending["trained"] = with_besides(run, spending["trained"])
    return figures_of(
        rows_by_policy,
        attempts=config.evaluation.attempts,
        tasks={task.uid: task.domain for task in tasks},
        settings=config.evaluation,
        groups={
            "scenario": {task.uid: task.scenario.name for task in tasks},
            "tag": {task.uid: tags_of(task) for task in tasks},
        },
        spending=spending,
        advice=FILL_ROWS if config.evaluation.rows else FILL,
    )


def tags_of(task: Task) -> list[str]:
    """As they stand in the dataset; the domain is a grouping of its own."""
    tags = task.tags
    kind = [f"eval:{tags.eval_type}"] if tags.eval_type else []
    return [*tags.labels, *(f"category:{value}" for value in tags.category), *kind]


def tell(run: Context, summary: Mapping[str, Any], k: str) -> None:
    """The figures for the tracker and the last table."""
    policies = summary["policies"]
    run.tracker.tag(PARTIAL, told_partial(policies))
    for name, found in policies.items():
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
        if beyond := found["coverage"]["beyond"]:
            rows = counted(beyond, "row")
            verb = _are(beyond)
            log.warning("evaluate %s: %s of attempts beyond evaluation.attempts=%s %s left out", name, rows, k, verb)
        if (agg := found.get("tb_agg")) is not None:
            run.results.append((f"tb agg {marked(name, found)}", told_agg(agg)))
    claims = {name: found["claimed_success"] for name, found in policies.items()}
    told = [
        f"{marked(name, policies[name])} {percent(share_of(each))}"
        for name, each in claims.items()
        if each["share"] is not None
    ]
    if told:
        run.results.append(("claimed, not done", f"{', '.join(told)} of attempts"))
    if any(found["search"] == "embedded" for found in policies.values()):
        run.results.append(("search", "embedded: these figures are not comparable with published ones"))
    costs = {name: found["cost"] for name, found in policies.items() if found["cost"] is not None}
    run.results += [(f"cost {marked(name, policies[name])}", told_cost(cost)) for name, cost in costs.items()]
    for caution in dict.fromkeys(c for cost in costs.values() for key, c in cost.items() if key.startswith("caution")):
        run.results.append(("", caution))
    difference = summary.get("difference")
    if difference:
        run.results.append(
            (
                "difference (partial)" if difference["partial"] else "difference",
                f"pass@1 {points(difference['pass_at_1'])}, "
                f"observed {k}/{k} {points(difference['observed_all_k'])} points",
            )
        )


def told_partial(policies: Mapping[str, Any]) -> str:
    """For a tracker: `no`, or what each partial policy covers."""
    return "; ".join(f"{name}: {covered(found)}" for name, found in policies.items() if is_partial(found)) or "no"


def told_cost(cost: Mapping[str, Any]) -> str:
    """US dollars; what is not known is told as a lower bound."""
    from tbexp.reporting.tables import dollars

    def usd(value: float) -> str:
        return f"{value:.2f}" if value >= 0.01 or not value else dollars(value)

    if cost["campaign_usd"] is None:
        lacking = [_lacking(role, *cost["untold"].get(role, (0, 0))) for role in cost["unpriced"]]
        return f"at least US$ {usd(cost['at_least_usd'])}, which is without the {' and the '.join(lacking)}"
    text = f"US$ {usd(cost['campaign_usd'])}"
    for key, what in (("per_passed_attempt_usd", "passed attempt"), ("per_reliable_task_usd", "reliable task")):
        value = cost[key]
        told = "" if value == "inf" else f"{value:.3f}" if value >= 0.01 or not value else dollars(value)
        text += f", {told} per {what}" if told else f", no {what}"
    if cost["besides_usd"] is None:
        return text
    besides = ", ".join(f"{name} {usd(value)}" for name, value in cost["besides_usd"].items())
    if cost["total_usd"] is not None:
        return f"{text}; with {besides}: {usd(cost['total_usd'])}"
    return f"{text}; no total with {besides}: {'; '.join(cost['besides_unknown'])}"


def _lacking(role: str, n: int, of: int) -> str:
    return f"{role}'s tokens in {n} of {of} attempts" if n else role


def told_agg(metrics: Mapping[str, Any]) -> str:
    if metrics["mean_pass"] is None:
        return "no rows"
    low, high = metrics["mean_pass_ci_low"], metrics["mean_pass_ci_high"]
    text = f"{counted(metrics['num_tests'], 'test')}, {counted(metrics['total_runs'], 'run')}: "
    text += f"mean {metrics['mean_pass']:.2%} "
    text += f"[{low:.2%}, {high:.2%}]"
    for name, key in (("pass@", "unbiased_pass_at_k"), ("pass^", "pass_power_k")):
        text += "".join(f", {name}{size} {value:.2%}" for size, value in metrics[key][-1:])
    return text


# -- the reference's aggregation


def write_tb_agg(run: Context, name: str, rows: Sequence[AttemptRow]) -> dict[str, Any]:
    """Writes it whole as JSON and its tasks as CSV; returns its metrics."""
    from tbexp.evaluation import tb_agg

    found, folder = tb_agg(_reference_rows(run, name, rows)), run.run_dir / "evaluate"
    folder.mkdir(exist_ok=True)
    write_json(folder / f"tb_agg-{name}.json", found)
    columns = ("uid", "runs", "passed", "failed", "error", "success_pct")
    write_csv(folder / f"tb_agg-{name}.csv", columns, [[test[key] for key in columns] for test in found["per_test"]])
    metrics: dict[str, Any] = found["metrics"]
    return metrics


def _reference_rows(run: Context, name: str, rows: Sequence[AttemptRow]) -> Iterator[Mapping[str, Any]]:
    """Rows of `tb infer`: its own as they are, every one of them; ours turned into such."""
    files = [Path(file) for file in run.config.evaluation.rows]
    if files and run.config.evaluation.fields == Fields() and all(_of_tb_infer(file) for file in files):
        for file in files:
            with file.open("rb") as lines:
                yield from (json.loads(line) for line in lines if line.strip())
        return
    if files:
        yield from map(to_tb_infer_row, rows)
        return
    with AttemptStore(run.run_dir / "evaluate" / name, read_only=True) as store:
        last = {(row.uid, row.attempt): row for row in sorted(rows, key=lambda row: (row.uid, row.attempt, row.clean))}
        yield from as_tb_infer(store, list(last.values()), run.held_out)


def _of_tb_infer(file: Path) -> bool:
    """Whether the first row is one of `tb infer`."""
    with file.open("rb") as lines:
        first = json.loads(next((line for line in lines if line.strip()), b"{}"))
    return "test_result" in first or "passed" not in first


# -- tables


def write_groups(file: Path, summary: Mapping[str, Any], k: str) -> None:
    columns = ["grouping", "group", "policy", "tasks", "clean_attempts", "passed_attempts", "tasks_passed_every_time"]
    names = ("pass_at_1", "pass_at_k", "observed_all_k")
    columns += [f"{name}{side}" for name in names for side in ("", "_low", "_high")]
    columns += ["coverage", "partial"]
    lines = []
    for policy, found in summary["policies"].items():
        for grouping in GROUPINGS:
            for label, part in found[f"by_{grouping}"].items():
                figures = [part["pass_at_1"], part["pass_at_k"][k], part["observed_all_k"]]
                counts = [part[name] for name in ("tasks", "clean_attempts", "passed_attempts")]
                values = [figure[side] for figure in figures for side in ("value", "low", "high")]
                wanted = part["tasks"] * found["attempts"] * found["seeds"]
                share = part["clean_attempts"] / wanted
                covers = [share, str(share < 1).lower()]
                lines.append([grouping, label, policy, *counts, part["observed_all_k"]["tasks"], *values, *covers])
    write_csv(file, columns, lines)


def write_csv(file: Path, columns: Sequence[str], lines: Sequence[Sequence[Any]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *lines])
    write_whole(file, text.getvalue())


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
    for side in ("", "_low", "_high"):
        values[f"{prefix}/claimed_not_done{side}"] = found["claimed_success"][f"share{side}"]
    cost = found.get("cost") or {}
    for name in ("campaign_usd", "per_passed_attempt_usd", "per_reliable_task_usd", "total_usd"):
        values[f"{prefix}/cost_{name}"] = cost.get(name)
    for domain, part in found.get("by_domain", {}).items():
        for name in ("pass_at_1", "observed_all_k"):
            values[f"{prefix}/{name}/{domain}"] = part[name]["value"]
    values[f"{prefix}/coverage"] = found["coverage"]["share"]
    values[f"{prefix}/complete_tasks"] = found["observed_all_k"]["complete_tasks"]
    values[f"{prefix}/partial"] = float(found["partial"])
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def share_of(claims: Mapping[str, Any]) -> dict[str, Any]:
    """Of all attempts, those that claim success in vain: a figure like the others."""
    return {"value": claims["share"], "low": claims["share_low"], "high": claims["share_high"]}


def percent(figure: Mapping[str, Any]) -> str:
    if figure["value"] is None:
        return UNKNOWN
    if figure.get("low") is None:
        return f"{figure['value']:.1%}"
    return f"{figure['value']:.1%} [{figure['low']:.1%}, {figure['high']:.1%}]"


def points(figure: Mapping[str, Any]) -> str:
    if figure["value"] is None:
        return UNKNOWN
    if figure["value"] == figure.get("low") == figure.get("high") == 0:
        return "0.0 (no task changed)"
    if figure.get("low") is None:
        return f"{100 * figure['value']:+.1f}"
    return f"{100 * figure['value']:+.1f} [{100 * figure['low']:+.1f}, {100 * figure['high']:+.1f}]"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def partial(found: Mapping[str, Any]) -> str:
    """What stands behind figures of an incomplete evaluation; nothing behind complete ones."""
    if not found["partial"]:
        return ""
    coverage, k = found["coverage"], found["attempts"]
    missing = coverage["missing"] - coverage["system_errors"]
    share = percent_of(coverage["share"])
    text = f"; PARTIAL: {coverage['clean']} of {coverage['expected']} attempts ({share}) have a verdict"
    failed = coverage["system_errors"]
    text += f", {failed} {_are(failed)} system error{'' if failed == 1 else 's'}, {missing} {_are(missing)} missing"
    whole = found["observed_all_k"]["complete_tasks"]
    return f"{text}; {whole} of {found['tasks']} tasks have all {k}, which pass@{k} and {k}/{k} are of"
