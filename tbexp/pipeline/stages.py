"""The stages: what each takes from the ones before, where its result stands, and when it has nothing left to do.

A result lives in `store` under its key and is linked into the run's folder, so that runs which agree on what decides
it share it. Each stage says so when it finds its result finished.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tbexp.attempts import AttemptRow, AttemptStore
from tbexp.config.schema import Config
from tbexp.errors import Problem, UserError, counted
from tbexp.pipeline import identity
from tbexp.pipeline.context import Context
from tbexp.pipeline.evaluated import evaluate_rows, forget_figures
from tbexp.pipeline.expected import pool_of, sum_up, with_forecast
from tbexp.pipeline.export import write_tb_infer
from tbexp.pipeline.files import link, read_json, write_json
from tbexp.pipeline.inputs import NO_HELD_OUT
from tbexp.pipeline.overlap import audit
from tbexp.pipeline.preflight import template_problems
from tbexp.pipeline.probing import REFERENCE, probe_counts, probed_rows, reference_counts, screened
from tbexp.pipeline.sharing import Campaign, attempts_in, with_failed_tries
from tbexp.pipeline.since import note_changes
from tbexp.pipeline.waiting import alone
from tbexp.pipeline.wanted import FixedNumber
from tbexp.tasks import Task, benchmark_uids, is_benchmark, refuse_benchmark

if TYPE_CHECKING:
    from tbexp.policy import Policy

log = logging.getLogger(__name__)

POOL = Path("select", "manifest.json")  # in the run's folder
NO_POOL = Problem("there is no pool to train on", "stages", "put select before train")
NOT_TRAINED = Problem(
    "there is no trained policy to evaluate",
    "evaluation.policies",
    "put train before evaluate, or evaluate the base policy alone: evaluation.policies=[base]",
)


def evaluate_campaign(run: Context, policy: str) -> Campaign:
    """policy: base, or trained, whose training has to be finished."""
    config, tasks = run.config, run.held_out
    if not tasks:
        raise UserError(NO_HELD_OUT)
    if policy == "base":
        who, make = run.base_identity, run.base_policy
    else:
        who, make = trained_policy(run)
    folder = run.store / "evaluate" / identity.campaign_key(config, who, tasks, run.servers_digest(tasks))
    wanted = FixedNumber([task.uid for task in tasks], config.evaluation.attempts)
    return Campaign(f"evaluate {policy}", folder, tasks, wanted, config.evaluation.retries, make, config)


def trained_policy(run: Context) -> tuple[Any, Callable[[], Policy]]:
    """Identity of the trained policy, and what makes it."""
    from tbexp.pipeline import policies
    from tbexp.training import chosen_weights

    config, result = run.config, None
    if (run.run_dir / POOL).exists():
        folder, _, _ = training_folder(run)
        result = read_json(folder / f"result-{config.training.steps}.json")
    if result is None:
        raise UserError(NOT_TRAINED)
    weights = chosen_weights(folder, result["chosen_step"]).resolve()
    start = run.start_of("trained")
    return identity.policy_identity(config, result["model"]), lambda: policies.local(config, weights, start)


def select(run: Context) -> None:
    """The pool, from counts alone. No policy, no torch."""
    from tbexp.selection import select as decide
    from tbexp.selection import write_selection

    config = run.config
    counts, source = probe_counts(run)
    hashes: dict[str, str] = {}
    benchmark = {uid for uid in counts.uids if uid in benchmark_uids()}
    if not config.probe.rows or config.tasks.root is not None:  # of rows alone no content is known
        hashes = {task.uid: task.content_hash() for task in run.candidates}
        benchmark |= {task.uid for task in run.candidates if is_benchmark(task)}
    if config.probe.rows:
        benchmark |= of_rows(run, counts.uids, hashes)
    selection = decide(
        counts,
        buckets=config.buckets,
        selection=config.selection,
        group_size=config.group.size,
        groups_per_update=config.group.groups_per_update,
        reference=reference_counts(run),
        never_probed=screened(run),
        benchmark=benchmark,
        content_hashes=hashes,
    )
    warn_of_unknown_exclusions(config, counts.uids)
    manifest = run.run_dir / "select" / "manifest.json"
    before = read_json(manifest)
    write_selection(run.run_dir / "select", selection, inputs=source)
    run.worked = read_json(manifest) != before
    same = "" if run.worked else ", as before"
    run.tracker.metrics(
        {
            "select/pool_size": len(selection.pool),
            "select/train_size": len(selection.train),
            "select/validation_size": len(selection.validation),
            "select/expected_mixed_rate": selection.forecast.mixed_rate,
            **{f"select/band/{name}": count for name, count in selection.bands.items()},
        }
    )
    for name in ("tasks.jsonl", "pool.yaml", "manifest.json"):
        run.tracker.artifact(run.run_dir / "select" / name, "select")
    bands = ", ".join(f"{name} {count}" for name, count in selection.bands.items())
    excluded = f", {len(benchmark)} benchmark tasks excluded" if benchmark else ""
    run.progress.say(
        f"select: {len(selection.pool)} of {counted(len(counts.uids), 'task')} kept{same} ({bands}){excluded}; "
        f"expected share of mixed groups {selection.forecast.mixed_rate:.0%}"
    )
    shared = audit(run)
    if shared is not None:
        run.progress.say(f"select: {shared['text']}")
    run.results.append(
        (
            "select",
            f"{counted(len(selection.pool), 'task')}: {len(selection.train)} train, "
            f"{len(selection.validation)} validation",
        )
    )


def benchmark_among(run: Context, uids: Sequence[str]) -> set[str]:
    """Those that are the benchmark's, by uid, by their task's content, or by what the rows hold of them."""
    from tbexp.attempts import read_contents

    config, found = run.config, set(benchmark_uids())
    if not config.probe.rows or config.tasks.root is not None:
        found |= {task.uid for task in run.candidates if is_benchmark(task)}
    if config.probe.rows:
        found |= set(read_contents(config.probe.rows, config.probe.fields).benchmark)
    return found.intersection(uids)


def of_rows(run: Context, uids: Sequence[str], known: Container[str]) -> set[str]:
    """The tasks that are the benchmark's by what the rows hold of them; says of how many nothing is known."""
    from tbexp.attempts import read_contents

    contents = read_contents(run.config.probe.rows, run.config.probe.fields)
    unknown = sum(uid not in known and uid not in contents.known for uid in uids)
    if unknown:
        run.progress.say(
            f"select: of {unknown} tasks the rows hold no messages, so a renamed task of the public benchmark among "
            "them is not recognized; name their dataset with tasks.root, or rows with messages"
        )
    return set(contents.benchmark)


def warn_of_unknown_exclusions(config: Config, uids: Sequence[str]) -> None:
    """A list may be made for more tasks than these; but a typo in it would let a task through."""
    from tbexp.selection import read_exclusions

    unknown = sorted(read_exclusions(config.selection.exclude) - set(uids))
    if unknown:
        named = ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        log.warning("select: selection.exclude names %d that are no tasks here: %s", len(unknown), named)


def read_pool(run: Context) -> tuple[list[Task], list[Task]]:
    """Train and validation tasks of this run's selection."""
    from tbexp.tasks import read_selectors

    folder = run.run_dir / "select"
    if not (run.run_dir / POOL).exists():
        raise UserError(NO_POOL)
    by_uid = {task.uid: task for task in run.candidates}
    lists = []
    for name in ("train", "validation"):
        uids = read_selectors(folder / f"{name}.yaml")
        unknown = [uid for uid in uids if uid not in by_uid]
        if unknown:
            raise UserError(
                Problem(
                    f"{len(unknown)} selected tasks are not among the candidates: {', '.join(unknown[:5])}",
                    "tasks.root",
                    "point tasks.root at the dataset that was probed",
                )
            )
        lists.append([by_uid[uid] for uid in uids])
    refuse_benchmark([*lists[0], *lists[1]], use="training")
    return lists[0], lists[1]


def lacking(run: Context) -> list[Problem]:
    """What the stages take from ones before that are not to be run too, and is not there; told before any of them
    begins. Writes nothing.
    """
    config, wanted = run.config, set(run.config.stages)
    needed: list[Callable[[Context], object]] = []
    if "select" in wanted and "probe" not in wanted and not config.probe.rows:
        needed.append(probed_rows)
    if "train" in wanted and "select" not in wanted:
        needed.append(read_pool)
    # A pool that is still to be selected may be one that another run has trained on.
    evaluates = "evaluate" in wanted and not config.evaluation.rows and "trained" in config.evaluation.policies
    if evaluates and not wanted & {"select", "train"}:
        needed.append(trained_policy)
    problems: list[Problem] = []
    for take in needed:
        try:
            take(run)
        except UserError as error:
            problems += error.problems
    return problems


def training_folder(run: Context) -> tuple[Path, list[Task], list[Task]]:
    train_tasks, validation_tasks = read_pool(run)
    key = identity.training_key(
        run.config, run.model_key, train_tasks, validation_tasks, run.servers_digest([*train_tasks, *validation_tasks])
    )
    return run.store / "train" / key, train_tasks, validation_tasks


def train(run: Context) -> None:
    """GRPO by verl on the pool; the checkpoint that validation chooses becomes the trained policy."""
    from tbexp.training import chosen_weights, made_before, weights_fault
    from tbexp.training import train as train_with_verl

    config = run.config
    folder, train_tasks, validation_tasks = training_folder(run)
    link(run.run_dir / "train", folder)
    steps = config.training.steps
    done = read_json(folder / f"result-{steps}.json")
    if done is not None and (why := weights_fault(chosen_weights(folder, done["chosen_step"]))):
        log.warning("train: the weights of step %d are exported again: %s", done["chosen_step"], why)
        done = None
    pool = pool_of(run, [task.uid for task in train_tasks])
    # An update takes the longer the more groups are refilled, which changes as the policy learns; one in validate_every
    # is followed by a validation, which so many updates hold one of.
    finished = min(steps, made_before(folder)) if done is None else steps
    recent = max(5, config.training.validate_every)
    bar = run.progress.stage("train", steps, "updates", done=finished, recent=recent)
    if done is None:
        if wrong := template_problems(config):
            raise UserError(wrong)
        run.worked = True
        shown: dict[str, float] = {}

        def on_metrics(values: Mapping[str, float], step: int) -> None:
            run.tracker.metrics(with_forecast(pool, config, values, step), step)
            for short, name in (("reward", "train/reward_mean"), ("mixed", "train/mixed_group_rate")):
                if name in values:
                    shown[short] = round(values[name], 3)

        def on_progress(count: int, total: int, what: str) -> None:
            bar.update(count, phase=what, **shown)

        what = f"the training in {folder}"
        with alone(folder / ".lock", what, run_dir=run.run_dir, say=run.progress.say):
            result = train_with_verl(
                config,
                model_folder=run.model_folder,
                train_uids=[task.uid for task in train_tasks],
                validation_uids=[task.uid for task in validation_tasks],
                folder=folder,
                root=run.root,
                progress=on_progress,
                metrics=on_metrics,
                ray_address=run.place.ray,
                left=run.place.left,
            )
        done = {
            "chosen_step": result.step,
            "steps": steps,
            "model": identity.digest([folder.name, result.step, steps]),
            "validation_pass_rate": result.validation_pass_rate,
            "skipped": list(result.skipped),
            "tasks": identity.tasks_digest([*train_tasks, *validation_tasks]),
        }
        write_json(folder / f"result-{steps}.json", done)
        best, rate = result.best
        bar.update(steps)  # also where verl had ended before and only the weights were left to export
        other = "" if best == result.step else f"; best: step {best}, {rate:.1%}"
        bar.done(f"step {result.step} chosen (validated {result.validation_pass_rate:.1%}{other})")
    else:
        bar.done("finished before, nothing to do")
        for row in rows_of(folder / "metrics.jsonl"):  # the training may have been another run's
            values = {name: value for name, value in row.items() if name != "step"}
            if row["step"] <= steps:
                run.tracker.metrics(with_forecast(pool, config, values, row["step"]), row["step"])
    write_json(folder / "result.json", done)
    for name in ("metrics.jsonl", "result.json"):  # also of a training that another run has made
        run.tracker.artifact(run.run_dir / "train" / name, "train")
    register(run, chosen_weights(folder, done["chosen_step"]), done)
    told = f"{counted(steps, 'update')} on {counted(len(train_tasks), 'task')}; chosen: step {done['chosen_step']}"
    if without_signal(folder / "metrics.jsonl"):
        told += "; no group was mixed, so the weights are those of the base policy"
        log.warning("train: no group of any update was mixed, so nothing was learned and the weights are unchanged")
    if others := foreign_updates(folder / "metrics.jsonl"):
        told += f"; the attempts of update {', '.join(map(str, others))} came from other weights than the trained ones"
    run.results.append(("train", told))
    sum_up(run, pool, folder / "metrics.jsonl")


def register(run: Context, weights: Path, done: Mapping[str, Any]) -> None:
    """The chosen checkpoint becomes a version in the tracker's registry. done: the training's result."""
    config = run.config
    tags = {
        "tbexp.step": done["chosen_step"],
        "tbexp.steps": done["steps"],
        "tbexp.validation_pass_rate": done.get("validation_pass_rate"),
        "tbexp.base_model": config.model.name,
        "tbexp.run": f"{config.name}/{run.run_dir.name}",
    }
    name, upload = config.tracking.registered_model or config.name, config.tracking.upload_model
    run.tracker.model(weights.resolve(), name=name, key=done["model"], tags=tags, upload=upload)


def without_signal(metrics: Path) -> bool:
    """Whether there were updates, and none had a group whose attempts differ in reward."""
    mixed = [row["train/groups/mixed"] for row in rows_of(metrics) if "train/groups/mixed" in row]
    return bool(mixed) and not any(mixed)


def foreign_updates(metrics: Path) -> list[int]:
    from tbexp.training.rows import foreign

    return foreign({row["step"]: row for row in rows_of(metrics)})


def rows_of(metrics: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []


def evaluate(run: Context) -> None:
    """Base and trained policy on the held-out tasks, evaluation.attempts times each."""
    config = run.config
    forget_figures(run.run_dir / "evaluate")
    if config.evaluation.rows:
        rows_by_policy, tasks = foreign_evaluation(run)
    else:
        tasks = run.held_out
        if not tasks:
            raise UserError(NO_HELD_OUT)
        campaigns = {name: evaluate_campaign(run, name) for name in config.evaluation.policies}  # all, or none begins
        rows_by_policy = {name: evaluate_policy(run, name, campaign) for name, campaign in campaigns.items()}
    evaluate_rows(run, rows_by_policy, tasks)
    shared = audit(run)
    if shared is not None:
        run.results.append(("overlap", shared["short"]))


def foreign_evaluation(run: Context) -> tuple[dict[str, list[AttemptRow]], list[Task]]:
    rows = run.inputs.rows(run.config.evaluation.rows, run.config.evaluation.fields)
    return {"rows": rows}, run.held_out


def evaluate_policy(run: Context, name: str, campaign: Campaign) -> list[AttemptRow]:
    link(run.run_dir / "evaluate" / name, campaign.folder)
    rows = attempts_in(run, campaign)
    if run.config.evaluation.tb_infer:
        write_tb_infer(campaign.folder, rows, run.run_dir / "evaluate" / f"tb_infer-{name}.jsonl", run.held_out)
    with AttemptStore(campaign.folder, read_only=True) as store:
        return with_failed_tries(store, rows)


def report(run: Context) -> None:
    """One HTML file of whatever this run has."""
    from tbexp.reporting import is_current, write_report

    for sentence in note_changes(run):
        log.warning("report: %s", sentence)
    if is_current(run.run_dir):
        run.progress.say("report: finished before, nothing to do")
        return
    run.worked = True
    file = write_report(run.run_dir)
    run.tracker.artifact(file, "report")
    run.progress.say(f"report: {file}")


def forget(run: Context, stage: str) -> None:
    """force=[stage]: the stage's result in this run is removed, so that it is made again."""
    place = run.run_dir / stage
    if stage == "probe" and (run.run_dir / REFERENCE).is_symlink():
        forget(run, REFERENCE)
    if stage == "evaluate" and place.is_dir():
        for policy in place.iterdir():
            if policy.is_symlink():
                shutil.rmtree(policy.resolve(), ignore_errors=True)
                policy.unlink()
    if place.is_symlink():
        shutil.rmtree(place.resolve(), ignore_errors=True)
        place.unlink()
    elif place.is_dir():
        shutil.rmtree(place)
