"""A run as Slurm jobs: which stages become which jobs, which jobs runs share, what each is told.

    probe (array) -> select -> train (topology.nodes) -> evaluate trained (array) -> evaluate and report
    evaluate base (array) ------------------------------------------------------/

A reference policy's attempts are an array before the probe's, which waits for it.

Decided here: attempts are made by arrays, whose jobs each fill a part of one store; the jobs of one CPU read what is
there and never make attempts. An array belongs to the store that it fills: runs that need the same attempts wait for
the same array, so a sweep has one probe; one that has failed in part is not waited for, and not doubled while the rest
of it goes on. What is finished at submission gets no job. Nothing is ever submitted from
inside a job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from tbexp.attempts import AttemptStore
from tbexp.cluster import (
    JobSpec,
    Network,
    NodeJob,
    Ray,
    batch_text,
    inside_job,
    misfits,
    nodes,
    resources,
    states,
    submit,
)
from tbexp.config.checks import key_names
from tbexp.config.schema import Config, Launcher
from tbexp.config.secrets import provide, read_secrets
from tbexp.errors import Problem, UserError
from tbexp.pipeline import stages
from tbexp.pipeline.context import Context, InSweep, Untracked
from tbexp.pipeline.files import read_json, write_json
from tbexp.pipeline.preflight import template_problems, unreachable
from tbexp.pipeline.probing import has_reference, probe_campaign, probe_folder, reference_campaign, reference_folder
from tbexp.pipeline.progress import Progress
from tbexp.pipeline.sharing import Campaign

RECORD = "jobs.json"  # in a run's folder slurm/: its jobs; in a store's: the array that fills it
FOLDER = "slurm"
SUBMITTING = ".submit.lock"  # in a run's folder, held by its submission


@dataclass(frozen=True, slots=True)
class Planned:
    """A job before its submission. tells: what the plans of its work say besides the run. shared: filling a store."""

    name: str
    folder: Path
    tells: tuple[dict[str, Any], ...]
    after: tuple[str, ...] = ()
    small: bool = False
    nodes: int = 1
    trains: bool = False
    shared: bool = False


def jobs_of(context: Context) -> list[Planned]:
    """The jobs of a run, each after those that it waits for. What is finished already is left out."""
    found = open_jobs(context)
    return [] if all(job.small for job in found) and told_already(context) else found


def open_jobs(context: Context) -> list[Planned]:
    """Those that make something, and the small ones that tell what it came to."""
    config = context.config
    wanted, found = set(config.stages), []
    folder = context.run_dir / FOLDER
    early = [stage for stage in ("probe", "select") if stage in wanted]
    if "probe" in wanted and not config.probe.rows:
        if has_reference(config):
            found += array("reference", context, store_of(context, "reference"), "reference")
        found += array("probe", context, store_of(context, "probe"), "probe", names(found))
    trained = not found and is_trained(context)  # new attempts may make another pool
    if early and not ("train" in wanted and trained):
        name = "select" if "select" in wanted else "probe summary"
        found.append(Planned(name, folder, (told(early),), names(found), small=True))
    if "train" in wanted and not trained:
        train = told(["train"])
        found.append(Planned("train", folder, (train,), names(found)[-1:], nodes=config.topology.nodes, trains=True))
    before = names(found)[-1:]
    late = [stage for stage in ("evaluate", "report") if stage in wanted]
    arrays: list[Planned] = []
    if "evaluate" in wanted and not config.evaluation.rows:
        for policy in config.evaluation.policies:
            store = store_of(context, "base") if policy == "base" else folder
            after = () if policy == "base" else before
            arrays += array(f"evaluate {policy}", context, store, policy, after, known=policy == "base" or trained)
    if late:
        found += arrays
        name = "report" if "report" in wanted else "evaluate summary"
        found.append(Planned(name, folder, (told(late),), (*before, *names(arrays)), small=True))
    return found


def names(jobs: Sequence[Planned]) -> tuple[str, ...]:
    return tuple(job.name for job in jobs)


def told(names_of_stages: list[str]) -> dict[str, Any]:
    return {"stages": names_of_stages}


def array(
    name: str, context: Context, folder: Path, campaign: str, after: tuple[str, ...] = (), *, known: bool = True
) -> list[Planned]:
    """The jobs that make a campaign's attempts; none when all are there. known: whose attempts they are."""
    shared = campaign != "trained"
    if known and finished(context, campaign):
        return []
    of = context.config.launcher.shards or context.config.topology.nodes
    tells = tuple({"campaign": campaign, "shard": index, "of": of} for index in range(of))
    return [Planned(name, folder / FOLDER if shared else folder, tells, after, shared=shared)]


def store_of(context: Context, campaign: str) -> Path:
    """The store that an array of base policy or reference fills. Of a plan on a machine without tasks or weights its
    name stays open.
    """
    if context.unknown:
        return context.store / ("evaluate" if campaign == "base" else "probe") / f"<{campaign}>"
    if campaign == "base":
        return stages.evaluate_campaign(context, "base").folder
    return reference_folder(context) if campaign == "reference" else probe_folder(context)


def stages_campaign(context: Context, campaign: str) -> Campaign:
    if campaign == "reference":
        return reference_campaign(context)
    return probe_campaign(context) if campaign == "probe" else stages.evaluate_campaign(context, campaign)


def finished(context: Context, name: str) -> bool:
    if context.unknown:
        return False
    if name == "probe" and has_reference(context.config) and not finished(context, "reference"):
        return False  # which tasks are probed is not known before
    campaign = stages_campaign(context, name)
    if not campaign.folder.exists():
        return False
    with AttemptStore(campaign.folder, read_only=True) as store:
        return not campaign.wanted.missing(store)


def is_trained(context: Context) -> bool:
    """Whether this run has trained on the pool that it selected, and the result is whole."""
    place = context.run_dir / "train"
    if context.unknown or not (context.run_dir / "select" / "manifest.json").exists() or not place.exists():
        return False
    from tbexp.training import chosen_weights, weights_fault

    folder, _, _ = stages.training_folder(context)
    if place.resolve() != folder.resolve():  # another run's may be there, and this one has not told of it yet
        return False
    result = read_json(folder / f"result-{context.config.training.steps}.json")
    return result is not None and not weights_fault(chosen_weights(folder, result["chosen_step"]))


def told_already(context: Context) -> bool:
    """Whether the stages have left in the run's folder what they leave, of what is there now."""
    from tbexp.reporting import is_current

    config = context.config
    left = {"select": "select/manifest.json", "train": "train", "evaluate": "evaluate/summary.json"}
    left |= {} if config.probe.rows else {"probe": "probe"}  # a link to a store that another run may have filled
    there = all((context.run_dir / file).exists() for stage, file in left.items() if stage in config.stages)
    return there and ("report" not in config.stages or is_current(context.run_dir))


def gpus_of(config: Config, job: Planned) -> int | None:
    """GPUs of each node that the job asks for; None: it has no use for any. 0: the site does not count them."""
    if job.small:
        return None
    launcher, topology = config.launcher, config.topology
    policy = config.policy
    if job.tells[0].get("campaign") == "reference":
        policy = config.selection.reference.policy
    if policy.kind != "local" and policy.serve != "vllm":
        return None  # an endpoint elsewhere computes
    if launcher.gpus_per_node is not None:
        return launcher.gpus_per_node
    if topology.device == "cuda":
        return topology.gpus_per_node
    return policy.vllm.tensor_parallel_size if policy.serve == "vllm" else None


def spec_of(context: Context, job: Planned, plans: Sequence[Path]) -> JobSpec:
    """The job as `cluster` takes it. plans: the files that its work will read."""
    config = context.config
    launcher, topology = config.launcher, config.topology
    gpus = gpus_of(config, job)
    ray, network = None, None
    if job.trains:
        from tbexp.training.mapping import ray_cpus_of_a_node

        devices = max(gpus or 0, topology.gpus_per_node)
        ray = Ray(devices, ray_cpus_of_a_node(config), launcher.join_seconds)
        if launcher.check_network and job.nodes > 1:
            network = Network(topology.device, launcher.network_seconds, launcher.network_interface)
    work = tuple(
        NodeJob(
            plan=str(plan),
            folder=str(job.folder),
            ray=ray,
            network=network,
            warning_seconds=float(launcher.signal_seconds),
            requeue=launcher.requeue,
            idle_restarts=launcher.idle_restarts,
        )
        for plan in plans
    )
    return JobSpec(
        name=job.name,
        title=f"{config.name} {job.name}".replace(" ", "-"),
        work=work,
        folder=job.folder,
        nodes=job.nodes,
        gpus=gpus or 0,
        gpu_nodes=gpus is not None,
        small=job.small,
        after=job.after,
    )


def plan_files(job: Planned) -> list[Path]:
    stem = job.name.replace(" ", "-")
    if len(job.tells) == 1:
        return [job.folder / f"{stem}.json"]
    return [job.folder / f"{stem}-{number}.json" for number in range(len(job.tells))]


def planned(context: Context) -> Iterator[str]:
    """A dry run: the jobs as a table, then what sbatch would be given for each."""
    jobs = jobs_of(context)
    width = max((len(job.name) for job in jobs), default=0)
    yield f"\n{len(jobs)} Slurm jobs"
    for job in jobs:
        spec = spec_of(context, job, plan_files(job))
        size = f"{len(job.tells)} x " if len(job.tells) > 1 else ""
        after = f", after {' and '.join(job.after)}" if job.after else ""
        asked = ", ".join([f"{job.nodes} node{'s' if job.nodes > 1 else ''}", *asks(spec, context.config.launcher)])
        yield f"{job.name:<{width}}  {size}{asked}{after}"
    for job in jobs:
        yield f"\n# ---- {job.name}\n{batch_text(spec_of(context, job, plan_files(job)), context.config.launcher)}"


def asks(spec: JobSpec, launcher: Launcher) -> list[str]:
    """What is asked for on each node."""
    cpus, memory = resources(spec, launcher)
    told = [f"{spec.gpus} GPU{'s' if spec.gpus > 1 else ''}"] if spec.gpus else []
    told += [] if cpus is None else [f"{cpus} CPU{'s' if cpus > 1 else ''}"]
    told += [] if memory is None else [f"{memory:g} GB"]
    if told and (spec.nodes > 1 or len(spec.work) > 1):
        told[-1] += " each"
    return told


def submit_run(config: Config, run_dir: Path, overrides: Sequence[str], sweep: InSweep | None = None) -> None:
    """Submits the run's jobs and says how to follow them. Raises UserError; then nothing of the run is left queued."""
    from tbexp.pipeline.run import TRACKER_SECRETS, default_uri, prepare, tracked_as
    from tbexp.pipeline.submitted import alive, how_to_follow, queued
    from tbexp.tracking import page_of_scheduled
    from tbexp.tracking.address import tracker_uri

    inside = inside_job(os.environ)
    if inside is not None:
        raise UserError(
            Problem(
                f"this is inside the Slurm job {inside}, from which nothing is submitted",
                "launcher",
                "submit from a login node; launcher=local runs in this job",
            )
        )
    if wrong := [*template_problems(config), *(unreachable(config) if config.launcher.check_endpoints else [])]:
        raise UserError(wrong)
    uri = tracker_uri(config.tracking, default_uri(config))  # its complaints belong here, not on a node
    prepare(config, run_dir, overrides)
    with Progress() as progress, FileLock(run_dir / SUBMITTING):
        if alive(run_dir):
            raise UserError(
                Problem(
                    f"jobs of this run are in the queue already: {', '.join(queued(run_dir))}",
                    "launcher",
                    "stages=[status] shows them, stages=[cancel] ends them",
                )
            )
        context = Context(config, run_dir, progress, Untracked(), sweep=sweep)
        if wrong := stages.lacking(context):
            raise UserError(wrong)
        for stage in config.force:
            stages.forget(context, stage)
        jobs = jobs_of(context)
        if not jobs:
            progress.say(
                f"everything is finished, so nothing is submitted; its results are in {os.path.relpath(run_dir)}"
            )
            return
        if wrong := [
            *too_large(context, jobs),
            *(problem for job in jobs if job.shared for problem in half_failed(job)),
        ]:
            raise UserError(wrong)
        page = None  # of the run at its tracker, which is told of it before a job may tell it the same
        if uri is not None and config.launcher.check_endpoints:  # else only the nodes can reach it
            provide(config.launcher.secrets_file, TRACKER_SECRETS)
            page = page_of_scheduled(uri, **tracked_as(config, run_dir, sweep))
        record: list[dict[str, Any]] = []
        try:
            for job in jobs:
                ids = [entry["id"] for entry in record if entry["name"] in job.after]
                record.append(submit_one(context, job, ids, overrides))
                write_json(run_dir / FOLDER / RECORD, {"jobs": record})
        except UserError:
            from tbexp.pipeline.submitted import withdraw

            withdraw(run_dir, record)
            raise
        for line in how_to_follow(config, run_dir, record, uri, page):
            progress.say(line)


def too_large(context: Context, jobs: Sequence[Planned]) -> list[Problem]:
    """What the jobs ask for and the site does not have, as far as sinfo tells."""
    config, known = context.config, nodes()
    gpus = "topology.gpus_per_node" if config.topology.device == "cuda" else "policy.vllm.tensor_parallel_size"
    if config.launcher.gpus_per_node is not None:
        gpus = "launcher.gpus_per_node"
    keys = {"nodes": "topology.nodes", "gpus": gpus}
    found: dict[tuple[str, str], Problem] = {}  # the first job that has it
    for job in jobs:
        for problem in misfits(spec_of(context, job, plan_files(job)), config.launcher, known, keys, os.environ):
            found.setdefault((problem.where, problem.fix), problem)
    return list(found.values())


def half_failed(job: Planned) -> list[Problem]:
    """An array that fills this job's store and goes on, although what waits for it would never start."""
    known = read_json(job.folder / RECORD)
    found = states(known["id"], job.folder, known["tasks"]) if known else []
    bad, alive = [one.id for one in found if one.ends_badly], [one.id for one in found if one.alive]
    if not bad or not alive:
        return []
    what = f"{job.name}: of its array {', '.join(bad)} failed and {', '.join(alive)} still in the queue or running"
    fix = "wait for the end of it (stages=[status]) and submit again, or end it first: stages=[cancel]"
    return [Problem(what, "launcher", fix)]


def submit_one(context: Context, job: Planned, after: Sequence[str], overrides: Sequence[str]) -> dict[str, Any]:
    """One job's entry in the record. An array that fills a store and is under way already is not submitted again.

    Raises UserError, also when such an array has failed in part.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    if not job.shared:
        return entry(context, job, after, overrides)
    with FileLock(job.folder / ".lock"):
        if wrong := half_failed(job):
            raise UserError(wrong)
        known = read_json(job.folder / RECORD)
        users: list[str] = []
        if known and any(state.alive for state in states(known["id"], job.folder, known["tasks"])):
            users = known["runs"]
        else:
            known = entry(context, job, after, overrides)
        runs = sorted({*users, str(context.run_dir)})
        write_json(job.folder / RECORD, {**known, "runs": runs})
        return {**known, "name": job.name, "shared": bool(users)}


def entry(context: Context, job: Planned, after: Sequence[str], overrides: Sequence[str]) -> dict[str, Any]:
    config = context.config.model_copy(update={"force": []})
    plans = plan_files(job)
    for file, tells in zip(plans, job.tells, strict=True):
        plan = {
            "config": config.model_dump(mode="json"),
            "run_dir": str(context.run_dir),
            "folder": str(Path.cwd()),
            "overrides": list(overrides),
            "sweep": None if context.sweep is None else asdict(context.sweep),
            **tells,
        }
        write_json(file, plan)
    spec = spec_of(context, job, plans)
    secrets = config.launcher.secrets_file
    hidden = {name: os.environ.get(name, "") for name in key_names(config)}
    hidden |= read_secrets(Path(secrets)) if secrets is not None else {}
    number = submit(spec, config.launcher, after, hidden)
    return {
        "name": job.name,
        "id": number,
        "tasks": len(spec.work),
        "nodes": spec.nodes,
        "folder": str(job.folder),
        "after": list(job.after),
        "stores": job.shared,
        "shared": False,
    }


def read_plan(file: Path) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(file.read_text())
    return plan


__all__ = ["FOLDER", "RECORD", "SUBMITTING", "jobs_of", "planned", "read_plan", "submit_run"]
