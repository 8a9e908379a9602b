"""stages=[status] and stages=[cancel]: what became of a run's jobs, on stdout.

Decided here: which runs are meant (the one that the command line names, or all of its experiment if that one was never
submitted), and that a shared array ends only with the last run that waits for it.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tbexp.cluster import ELSEWHERE, JobState, states, unanswered
from tbexp.cluster import cancel as end_jobs
from tbexp.config.schema import Config
from tbexp.errors import Problem, UserError, WorldFailure
from tbexp.pipeline.files import read_json, write_json
from tbexp.pipeline.progress import Progress
from tbexp.pipeline.submit import FOLDER, RECORD, SUBMITTING


def status(config: Config, run_dir: Path) -> None:
    """Every job with its state; of failed ones the error and the log."""
    open_ended = False
    with Progress(sys.stdout) as progress:
        for run in runs_meant(run_dir):
            rows, errors = [], []
            for job in jobs_of(run):
                for state in states(job["id"], Path(job["folder"]), job["tasks"]):
                    rows.append(row(job, state))
                    open_ended = open_ended or state.state == "UNKNOWN"
                    if state.failed:
                        errors.append((job["name"], state))
            progress.table(short(run), ["job", "id", "state", "where", "log"], rows)
            for name, state in errors:
                progress.say(f"{name} ({state.id}) {state.state}: {state.error}\n  log: {short(state.log)}")
            told = read_json(run / "tracking" / "mlflow_run.json")
            if told and told.get("run_id"):
                progress.say(f"MLflow run {told['run_id']} at {told.get('uri')}")
        if open_ended and (said := unanswered()):
            progress.say(f"Slurm did not answer, so a job that is UNKNOWN may be running: {said}\n  fix: {ELSEWHERE}")


def row(job: Mapping[str, Any], state: JobState) -> tuple[str, str, str, str, str]:
    name = f"{job['name']} (shared)" if job["shared"] else job["name"]
    again = f", started {'once' if state.starts == 1 else f'{state.starts} times'}" if state.restarts else ""
    return name, state.id, f"{state.state}{again}", state.nodes or state.reason, short(state.log)


def cancel(config: Config, run_dir: Path) -> None:
    """Ends what is queued or running. Raises WorldFailure where Slurm cannot be asked what that is."""
    runs = runs_meant(run_dir)
    if said := unanswered():
        raise WorldFailure(
            f"Slurm did not answer, so nothing was cancelled and jobs may be running: {said}; {ELSEWHERE}"
        )
    with Progress(sys.stdout) as progress:
        for run in runs:
            ended = withdraw(run)
            progress.say(f"{short(run)}: " + (f"cancelled {', '.join(ended)}" if ended else "nothing is running"))


def withdraw(run: Path, jobs: Sequence[Mapping[str, Any]] | None = None) -> list[str]:
    """Cancels the run's jobs that are alive, and arrays that no other run waits for; their names.

    jobs: those of this record only, of a submission that could not go on; None: all of the run.
    """
    ended: dict[str, str] = {}
    for job in jobs_of(run) if jobs is None else jobs:
        if not is_alive(job):
            continue
        if job["stores"]:
            with FileLock(Path(job["folder"]) / ".lock"):
                shared = read_json(Path(job["folder"]) / RECORD)
                others = [other for other in shared["runs"] if other != str(run)]
                write_json(Path(job["folder"]) / RECORD, {**shared, "runs": others})
            if any(waits(Path(other), job["id"]) for other in others):
                continue
        ended[job["id"]] = name_of(job)
    end_jobs(reversed(list(ended)))  # who waits first, so that nobody is started meanwhile
    return list(ended.values())


def waits(run: Path, array: str) -> bool:
    """Whether a run that shares this array needs it: it has a job of its own that is alive, or its record names the
    array and no such job, or its submission is under way, which joins the array before it writes its record.
    """
    jobs = jobs_of(run)
    of_array_alone = all(job["stores"] for job in jobs) and any(job["id"] == array for job in jobs)
    return of_array_alone or bool(alive(run)) or is_submitting(run)


def is_submitting(run: Path) -> bool:
    if not (run / SUBMITTING).exists():
        return False
    try:
        with FileLock(run / SUBMITTING, timeout=0):
            return False
    except Timeout:
        return True


def alive(run: Path) -> list[str]:
    """Names of the run's own jobs that are queued or running."""
    return [name_of(job) for job in jobs_of(run) if not job["stores"] and is_alive(job)]


def queued(run: Path) -> list[str]:
    """Names of all jobs of the run that are, those that other runs wait for too."""
    return [name_of(job) for job in jobs_of(run) if is_alive(job)]


def name_of(job: Mapping[str, Any]) -> str:
    return f"{job['name']} ({job['id']})"


def is_alive(job: Mapping[str, Any]) -> bool:
    return any(state.alive for state in states(job["id"], Path(job["folder"]), job["tasks"]))


def jobs_of(run: Path) -> list[dict[str, Any]]:
    record = read_json(run / FOLDER / RECORD)
    return list(record["jobs"]) if record else []


def runs_meant(run_dir: Path) -> list[Path]:
    if jobs_of(run_dir):
        return [run_dir]
    found = sorted(run_dir.parent.glob(f"*/{FOLDER}/{RECORD}")) if run_dir.parent.is_dir() else []
    if not found:
        raise UserError(
            Problem(f"no run in {run_dir.parent} was submitted", "stages", "submit one first: launcher=slurm")
        )
    return [file.parent.parent for file in found]


def how_to_follow(
    config: Config, run_dir: Path, record: Sequence[Mapping[str, Any]], uri: str | None, page: str | None
) -> Iterator[str]:
    """What a submission says. page: of the run at its tracker, if that is known."""
    from tbexp.config.compose import run_id_of
    from tbexp.tracking import ui_line

    yield f"submitted {config.name} ({run_dir.name})" if record else f"{config.name}: there is nothing to submit"
    for job in record:
        tasks = f", array of {job['tasks']}" if job["tasks"] > 1 else ""
        nodes = f", {job['nodes']} nodes" if job["nodes"] > 1 else ""
        after = f", after {' and '.join(job['after'])}" if job["after"] else ""
        shared = ", shared with another run" if job["shared"] else ""
        yield f"  {job['id']}  {job['name']}{tasks}{nodes}{after}{shared}"
    yield f"folder: {short(run_dir)}"
    if page is not None:
        yield f"MLflow: {page}"
    elif uri is not None:
        yield f"MLflow: run {run_dir.name} of {config.tracking.experiment or config.name}; {ui_line(uri)}"
    words = [word for word in (run_dir / "overrides.txt").read_text().splitlines() if not word.startswith("stages=")]
    if run_dir.name != run_id_of(config):  # its settings do not lead to its folder, but it has them
        words = [f"hydra.run.dir={short(run_dir)}"]
    command = shlex.join(["tbexp", *words])
    yield f"follow: {command} 'stages=[status]'"
    yield f"cancel: {command} 'stages=[cancel]'"
    if record:
        yield f"logs: {short(Path(record[-1]['folder']))}/*_log.out"


def short(path: Path) -> str:
    """Relative to where one is, if it is below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
