"""One run from start to end: its folder, its log, its tracker, its stages in order, its summary."""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

import tbexp
from tbexp.config.schema import STAGES, Config
from tbexp.config.secrets import provide
from tbexp.config.whole import write_whole
from tbexp.errors import Problem, UserError, WorldFailure
from tbexp.pipeline.context import HERE, Context, InSweep, Place, Untracked
from tbexp.pipeline.elsewhere import covered
from tbexp.pipeline.files import read_json, sha256_of, write_json
from tbexp.pipeline.finished import given, is_finished
from tbexp.pipeline.inputs import Inputs, reads_servers
from tbexp.pipeline.planning import plan, short_path
from tbexp.pipeline.progress import Progress, clock
from tbexp.tracking import all_sent, open_run, tracker_uri, ui_line

log = logging.getLogger(__name__)

BUILDING = "base policy"  # its time, beside the stages'

PACKAGES = (
    *("hydra-core", "omegaconf", "numpy", "scipy", "mcp", "mlflow", "torch", "transformers", "verl", "ray"),
    *("tensordict", "TransferQueue", "vllm"),
)


NOT_PARAMS = {"stages", "force", "dry_run", "compare", "parity", "serve"}  # what a tracker is not told
TRACKER_SECRETS = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")


def run(
    config: Config,
    *,
    run_dir: Path,
    overrides: Sequence[str],
    inputs: Inputs | None = None,
    sweep: InSweep | None = None,
) -> None:
    """Runs the config's stages in `run_dir`, continuing what is there.

    Raises UserError (exit 2) and WorldFailure (exit 3).
    """
    alone = [stage for stage in config.stages if stage not in STAGES]
    if alone:
        _alone(config, alone, run_dir)
        return
    refuse_unbuilt(config)
    inputs = inputs or Inputs()
    if config.dry_run:
        plan(config, run_dir, inputs)
    elif config.launcher.kind == "slurm":
        from tbexp.pipeline.submit import submit_run

        submit_run(config, run_dir, overrides, sweep)
    else:
        run_here(config, run_dir=run_dir, overrides=overrides, inputs=inputs, sweep=sweep)


def run_here(
    config: Config,
    *,
    run_dir: Path,
    overrides: Sequence[str],
    place: Place = HERE,
    inputs: Inputs | None = None,
    sweep: InSweep | None = None,
) -> None:
    """Runs the config's stages in this process. Raises UserError, WorldFailure, and Stopped because of `place.left`.

    A job of a sweep that was finished before does nothing.
    """
    quiet_environment()
    provide(config.launcher.secrets_file, TRACKER_SECRETS)
    tracked = tracked_as(config, run_dir, sweep)
    key, parent = tracked["run_key"], tracked["parent_run_id"]
    with Progress() as progress:
        context = Context(config, run_dir, progress, Untracked(), inputs or Inputs(), place=place)
        context.given = given(config, context.model_key if uses_model(config) else None, context.inputs)
        uri = tracker_uri(config.tracking, default_uri(config))
        known = uri is None or all_sent(tracked["folder"], uri=uri, run_key=key, parent_run_id=parent)
        if sweep and known and is_finished(run_dir, config, context.given):
            progress.say(f"{run_dir.name}: finished before, nothing to do")
            return
        if place.attempts:  # else this is a job, and its submission has written the whole run's config there
            prepare(config, run_dir, overrides)
        try:
            with (
                FileLock(run_dir / ".lock", timeout=0),
                open_run(
                    config.tracking,
                    default_uri=default_uri(config),
                    params=config.model_dump(mode="json", exclude=NOT_PARAMS),
                    **tracked,
                ) as tracker,
            ):
                context.tracker = tracker
                try:
                    run_stages(context)
                finally:  # what a comparison on another machine reads, of a run that failed too
                    for name in ("config.yaml", "manifest.json"):
                        if (run_dir / name).exists():
                            tracker.artifact(run_dir / name)
                summary(context, table=sweep is None)
        except Timeout:
            raise UserError(
                Problem(f"another process is running in {run_dir}", "hydra.run.dir", "wait for it, or stop it")
            ) from None
        if uri is not None and sweep is None:
            progress.say(f"compare runs: {ui_line(uri)}")


def tracked_as(config: Config, run_dir: Path, sweep: InSweep | None) -> dict[str, Any]:
    """What the tracker knows a run by, as `open_run` takes it."""
    return {
        "experiment": config.tracking.experiment or config.name,
        "run_name": sweep.name if sweep else run_dir.name,
        "run_key": f"{config.name}/{run_dir.name}",
        "folder": run_dir / "tracking",
        "parent_run_id": sweep.parent_run_id if sweep else None,
        "tags": {f"tbexp.sweep.{sweep.sweep}": "job"} if sweep else {},
    }


def uses_model(config: Config) -> bool:
    """Whether the base model's weights are used, or their attempts are."""
    return config.policy.kind != "chat" and reads_servers(config)


def default_uri(config: Config) -> str:
    """The tracker of a config that names none."""
    return f"sqlite:///{Path(config.store).resolve().parent / 'mlflow.db'}"


def refuse_unbuilt(config: Config) -> None:
    """What the schema knows and no stage can do yet ends here, and is not run as something else."""
    problems = []
    if config.policy.kind == "scripted":
        problems.append(
            Problem("a scripted policy has no outputs outside tests", "policy", "policy=local or policy=chat")
        )
    if config.selection.reference.policy.kind == "scripted":
        key = "selection.reference.policy.kind"
        problems.append(Problem("a scripted reference has no outputs outside tests", key, f"{key}=chat"))
    if problems:
        raise UserError(problems)


def run_stages(context: Context) -> None:
    from tbexp.pipeline import probing, stages

    functions: Mapping[str, Callable[[Context], None]] = {
        "probe": probing.probe,
        "select": stages.select,
        "train": stages.train,
        "evaluate": stages.evaluate,
        "report": stages.report,
    }
    config = context.config
    if wrong := stages.lacking(context):
        raise UserError(wrong)
    for stage in config.force:
        stages.forget(context, stage)
    earlier = read_json(context.run_dir / "manifest.json") or {}
    context.seconds = {name: entry["seconds"] for name, entry in earlier.get("stages", {}).items()}
    context.by_jobs = {
        name: entry["by_jobs"] for name, entry in earlier.get("stages", {}).items() if "by_jobs" in entry
    }
    context.facts = dict(earlier.get("facts", {}))
    for name in STAGES:
        if name not in config.stages:
            continue
        start, built, context.worked, context.spans = time.monotonic(), context.building, False, []
        before, by_jobs = context.seconds.get(name, 0.0), context.by_jobs.get(name, 0.0)
        log.info("%s begins", name)
        try:
            functions[name](context)
            context.place.finished(name)
        except (UserError, WorldFailure) as error:
            context.worked = True
            report_so_far(context, f"{name} ended: {error}")
            raise
        finally:
            # Time of all starts together: a run that was killed and went on has paid for both.
            built = context.building - built
            if built:
                context.seconds[BUILDING] = round(context.seconds.get(BUILDING, 0.0) + built, 1)
            if context.worked or name not in context.seconds:  # to find a result finished is no part of its making
                context.seconds[name] = round(before + time.monotonic() - start - built, 1)
            if context.spans:  # all starts of all jobs until now
                context.by_jobs[name] = round(covered(context.spans), 1)
                context.seconds[name] = round(context.seconds[name] - by_jobs + context.by_jobs[name], 1)
            log.info("%s ends after %.1f s", name, time.monotonic() - start)
            write_manifest(context)
    write_manifest(context, finished=context.given)


def report_so_far(context: Context, why: str) -> None:
    """Of a run that can't go on: what there is explains why better than a sentence."""
    if "report" in context.config.stages and context.facts:
        from tbexp.pipeline import stages

        context.notes.append(why)
        write_manifest(context)
        stages.report(context)


def prepare(config: Config, run_dir: Path, overrides: Sequence[str]) -> None:
    """The run's folder with its config."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        Path(config.store).mkdir(parents=True, exist_ok=True)
        if config.stages == ["report"] and (run_dir / "config.yaml").exists():
            return  # a report changes nothing of the run
        write_whole(run_dir / "config.yaml", yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
        write_whole(run_dir / "overrides.txt", "".join(f"{line}\n" for line in overrides))
    except OSError as error:
        raise UserError(
            Problem(
                f"cannot be written: {error.strerror}", str(error.filename or run_dir), "set hydra.run.dir and store"
            )
        ) from None


def write_manifest(context: Context, *, finished: str | None = None) -> None:
    """Versions, commit, notes, seconds by stage, hashes of what the stages made, and of what they were given once all
    are done.
    """
    run_dir = context.run_dir
    shared, by_jobs = read_json(run_dir / "overlap.json"), context.by_jobs
    files = [*sorted((run_dir / "select").glob("*.yaml")), run_dir / "select" / "tasks.jsonl"]
    files += [run_dir / "evaluate" / "summary.json"]
    write_json(
        run_dir / "manifest.json",
        {
            "tbexp": tbexp.__version__,
            "commit": commit(),
            "python": platform.python_version(),
            "versions": versions(),
            "notes": [*notes(context.config), *context.notes],
            **({} if shared is None else {"overlap": shared}),
            "finished": finished,
            "stages": {
                name: {"seconds": seconds} | ({"by_jobs": by_jobs[name]} if name in by_jobs else {})
                for name, seconds in context.seconds.items()
            },
            "facts": context.facts,  # what stages found out: attempts saved by adaptive probing, the reference's screen
            "outputs": {str(f.relative_to(run_dir)): sha256_of(f) for f in files if f.exists()},
        },
    )


def notes(config: Config) -> list[str]:
    """What a reader of the figures has to know about the data."""
    if config.tasks.root is not None:
        return []
    return [
        "The held-out tasks of the sample domain are new combinations of customer, facts and conditions; "
        "they share the candidates' rules and topics."
    ]


@functools.cache
def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def commit() -> str | None:
    """The checkout's commit, `+` behind it if it was changed; None outside a checkout."""
    root = Path(tbexp.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def summary(context: Context, *, table: bool) -> None:
    """The time of each stage, and the table at the end."""
    for name, seconds in context.seconds.items():
        if name in context.config.stages:
            context.tracker.metric(f"time/{name}_seconds", seconds)
    if not table:
        return
    told = [BUILDING, *(stage for stage in STAGES if stage in context.config.stages)]
    times = ", ".join(f"{name} {clock(context.seconds[name])}" for name in told if name in context.seconds)
    rows: list[tuple[Any, Any]] = [*context.results, ("time", times), ("folder", short_path(context.run_dir))]
    if (report := context.run_dir / "report" / "report.html").exists():
        rows.append(("report", short_path(report)))
    context.progress.table(f"{context.config.name} ({context.run_dir.name})", ["", "result"], rows)


def _alone(config: Config, stages: Sequence[str], run_dir: Path) -> None:
    if len(config.stages) > 1:
        raise UserError(
            Problem(f"{stages[0]} runs on its own, not with other stages", "stages", f"stages=[{stages[0]}]")
        )
    if stages[0] == "doctor":
        from tbexp.pipeline.doctor import doctor

        doctor(config)
        return
    if stages[0] == "compare":
        from tbexp.pipeline.comparing import compare

        compare(config, run_dir=run_dir)
        return
    if stages[0] == "parity":
        from tbexp.pipeline.parity import parity

        parity(config, run_dir=run_dir)
        return
    if stages[0] == "regrade":
        from tbexp.pipeline.regrade import regrade

        regrade(config, run_dir=run_dir)
        return
    if stages[0] == "serve":
        from tbexp.pipeline.serving import serve

        serve(config, run_dir=run_dir)
        return
    if stages[0] in ("status", "cancel"):
        from tbexp.pipeline import submitted

        (submitted.status if stages[0] == "status" else submitted.cancel)(config, run_dir)


def quiet_environment() -> None:
    """Settings of libraries that read them when they are imported; what the user has set stays."""
    # Threads that spin while they wait make a training loop on two shared cores 5 to 10 times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request
