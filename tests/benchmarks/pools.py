"""The sweep `selected_vs_random` as rows, one table and one figure, from what its runs logged to MLflow.

    python tests/benchmarks/pools.py --uri sqlite:///outputs/mlflow.db --experiment laptop --steps 30

Rows accumulate in the file rows.jsonl of --out, one per run, known by experiment, pool, seed and updates: a run that
was measured again replaces its row, the latest one counts. Table and figure are drawn from all rows there are, so that
seeds can be added later and elsewhere. Runs that differ in anything else than pool and seed are refused; the commits of
the code that made them are told. The committed rows are in docs/selected_vs_random.

Intervals are 95%. Of a pool's figures: bootstrap over held-out tasks, a task's seeds kept together (other tasks). Of
differences between pools: Student's t over the seeds' paired differences (other draws of everything but the tasks).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path("outputs/pools")
POOLS = ("selected", "random", "all")
SAMPLES = 2000
NEEDED = ("mixed_group_rate", "reward_mean", "thrown_away/attempts", "groups/generated", "seconds/step")
PARTS = (
    "seconds/generation",
    "seconds/old_log_prob",
    "seconds/update",
    "seconds/weight_sync",
    "devices_waiting_share",
    "sandbox_waiting_share",
    "tokens_per_second_per_gpu",
    "attempt_seconds/total",
    "attempt_seconds/generation",
    "attempt_seconds/tools",
    "attempt_seconds/user",
    "attempt_seconds/grading",
    "attempt_seconds/start",
)
SAME = ("buckets.", "evaluation.", "group.", "model.", "optimizer.", "probe.", "training.", "user.")
FREE = ("evaluation.bootstrap",)
PLACE = "model.path"  # of weights that the same warm-up has taught: where they lie, not what they are


def rows_of(uri: str, experiment: str, steps: int, left_out: Collection[str]) -> list[dict[str, Any]]:
    """A row for each run of the experiment that trained for so many updates, but for those whose names are left out."""
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    file = uri.removeprefix("sqlite:///")
    if file != uri and not Path(file).is_file():
        raise SystemExit(f"there is no file {file}")
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client = MlflowClient(uri)
    try:
        found = client.get_experiment_by_name(experiment)
    except MlflowException as error:
        raise SystemExit(f"{uri} does not answer: {' '.join(str(error).split())[:300]}") from None
    if found is None:
        names = ", ".join(sorted(each.name for each in client.search_experiments()))
        raise SystemExit(f"{uri} has no experiment {experiment}; it has {names}")
    rows = []
    settings: dict[str, str] = {}
    for run in client.search_runs([found.experiment_id], max_results=1000, order_by=["attributes.start_time ASC"]):
        params = run.data.params
        if run.info.run_name in left_out:
            continue
        history = {name: _history(client, run.info.run_id, name) for name in (*NEEDED, *PARTS)}
        if params.get("training.steps") != str(steps) or len(history["reward_mean"]) != steps:
            continue
        others = {name: value for name, value in params.items() if name.startswith(SAME) and name not in FREE}
        if params["model.kind"] == "warmed":
            others.pop(PLACE, None)
        if settings and others != settings:
            differing = sorted(n for n in others.keys() | settings.keys() if others.get(n) != settings.get(n))
            name = run.info.run_name
            raise SystemExit(f"run {name} differs from the others in {', '.join(differing)}: --leave-out {name}")
        settings = others
        size = int(params["group.size"])
        rows.append(
            {
                "experiment": experiment,
                "pool": params["selection.pool"],
                "seed": int(params["seed"]),
                "updates": steps,
                "device": params["topology.device"],
                "settings": hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()[:8],
                "tasks": {k: int(run.data.metrics[f"select/{k}_size"]) for k in ("pool", "train")},
                "mixed_group_rate": float(np.mean(history["mixed_group_rate"])),
                "reward": [float(np.mean(history["reward_mean"][part])) for part in (slice(5), slice(-5, None))],
                "attempts": int(sum(history["groups/generated"]) * size),
                "thrown_away": int(sum(history["thrown_away/attempts"])),
                "thrown_away_by_third": [int(sum(part)) for part in np.array_split(history["thrown_away/attempts"], 3)],
                "seconds": float(sum(history["seconds/step"])),
                "seconds_per_update": float(np.median(history["seconds/step"])),
                "parts": {name: float(np.median(history[name])) for name in PARTS if history[name]},
                "chosen": _chosen(client, run.info.run_id),
                "commit": _commit(client, run.info.run_id),
                **_held_out(client, run.info.run_id),
            }
        )
    return rows


def _history(client: Any, run_id: str, name: str) -> list[float]:
    """A figure of each update; of one that was made again after a kill the last value."""
    points = sorted(client.get_metric_history(run_id, f"train/{name}"), key=lambda point: point.timestamp)
    by_step = {int(point.step): float(point.value) for point in points}
    return [by_step[step] for step in sorted(by_step)]


def _artifact(client: Any, run_id: str, path: str) -> str | None:
    """Its text; None where the run has none."""
    if not any(file.path == path for file in client.list_artifacts(run_id, path.rpartition("/")[0] or None)):
        return None
    with tempfile.TemporaryDirectory() as scratch:
        return Path(client.download_artifacts(run_id, path, scratch)).read_text(encoding="utf-8")


def _chosen(client: Any, run_id: str) -> int | None:
    """The update whose weights were evaluated."""
    result = _artifact(client, run_id, "train/result.json")
    return None if result is None else int(json.loads(result)["chosen_step"])


def _commit(client: Any, run_id: str) -> str | None:
    """Of the checkout that wrote the run's manifest last, `+` behind it if it was changed; None outside a checkout."""
    manifest = _artifact(client, run_id, "manifest.json")
    found: str | None = None if manifest is None else json.loads(manifest)["commit"]
    return found and found[:7] + found[40:]


def _held_out(client: Any, run_id: str) -> dict[str, Any]:
    """Counts of each task, by policy; nothing for an evaluation that did not finish."""
    text = _artifact(client, run_id, "evaluate/tasks.jsonl")
    if text is None:
        return {}
    tasks = [json.loads(line) for line in text.splitlines()]
    each = {task["uid"]: task["policies"] for task in tasks}
    policies = {policy for counts in each.values() for policy in counts}
    return {
        policy: {uid: [counts[policy]["passed"], counts[policy]["clean"]] for uid, counts in sorted(each.items())}
        for policy in sorted(policies)
    }


def accumulate(file: Path, fresh: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows, the fresh ones in the place of older ones of the same run; written back in order."""

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["experiment"], row["updates"], POOLS.index(row["pool"]), row["seed"]

    known = []
    for number, line in enumerate(file.read_text().splitlines() if file.exists() else (), 1):
        try:
            known.append(json.loads(line))
        except ValueError:
            raise SystemExit(f"{file}:{number}: no JSON; remove the line, and name its run's tracker again") from None
    merged = {key(row): row for row in [*known, *fresh]}
    for name, updates in {(row["experiment"], row["updates"]) for row in fresh}:
        of = [row for row in merged.values() if (row["experiment"], row["updates"]) == (name, updates)]
        if len({row["settings"] for row in of if "settings" in row}) > 1:  # older rows know of none
            raise SystemExit(f"{file} holds rows of {name} with other settings: name another --out")
    rows = [merged[k] for k in sorted(merged)]
    file.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    return rows


def figures(rows: list[dict[str, Any]], policy: str) -> dict[str, np.ndarray]:
    """pass@1 and observed k of k of one pool, seeds x tasks."""
    uids = sorted(rows[0][policy])
    passed = np.array([[row[policy][uid][0] for uid in uids] for row in rows], float)
    clean = np.array([[row[policy][uid][1] for uid in uids] for row in rows], float)
    return {"pass@1": passed / clean, "every time": (passed == clean).astype(float)}


def over_tasks(values: np.ndarray) -> tuple[float, float, float]:
    """Mean with its interval; values: seeds x tasks."""
    means = values.mean(0)
    drawn = np.random.default_rng(7).integers(0, len(means), (SAMPLES, len(means)))
    low, high = np.percentile(means[drawn].mean(1), [2.5, 97.5])
    return float(means.mean()), float(low), float(high)


def over_seeds(differences: np.ndarray) -> tuple[float, float, float] | None:
    """Mean with the interval of Student's t; None for fewer than two seeds."""
    from scipy.stats import t

    if len(differences) < 2:
        return None
    half = t.ppf(0.975, len(differences) - 1) * differences.std(ddof=1) / np.sqrt(len(differences))
    mean = float(differences.mean())
    return mean, mean - half, mean + half


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line for each experiment and pool, and the differences."""
    groups: dict[tuple[str, int, str], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[row["experiment"], row["updates"], row["device"]][row["pool"]].append(row)
    out = []
    for (experiment, updates, device), pools in groups.items():
        out += [f"### {experiment}: {updates} updates, trained on {device}", ""]
        out += ["| | " + " | ".join(pools) + " |", "|---" * (len(pools) + 1) + "|"]
        for name, cell in CELLS:
            out.append(f"| {name} | " + " | ".join(cell(each) for each in pools.values()) + " |")
        out.append("")
        out += [line for other in POOLS[1:] for line in differences(pools, other)]
        if any(len(finished(each)) < len(each) for each in pools.values()):
            out += ["", "Held-out figures are of the seeds whose evaluation is whole, in which pools then differ."]
        out += ["", "Seconds compare runs that had the machine alike, or not; no row knows that.", ""]
    return "\n".join(out)


def differences(pools: dict[str, list[dict[str, Any]]], other: str) -> list[str]:
    ours = {row["seed"]: row for row in finished(pools.get("selected", []))}
    theirs = {row["seed"]: row for row in finished(pools.get(other, []))}
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return []
    parts = []
    for name in ("pass@1", "every time"):
        found = np.array(
            [figures([ours[s]], "trained")[name].mean() - figures([theirs[s]], "trained")[name].mean() for s in seeds]
        )
        span = over_seeds(100 * found)
        parts.append(f"{name} {100 * found.mean():+.1f}" + (f" [{span[1]:+.1f}, {span[2]:+.1f}]" if span else ""))
    lost = np.array([ours[s]["thrown_away"] - theirs[s]["thrown_away"] for s in seeds], float)
    span = over_seeds(lost)
    parts.append(f"attempts thrown away {lost.mean():+.0f}" + (f" [{span[1]:+.0f}, {span[2]:+.0f}]" if span else ""))
    if all("thrown_away_by_third" in pool[s] for pool in (ours, theirs) for s in seeds):
        early = np.array(
            [ours[s]["thrown_away_by_third"][0] - theirs[s]["thrown_away_by_third"][0] for s in seeds], float
        )
        span = over_seeds(early)
        parts.append(
            f"in the first third of the updates {early.mean():+.0f}"
            + (f" [{span[1]:+.0f}, {span[2]:+.0f}]" if span else "")
        )
    spent = np.array([ours[s]["seconds"] - theirs[s]["seconds"] for s in seeds], float)
    span = over_seeds(spent)
    parts.append(f"seconds {spent.mean():+.0f}" + (f" [{span[1]:+.0f}, {span[2]:+.0f}]" if span else ""))
    return [f"- selected − {other}, {len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}, points: {', '.join(parts)}"]


def finished(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "trained" in row]


def mean(values: list[float], form: str) -> str:
    return form.format(float(np.mean(values)))


def _figure(rows: list[dict[str, Any]], policy: str, name: str) -> str:
    done = [row for row in rows if policy in row]
    if not done:
        return "not finished"
    value, low, high = (100 * part for part in over_tasks(figures(done, policy)[name]))
    return f"{value:.1f}% [{low:.1f}, {high:.1f}]"


def thirds(rows: list[dict[str, Any]]) -> str:
    known = [row["thrown_away_by_third"] for row in rows if "thrown_away_by_third" in row]
    return ", ".join(f"{each:,.0f}" for each in np.mean(known, axis=0)) if len(known) == len(rows) else "not known"


CELLS = (
    ("seeds (with a whole evaluation)", lambda rows: f"{len(rows)} ({len(finished(rows))})"),
    ("code", lambda rows: ", ".join(
        f"{n} x {commit}" for commit, n in sorted(Counter(row.get("commit") or "not known" for row in rows).items()))),
    ("tasks in the pool, trained on", lambda rows: ", ".join(
        mean([row["tasks"][k] for row in rows], "{:.0f}") for k in ("pool", "train"))),
    ("mixed groups", lambda rows: mean([100 * row["mixed_group_rate"] for row in rows], "{:.1f}%")),
    ("reward, first 5 updates", lambda rows: mean([row["reward"][0] for row in rows], "{:.3f}")),
    ("reward, last 5 updates", lambda rows: mean([row["reward"][1] for row in rows], "{:.3f}")),
    ("attempts", lambda rows: mean([row["attempts"] for row in rows], "{:,.0f}")),
    ("of them thrown away", lambda rows: mean([row["thrown_away"] for row in rows], "{:,.0f}")),
    ("in each third of the updates", lambda rows: thirds(rows)),
    ("update whose weights were chosen", lambda rows: ", ".join(
        f"{n} x {step}" for step, n in sorted(Counter(row["chosen"] for row in rows if row.get("chosen")).items()))),
    ("seconds of all updates", lambda rows: mean([row["seconds"] for row in rows], "{:.0f}")),
    ("held-out pass@1, base", lambda rows: _figure(rows, "base", "pass@1")),
    ("held-out pass@1, trained", lambda rows: _figure(rows, "trained", "pass@1")),
    ("passed every time, base", lambda rows: _figure(rows, "base", "every time")),
    ("passed every time, trained", lambda rows: _figure(rows, "trained", "every time")),
)  # fmt: skip


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Each seed a point, its pools joined by a line; the mean beside it with its interval over tasks."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "tbexp"
    from matplotlib import pyplot as plt

    experiments = list(dict.fromkeys((row["experiment"], row["updates"]) for row in rows))
    asks = ("pass@1", "every time", "thrown_away")
    titles = {"pass@1": "held-out pass@1, %", "every time": "held-out tasks passed every time, %"}
    titles["thrown_away"] = "attempts thrown away"
    figure, axes = plt.subplots(len(experiments), 3, figsize=(10.5, 3.3 * len(experiments)), squeeze=False)
    colours, marks = ("#0072B2", "#D55E00", "#009E73"), "osD"
    for line, (experiment, updates) in zip(axes, experiments, strict=True):
        mine = [row for row in rows if (row["experiment"], row["updates"]) == (experiment, updates)]
        for axis, ask in zip(line, asks, strict=True):
            points: dict[int, dict[int, float]] = defaultdict(dict)
            for number, pool in enumerate(POOLS):
                of_pool = [row for row in mine if row["pool"] == pool]
                if ask != "thrown_away":
                    of_pool = finished(of_pool)
                if not of_pool:
                    axis.text(
                        number, 0.5, "not\nfinished", ha="center", va="center", transform=axis.get_xaxis_transform()
                    )
                    continue
                if ask == "thrown_away":
                    values = [float(row[ask]) for row in of_pool]
                    axis.plot(number + 0.22, np.mean(values), marks[number], color=colours[number], ms=8)
                else:
                    found = 100 * figures(of_pool, "trained")[ask]
                    values = [float(v) for v in found.mean(1)]
                    value, low, high = over_tasks(found)
                    bars = [[value - low], [high - value]]
                    axis.errorbar(number + 0.22, value, bars, fmt=marks[number], color=colours[number], ms=8, capsize=4)
                for row, v in zip(of_pool, values, strict=True):
                    points[row["seed"]][number] = v
            for by_pool in points.values():  # a pool that a seed has no value of breaks its line
                line_of_seed = [by_pool.get(number, np.nan) for number in range(len(POOLS))]
                axis.plot(range(len(POOLS)), line_of_seed, "-", color="#999999", lw=0.8, marker=".", zorder=1)
            seeds = [sum(number in by_pool for by_pool in points.values()) for number in range(len(POOLS))]
            uneven = len({n for n in seeds if n}) > 1
            names = [f"{pool}\n({n} seeds)" if uneven else pool for pool, n in zip(POOLS, seeds, strict=True)]
            axis.set_xticks(range(len(POOLS)), names)
            axis.set_xlim(-0.5, 2.6)
            axis.set_title(f"{experiment}, {updates} updates" if ask == "pass@1" else "", loc="left", fontsize=9)
            axis.set_ylabel(titles[ask], fontsize=9)
            axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--uri", help="the tracker; without one, table and figure are drawn anew from the rows in --out"
    )
    parser.add_argument("--experiment", help="its experiment, such as laptop")
    parser.add_argument("--steps", type=int, default=30, help="updates: runs with other numbers are left out (30)")
    parser.add_argument("--out", type=Path, default=FOLDER, help=f"folder of rows, table and figure ({FOLDER})")
    parser.add_argument("--leave-out", nargs="+", default=[], metavar="RUN", help="names of runs that are not counted")
    asked = parser.parse_args()
    if asked.uri and not asked.experiment:
        parser.error("--uri needs --experiment")
    fresh = rows_of(asked.uri, asked.experiment, asked.steps, asked.leave_out) if asked.uri else []
    if asked.uri and not fresh:
        parser.error(f"no run of {asked.experiment} made {asked.steps} updates: --steps")
    if not fresh and not (asked.out / "rows.jsonl").exists():
        parser.error(f"there are no rows in {asked.out}: --uri and --experiment")
    asked.out.mkdir(parents=True, exist_ok=True)
    rows = accumulate(asked.out / "rows.jsonl", fresh)
    text = table(rows)
    (asked.out / "table.md").write_text(text)
    draw(rows, asked.out / "figure.svg")
    print(text)


if __name__ == "__main__":
    main()
