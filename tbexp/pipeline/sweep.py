"""The jobs of a sweep, one after the other: their parent run at the tracker, their table, and what is left to do.

Decided here: which sweep a command is (the same jobs are the same sweep, whatever their order), what a sweep leaves in
its own folder, and that a job which fails leaves the others alone. Left to others: what a job does (`run.py`), how its
folder and config are made, and how its error is told (`app`).

    <sweep>/jobs.csv     one row per job, written again after each
    <sweep>/sweep.json   the command's overrides and its jobs
    <sweep>/tracking/    of the parent run
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tbexp.config.compose import run_id_of
from tbexp.config.schema import Config
from tbexp.config.validate import schema_keys
from tbexp.config.whole import write_whole
from tbexp.errors import DEFECT, DONE, INTERRUPTED, USER, WORLD, Ending, Problem, UserError, counted
from tbexp.pipeline import identity
from tbexp.pipeline.context import InSweep
from tbexp.pipeline.files import read_json, write_json
from tbexp.pipeline.planning import short_path
from tbexp.pipeline.progress import Progress
from tbexp.pipeline.run import default_uri
from tbexp.reporting.partial import covered_share, percent_of
from tbexp.tracking import Run, open_run, ui_line

STATES = {DONE: "done", DEFECT: "defect", USER: "mistake", WORLD: "world failed", INTERRUPTED: "interrupted"}
WAITING, SUBMITTED = "not run", "submitted"
LONGEST_ERROR = 70  # characters of an error in the table; jobs.csv has it whole


@dataclass(frozen=True, slots=True)
class Job:
    """One combination. config, run_dir: None where the mistake leaves none. problems: what keeps it from running."""

    overrides: tuple[str, ...]
    config: Config | None
    run_dir: Path | None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A job in the table. facts: of its selection and evaluation, as far as it has them."""

    state: str
    seconds: float = 0.0
    error: str = ""
    facts: Mapping[str, Any] | None = None


def run_sweep(
    jobs: Sequence[Job],
    *,
    folder: Path,
    overrides: Sequence[str],
    run_job: Callable[[int, InSweep], Ending],
    progress: Progress | None = None,
) -> int:
    """Runs the jobs that have no problem; returns the worst exit code. At least one job has a config.

    run_job(number, place) runs the job of that number. Raises KeyboardInterrupt after an interrupt, the table shown.
    """
    from tbexp.training import kept

    first = next(job.config for job in jobs if job.config is not None)
    progress = progress or Progress()
    names = swept_names(jobs)
    rows = [
        Row(STATES[USER], error="; ".join(problem.short for problem in job.problems)) if job.problems else Row(WAITING)
        for job in jobs
    ]
    codes = [USER if job.problems else None for job in jobs]
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(folder / ".lock", timeout=0))
            write_json(folder / "sweep.json", description(jobs, overrides))
        except Timeout:
            fix = "wait for it, or stop it"
            raise UserError(Problem(f"another process runs this sweep in {folder}", "hydra.sweep.dir", fix)) from None
        except OSError as error:
            raise UserError(Problem(f"{folder} cannot be written: {error.strerror}", "hydra.sweep.dir")) from None
        parent = stack.enter_context(
            open_run(
                first.tracking,
                default_uri=default_uri(first),
                experiment=first.tracking.experiment or first.name,
                run_name=folder.name,
                run_key=f"{first.name}/{folder.name}",
                folder=folder / "tracking",
                params={"overrides": " ".join(overrides), **swept_over(jobs, names)},
                tags={"tbexp.sweep": folder.name},
            )
        )
        stack.enter_context(kept())
        place = InSweep(parent.run_id, folder.name, name="")
        try:
            for number, job in enumerate(jobs):
                if job.problems:
                    continue
                name = job_name(job, names)
                progress.say(heading(jobs, number))
                start = time.monotonic()
                try:
                    ending = run_job(number, replace(place, name=name))
                except KeyboardInterrupt:
                    rows[number], codes[number] = Row(STATES[INTERRUPTED], time.monotonic() - start), INTERRUPTED
                    raise
                submitted = job.config is not None and job.config.launcher.kind == "slurm" and ending.code == DONE
                state = SUBMITTED if submitted else STATES[ending.code]
                rows[number] = Row(state, time.monotonic() - start, ending.said, facts_of(job))
                codes[number] = ending.code
                write_whole(folder / "jobs.csv", as_csv(jobs, rows, names))
        finally:
            write_whole(folder / "jobs.csv", as_csv(jobs, rows, names))
            code = worst(codes)
            _end(parent, folder, rows, failed=code != DONE)
            progress.table(f"{folder.name}: {_counts(rows)}", *as_table(jobs, rows, names))
            progress.say(f"table: {short_path(folder / 'jobs.csv')}")
    if parent.uri is not None:
        progress.say(f"compare runs: {ui_line(parent.uri)}")
    return code


def _end(parent: Run, folder: Path, rows: Sequence[Row], *, failed: bool) -> None:
    parent.failed = failed
    done = sum(row.state == STATES[DONE] for row in rows)
    parent.metrics({"sweep/jobs": len(rows), "sweep/done": done, "sweep/not_done": len(rows) - done})
    for name in ("jobs.csv", "sweep.json"):
        parent.artifact(folder / name)


def worst(codes: Sequence[int | None]) -> int:
    """A defect before the world before a mistake; interrupted if some never ran."""
    return next((code for code in (INTERRUPTED, DEFECT, WORLD, USER) if code in codes), DONE)


# -- which sweep it is


def sweep_name(jobs: Sequence[Job], chosen: str | None) -> str:
    """Name of the sweep's folder: of its chosen ready sweep, if any, and a hash of what its jobs are."""
    ids = sorted(run_id_of(job.config) if job.config is not None else " ".join(job.overrides) for job in jobs)
    return "-".join(part for part in ("sweep", chosen, identity.digest(ids, 8)) if part)


def description(jobs: Sequence[Job], overrides: Sequence[str]) -> dict[str, Any]:
    return {
        "overrides": list(overrides),
        "jobs": [
            {"overrides": list(job.overrides), "folder": None if job.run_dir is None else str(job.run_dir)}
            for job in jobs
        ],
    }


# -- what tells the jobs apart


def swept_names(jobs: Sequence[Job]) -> dict[str, str]:
    """The keys that not all jobs set alike, each with its short name, in the order of the command."""
    values: dict[str, set[str | None]] = {}
    settings = [settings_of(job) for job in jobs]
    for key in dict.fromkeys(key for each in settings for key in each):
        values[key] = {each.get(key) for each in settings}
    names = {key: short_name(key) for key, found in values.items() if len(found) > 1}
    return names if len(set(names.values())) == len(names) else {key: key for key in names}


def settings_of(job: Job) -> dict[str, str]:
    pairs = (line.partition("=") for line in job.overrides)
    return {key.lstrip("+~"): value for key, _, value in pairs if not key.lstrip("+").startswith("hydra.")}


def job_name(job: Job, names: Mapping[str, str]) -> str:
    """Such as `rarely.upper=0.05 often.keep=true`."""
    settings = settings_of(job)
    return " ".join(f"{name}={settings[key]}" for key, name in names.items() if key in settings) or "the only job"


def heading(jobs: Sequence[Job], number: int) -> str:
    """What stands above the work of a job, or its plan. number: from 0."""
    return f"job {number + 1} of {len(jobs)}: {job_name(jobs[number], swept_names(jobs))}"


def swept_over(jobs: Sequence[Job], names: Mapping[str, str]) -> dict[str, str]:
    """All values of each swept key, as on a command line."""
    each = [settings_of(job) for job in jobs]
    return {key: ",".join(dict.fromkeys(values[key] for values in each if key in values)) for key in names}


def short_name(key: str) -> str:
    """The last two parts of a key, or as many as only one key has: `rarely.upper`, but `policy.endpoint.model`."""
    parts, known = key.split("."), schema_keys()
    for length in range(2, len(parts)):
        short = ".".join(parts[-length:])
        if sum(f".{other}".endswith(f".{short}") for other in known) <= 1:
            return short
    return key


# -- the table


def facts_of(job: Job) -> dict[str, Any]:
    """What the job's folder tells of its pool, its forecast and its evaluation."""
    assert job.run_dir is not None
    facts: dict[str, Any] = {}
    selection = read_json(job.run_dir / "select" / "manifest.json") or {}
    if "summary" in selection:
        made = selection["summary"]
        facts |= {"pool_size": made["pool"], "train_size": made["train"], "validation_size": made["validation"]}
        facts["expected_mixed_rate"] = made["forecast"]["mixed_rate"]
    evaluation = read_json(job.run_dir / "evaluate" / "summary.json") or {}
    difference = (evaluation.get("difference") or {}).get("pass_at_1")
    if difference:
        facts["pass_at_1_difference"] = difference["value"]
        facts |= {f"pass_at_1_difference_{side}": difference.get(side) for side in ("low", "high")}
        facts["coverage"] = min(
            share for p in evaluation["policies"].values() if (share := covered_share(p)) is not None
        )
    tracked = read_json(job.run_dir / "tracking" / "mlflow_run.json") or {}
    facts["mlflow_run_id"] = tracked.get("run_id")
    return facts


FACTS = (
    *("pool_size", "train_size", "validation_size", "expected_mixed_rate", "pass_at_1_difference"),
    *("pass_at_1_difference_low", "pass_at_1_difference_high", "coverage", "mlflow_run_id"),
)


def as_csv(jobs: Sequence[Job], rows: Sequence[Row], names: Mapping[str, str]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["job", *names, "state", "seconds", *FACTS, "folder", "error"])
    for number, (job, row) in enumerate(zip(jobs, rows, strict=True), start=1):
        settings, facts = settings_of(job), row.facts or {}
        values = [settings.get(key, "") for key in names]
        made = ["" if facts.get(name) is None else facts[name] for name in FACTS]
        writer.writerow([number, *values, row.state, round(row.seconds, 1), *made, job.run_dir or "", row.error])
    return out.getvalue()


def as_table(
    jobs: Sequence[Job], rows: Sequence[Row], names: Mapping[str, str]
) -> tuple[list[str], list[list[str | int | float]]]:
    """Columns and rows for a person; a column that no job fills is left out."""
    columns: dict[str, list[str | int | float]] = {"job": list(range(1, len(jobs) + 1))}
    for key, name in names.items():
        columns[name] = [settings_of(job).get(key, "") for job in jobs]
    columns["state"] = [row.state for row in rows]
    columns["pool"] = [_fact(row, "pool_size", "{:,}") for row in rows]
    columns["mixed groups"] = [_fact(row, "expected_mixed_rate", "{:.1%}") for row in rows]
    columns["pass@1 difference"] = [_difference(row) for row in rows]
    columns["folder"] = ["" if job.run_dir is None else job.run_dir.name for job in jobs]
    columns["error"] = [_cut(row.error) for row in rows]
    shown = {name: values for name, values in columns.items() if any(value != "" for value in values)}
    return list(shown), [list(row) for row in zip(*shown.values(), strict=True)]


def _fact(row: Row, name: str, form: str) -> str:
    value = (row.facts or {}).get(name)
    return "" if value is None else form.format(value)


def _difference(row: Row) -> str:
    facts = row.facts or {}
    value, low, high = (facts.get(f"pass_at_1_difference{side}") for side in ("", "_low", "_high"))
    if value is None:
        return ""
    interval = "" if low is None or high is None else f" [{100 * low:+.1f}, {100 * high:+.1f}]"
    share = facts.get("coverage", 1.0)
    return f"{100 * value:+.1f}{interval}" + (f" (partial, {percent_of(share)})" if share < 1 else "")


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_ERROR else line[: LONGEST_ERROR - 3] + "..."


def _counts(rows: Sequence[Row]) -> str:
    states = [*STATES.values(), SUBMITTED, WAITING]
    found = {state: sum(row.state == state for row in rows) for state in states}
    return f"{counted(len(rows), 'job')}, " + ", ".join(f"{count} {state}" for state, count in found.items() if count)
