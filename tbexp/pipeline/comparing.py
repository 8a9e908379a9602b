"""`tbexp stages=[compare]`: which runs are meant, where their files are, and where the comparison is kept.

Decided here: what an entry of compare.runs means, in this order: `published:NAME`, a run's folder, an MLflow run id, a
run's name (in the experiment, or EXPERIMENT/NAME). A sweep's parent run stands for its jobs. Runs at a tracker are read
from there alone; a run's folder only where no tracker knows it or the entry names it.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tbexp.config.schema import Config
from tbexp.config.values import at_home
from tbexp.errors import Problem, UserError
from tbexp.pipeline import identity
from tbexp.pipeline.evaluated import PARTIAL
from tbexp.pipeline.progress import Progress

if TYPE_CHECKING:
    from tbexp.reporting.side_by_side import Comparison, Tested
    from tbexp.tracking import Archive, Run, TrackedRun

KEY = "compare.runs"
FILES = (
    *("config.yaml", "manifest.json", "select/tasks.jsonl", "select/manifest.json"),
    *("train/metrics.jsonl", "train/result.json", "evaluate/summary.json", "evaluate/tasks.jsonl"),
)
PUBLISHED = "published:"
SHOWN = 8  # candidates of an ambiguous name
RUN_FILES = ("config.yaml", "select", "evaluate")  # one of them makes a folder a run's


@dataclass(frozen=True, slots=True)
class Meant:
    """What an entry means: a folder, a run at the tracker, or a published model."""

    entry: str
    folder: Path | None = None
    tracked: TrackedRun | None = None
    published: str | None = None

    @property
    def name(self) -> str:
        if self.folder is not None:
            return self.folder.name
        return self.tracked.name if self.tracked else str(self.published)

    @property
    def identity(self) -> str:
        if self.folder is not None:
            return f"folder {self.folder}"
        return f"run {self.tracked.run_id}" if self.tracked else f"published {self.published}"


def compare(config: Config, *, run_dir: Path) -> None:
    """Writes the comparison into its folder beside the runs' and logs it as a run of its own.

    Raises UserError with every entry that means nothing, more than one run, or a run without results; WorldFailure
    when the tracker does not answer.
    """
    from tbexp.reporting.comparison import write_comparison
    from tbexp.tracking import open_archive, open_run, tracker_uri

    default_uri = f"sqlite:///{Path(config.store).resolve().parent / 'mlflow.db'}"
    experiment = config.tracking.experiment or config.name
    archive = open_archive(tracker_uri(config.tracking, default_uri))
    meant = resolve(config, archive, experiment, run_dir.parent)
    if config.dry_run:
        with Progress(sys.stdout) as progress:
            progress.table("would be compared; nothing was written", ["entry", "means"], [_line(m) for m in meant])
        return
    with tempfile.TemporaryDirectory(prefix="tbexp-compare-") as scratch, Progress() as progress:
        found = read(config, meant, archive, Path(scratch), progress)
        folder = place(config, run_dir, meant)
        folder.mkdir(parents=True, exist_ok=True)
        with open_run(
            config.tracking,
            default_uri=default_uri,
            experiment=experiment,
            run_name=folder.name,
            run_key=f"{config.name}/{folder.name}",
            folder=folder / "tracking",
            params={"compare": config.compare.model_dump(mode="json")},
        ) as tracker:
            file = write_comparison(found, folder, title=f"{config.name}: runs compared")
            log(found, folder, tracker)
        say(found, file, progress)


def resolve(config: Config, archive: Archive | None, experiment: str, runs_folder: Path) -> list[Meant]:
    """What the entries mean, each run once. Raises UserError with all that can't be told."""
    problems: list[Problem] = []
    meant: list[Meant] = []
    for entry in config.compare.runs:
        result = _meaning(entry, archive, experiment, runs_folder)
        if isinstance(result, Problem):
            problems.append(result)
        else:
            meant += result
    once = {each.identity: each for each in reversed(meant)}
    ordered = [each for each in meant if once.get(each.identity) is each]
    baseline = config.compare.baseline
    runs = [each for each in ordered if each.published is None]
    if not problems and baseline is not None and not any(baseline in (each.entry, each.name) for each in runs):
        fix = "name one as it stands in compare.runs, or the name of a job of a sweep there"
        problems.append(Problem(f"{baseline} is no run of compare.runs", "compare.baseline", fix))
    if not problems and not runs:
        problems.append(Problem("names published results alone", KEY, "name a run to put beside them"))
    if problems:
        raise UserError(problems)
    return ordered


def read(
    config: Config, meant: Sequence[Meant], archive: Archive | None, scratch: Path, progress: Progress
) -> Comparison:
    """Brings the runs' files here and puts them side by side."""
    from tbexp.reporting.side_by_side import Source, compare_runs, holds_results, read_source
    from tbexp.tracking import artifacts_elsewhere

    runs, published, problems = [], [], []
    bar = progress.stage("read runs", len(meant), "runs")
    for number, each in enumerate(meant):
        if each.published is not None:
            published.append((Source(each.entry, each.published, "published"), each.published))
        elif each.tracked is not None:
            assert archive is not None
            folder = scratch / str(number)
            archive.fetch(each.tracked, FILES, folder)
            where = f"MLflow {each.tracked.experiment}, run {each.tracked.run_id}"
            run = read_source(Source(each.entry, each.tracked.name, where, each.tracked.status), folder)
            if holds_results(run[1]):
                runs.append(run)
            else:
                elsewhere = artifacts_elsewhere(each.tracked)
                why = f"its artifacts are at {elsewhere}, which is not here" if elsewhere else "it logged no results"
                fix = "run an mlflow server, which keeps artifacts itself" if elsewhere else "name a run that selected"
                problems.append(Problem(f"{_name(each)} holds nothing to compare: {why}", KEY, fix))
        elif each.folder is not None:
            run = read_source(Source(each.entry, each.folder.name, str(each.folder)), each.folder)
            if holds_results(run[1]):
                runs.append(run)
            else:
                what = f"{each.folder} holds nothing to compare: no selection, training or evaluation"
                problems.append(Problem(what, KEY, "name a run that selected"))
        bar.update(number + 1)
    if problems:
        raise UserError(problems)
    bar.done()
    wanted = config.compare
    return compare_runs(
        runs,
        published,
        baseline=wanted.baseline,
        every_pair=wanted.pairs == "all",
        policy=wanted.policy,
        samples=wanted.bootstrap,
        seed=wanted.seed,
    )


def place(config: Config, run_dir: Path, meant: Sequence[Meant]) -> Path:
    """outputs/<experiment>/compare-<key>, or the folder that hydra.run.dir names."""
    from tbexp.config.compose import run_id_of

    if run_dir.name != run_id_of(config):
        return run_dir
    settings = config.compare.model_dump(mode="json", exclude={"name", "runs"})
    key = identity.digest({"runs": [each.identity for each in meant], "settings": settings}, 8)
    return run_dir.with_name(f"compare-{key}")


def log(found: Comparison, folder: Path, tracker: Run) -> None:
    """The page, its parts and the tests' figures."""
    from tbexp.reporting.comparison import versus

    for name in ("comparison.html", "comparison.json"):
        tracker.artifact(folder / name)
    for name in ("figures", "tables"):
        tracker.artifact(folder / name, name)
    values: dict[str, float] = {"compare/runs": len(found.runs)}
    for test in found.tests:
        pair, name = test.found, versus(found, test).replace(" − ", "_minus_")
        values[f"compare/{name}/shared_tasks"] = len(pair.shared)
        for what, change in (("pass_at_1", pair.pass_at_1), ("observed_all_k", pair.every)):
            if change is not None:
                values[f"compare/{name}/{what}"] = change.value
        if pair.p is not None:
            values[f"compare/{name}/mcnemar_p"] = pair.p
        values[f"compare/{name}/partial"] = float(bool(_partial(found, test)))
    tracker.metrics(values)
    tracker.tag(PARTIAL, "; ".join(f"{side.letter}: {side.partial}" for side in found.runs if side.partial) or "no")


def say(found: Comparison, file: Path, progress: Progress) -> None:
    """The summary at the end."""
    from tbexp.reporting.comparison import versus
    from tbexp.reporting.tables import interval, points

    for warning in found.warnings:
        progress.say(f"note: {warning}")
    rows = []
    for test in found.tests:
        cells = [versus(found, test) + (" (partial)" if _partial(found, test) else ""), str(len(test.found.shared))]
        for change in (test.found.pass_at_1, test.found.every):
            span = interval({"low": change.low, "high": change.high}, signed=True) if change else ""
            cells.append(points(change.value if change else None) + (f" [{span}]" if span else ""))
        cells.append("–" if test.adjusted is None else f"{test.adjusted:.3f}")
        rows.append(cells)
    sides = "; ".join(side.label.replace("  ", " ") + (" (partial)" if side.partial else "") for side in found.sides)
    progress.say(f"compare: {sides}")
    if rows:
        columns = ["pair", "shared tasks", "pass@1, points", "k of k, points", "adjusted p"]
        progress.table("paired over shared tasks", columns, rows)
    progress.say(f"comparison: {file}")


def _partial(found: Comparison, test: Tested) -> bool:
    return bool(found.sides[test.first].partial or found.sides[test.second].partial)


def _meaning(entry: str, archive: Archive | None, experiment: str, runs_folder: Path) -> list[Meant] | Problem:
    if entry.startswith(PUBLISHED):
        return _published(entry)
    try:
        folder = at_home(entry)
    except ValueError as unknown:
        return Problem(f"{entry} {unknown}", KEY, "name a run's folder")
    if folder.is_dir():
        if any((folder / name).exists() for name in RUN_FILES):
            return [Meant(entry, folder=folder.resolve())]
        return Problem(f"{entry} is a folder, but of no run", KEY, "name a folder that has a config.yaml")
    at_tracker = _tracked(entry, archive, experiment)
    if isinstance(at_tracker, Problem):
        return at_tracker
    if at_tracker is not None:
        assert archive is not None
        jobs = archive.children(at_tracker)
        return [Meant(entry, tracked=run) for run in jobs or [at_tracker]]
    named = sorted(path for path in runs_folder.glob("*") if _called(path.name, entry) and _is_run(path))
    exact = [path for path in named if path.name == entry]
    if len(exact or named) == 1:
        return [Meant(entry, folder=(exact or named)[0].resolve())]
    if named:
        return _ambiguous(entry, [str(path) for path in named])
    where = f"no run at {archive.uri} (experiment {experiment})" if archive else "no tracker to look it up at"
    return Problem(
        f"{entry} is no folder, {where}, and no run in {runs_folder}",
        KEY,
        "a run's name (or EXPERIMENT/NAME), its MLflow run id, its folder, or published:<model>",
    )


def _tracked(entry: str, archive: Archive | None, experiment: str) -> TrackedRun | Problem | None:
    if archive is None:
        return None
    if re.fullmatch(r"[0-9a-f]{32}", entry) and (run := archive.by_id(entry)) is not None:
        return run
    found = archive.by_name(experiment, entry)
    if not found and "/" in entry:
        found = archive.by_name(*entry.rsplit("/", 1))
    if len(found) > 1:
        return _ambiguous(entry, [f"{run.name} ({run.run_id})" for run in found])
    return found[0] if found else None


def _published(entry: str) -> list[Meant] | Problem:
    from tbexp.config.nearest import did_you_mean, nearest
    from tbexp.evaluation import load_published

    name, models = entry.removeprefix(PUBLISHED), load_published()["models"]
    if name in models:
        return [Meant(entry, published=name)]
    fix = f"{did_you_mean(nearest(name, models))} published are {', '.join(models)}".strip()
    return Problem(f"no results of {name!r} were published", KEY, fix)


def _ambiguous(entry: str, candidates: Sequence[str]) -> Problem:
    more = f" and {len(candidates) - SHOWN} more" if len(candidates) > SHOWN else ""
    what = f"{entry} means {len(candidates)} runs: {', '.join(candidates[:SHOWN])}{more}"
    return Problem(what, KEY, "write the whole name or the run id")


def _called(name: str, entry: str) -> bool:
    return bool(entry) and (name == entry or name.startswith(f"{entry}-"))


def _is_run(path: Path) -> bool:
    return path.is_dir() and (path / "config.yaml").exists()


def _name(each: Meant) -> str:
    return each.entry if each.name in ("", each.entry) else f"{each.entry} ({each.name})"


def _line(each: Meant) -> tuple[str, str]:
    return each.entry, each.identity + (f" ({each.tracked.name})" if each.tracked else "")


__all__ = ["compare", "resolve"]
