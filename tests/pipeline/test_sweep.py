"""The jobs of a sweep: which sweep it is, what tells its jobs apart, its table, and what it leaves when jobs fail."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder
from tbexp.config.schema import Config
from tbexp.errors import DEFECT, DONE, INTERRUPTED, USER, WORLD, Ending, Problem, UserError
from tbexp.pipeline.context import InSweep
from tbexp.pipeline.finished import given, is_finished
from tbexp.pipeline.inputs import Inputs, problems_of
from tbexp.pipeline.progress import Progress
from tbexp.pipeline.sweep import Job, run_sweep, short_name, sweep_name, swept_names, worst
from tbexp.training import keeping

with opened(conf_folder()) as compose:
    VALUES = plain(compose(["tracking=none", "stages=[select]"]))


def config(**more: Any) -> Config:
    return Config.model_validate({**VALUES, **more})


def jobs(folder: Path, *each: tuple[str, ...], wrong: dict[int, str] | None = None) -> list[Job]:
    wrong = wrong or {}
    return [
        Job(lines, config(seed=n), folder / f"seed{n}-abc", (Problem(wrong[n], "group.size"),) if n in wrong else ())
        for n, lines in enumerate(each, start=1)
    ]


EDGE, KEEP = "buckets.bands.rarely.upper", "buckets.bands.often.keep"
THREE = [(f"{EDGE}=0.05", "seed=4"), (f"{EDGE}=0.08", "seed=4"), (f"{EDGE}=0.12", "seed=4")]


def sweep(
    folder: Path, made: list[Job], run_job: Callable[[int, InSweep], Ending]
) -> tuple[int, list[dict[str, str]], str]:
    out = io.StringIO()
    code = run_sweep(made, folder=folder, overrides=["x"], run_job=run_job, progress=Progress(out))
    return code, rows_of(folder), out.getvalue()


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "jobs.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("key", "short"),
    [
        (EDGE, "rarely.upper"),
        ("optimizer.lr", "optimizer.lr"),
        ("seed", "seed"),
        ("policy.endpoint.model", "policy.endpoint.model"),
        ("training.verl.actor.entropy_coeff", "actor.entropy_coeff"),
    ],
)
def test_a_swept_key_is_called_by_as_much_of_it_as_only_one_key_has(key: str, short: str) -> None:
    assert short_name(key) == short


def test_the_swept_keys_are_those_that_differ() -> None:
    assert swept_names(jobs(Path(), *THREE)) == {EDGE: "rarely.upper"}
    one = ("+group={size:4}", f"{KEEP}=true", "hydra.verbose=a", "a.b.c=1", "d.b.c=1")
    other = ("+group={size:8}", f"{KEEP}=true", "hydra.verbose=b", "a.b.c=2", "d.b.c=2")
    assert list(swept_names(jobs(Path(), one, other)).values()) == ["group", "a.b.c", "d.b.c"]


def test_the_same_jobs_are_the_same_sweep_whatever_their_order() -> None:
    made = jobs(Path(), *THREE)
    assert sweep_name(made, "edges") == sweep_name(made[::-1], "edges") != sweep_name(made[:2], "edges")
    assert sweep_name(made, "edges").startswith("sweep-edges-") and sweep_name(made, None).count("-") == 1


def test_what_fails_leaves_the_others_alone_and_stands_in_the_table(tmp_path: Path) -> None:
    ends = {0: Ending(DONE), 2: Ending(WORLD, "no servers\nat all")}
    seen: list[tuple[int, str]] = []

    def run_job(number: int, place: InSweep) -> Ending:
        seen.append((number, place.name))
        select = tmp_path / f"seed{number + 1}-abc" / "select"
        select.mkdir(parents=True)
        summary = {"pool": 1200, "train": 1000, "validation": 200, "forecast": {"mixed_rate": 0.75}}
        (select / "manifest.json").write_text(json.dumps({"summary": summary}))
        return ends[number]

    code, rows, shown = sweep(tmp_path / "sweep", jobs(tmp_path, *THREE, wrong={2: "is too small"}), run_job)
    assert code == WORLD
    assert seen == [(0, "rarely.upper=0.05"), (2, "rarely.upper=0.12")]
    assert [row["state"] for row in rows] == ["done", "mistake", "world failed"]
    assert [row[EDGE] for row in rows] == ["0.05", "0.08", "0.12"]
    assert rows[0]["pool_size"] == "1200" and rows[0]["expected_mixed_rate"] == "0.75"
    assert rows[1]["error"] == "group.size: is too small" and rows[2]["error"] == "no servers\nat all"
    assert "3 jobs, 1 done, 1 mistake, 1 world failed" in shown
    assert "1,200" in shown and "75.0%" in shown and "no servers at all" in shown and "pass@1" not in shown


def test_a_partial_evaluation_is_marked_in_the_table_of_a_sweep(tmp_path: Path) -> None:
    def run_job(number: int, place: InSweep) -> Ending:
        file = tmp_path / f"seed{number + 1}-abc" / "evaluate" / "summary.json"
        file.parent.mkdir(parents=True)
        policies = {"base": {"coverage": {"share": 1.0}}, "trained": {"coverage": {"share": 1.0 - number / 4}}}
        difference = {"pass_at_1": {"value": 0.25, "low": 0.125, "high": 0.5}}
        file.write_text(json.dumps({"policies": policies, "difference": difference}))
        return Ending(DONE)

    _, rows, shown = sweep(tmp_path / "sweep", jobs(tmp_path, *THREE[:2]), run_job)
    assert [row["coverage"] for row in rows] == ["1.0", "0.75"]
    assert shown.count("+25.0 [+12.5, +50.0]") == 2 and shown.count("(partial, 75.0%)") == 1


def test_the_trainings_of_a_sweep_are_told_that_others_come(tmp_path: Path) -> None:
    told = []

    def run_job(number: int, place: InSweep) -> Ending:
        told.append(keeping.more_come())
        return Ending(DONE)

    sweep(tmp_path / "sweep", jobs(tmp_path, *THREE), run_job)
    assert told == [True] * 3 and not keeping.more_come()


def test_an_interrupt_ends_the_sweep_and_the_table_tells_what_never_ran(tmp_path: Path) -> None:
    def run_job(number: int, place: InSweep) -> Ending:
        if number == 1:
            raise KeyboardInterrupt
        return Ending(DONE)

    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path / "sweep", jobs(tmp_path, *THREE), run_job)
    assert [row["state"] for row in rows_of(tmp_path / "sweep")] == ["done", "interrupted", "not run"]


def test_a_sweep_runs_once_at_a_time(tmp_path: Path) -> None:
    made = jobs(tmp_path, *THREE)

    def run_job(number: int, place: InSweep) -> Ending:
        with pytest.raises(UserError, match="another process runs this sweep"):
            sweep(tmp_path / "sweep", made, lambda *_: Ending(DONE))
        return Ending(DONE)

    assert sweep(tmp_path / "sweep", made, run_job)[0] == DONE


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([DONE, DONE], DONE),
        ([DONE, USER, DONE], USER),
        ([USER, WORLD], WORLD),
        ([WORLD, DEFECT, USER], DEFECT),
        ([DEFECT, INTERRUPTED, None], INTERRUPTED),
    ],
)
def test_the_worst_job_decides_the_exit_code(codes: list[int | None], code: int) -> None:
    assert worst(codes) == code


# -- what runs read, and when they are finished


def with_rows(file: Path, **more: Any) -> Config:
    return config(probe={**VALUES["probe"], "rows": [str(file)]}, **more)


def test_a_broken_file_is_read_once_and_told_of_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"uid": 3}\n')
    inputs = Inputs()
    first = problems_of(with_rows(file), inputs)
    assert first and str(first[0].where) == f"{file}:1"
    file.unlink()
    assert problems_of(with_rows(file), inputs) == first


def test_a_run_is_finished_as_long_as_what_it_was_given_and_what_it_made_are_the_same(tmp_path: Path) -> None:
    import hashlib

    file, made = tmp_path / "rows.jsonl", tmp_path / "select" / "pool.yaml"
    file.write_text("rows\n")
    made.parent.mkdir()
    made.write_text("- a.py:b\n")
    outputs = {"select/pool.yaml": hashlib.sha256(made.read_bytes()).hexdigest()}

    def manifest(finished: str | None) -> None:
        (tmp_path / "manifest.json").write_text(json.dumps({"finished": finished, "outputs": outputs}))

    now = with_rows(file)
    key = given(now, None, Inputs())
    manifest(None)
    assert not is_finished(tmp_path, now, key)
    manifest(key)
    assert is_finished(tmp_path, now, key)
    assert not is_finished(tmp_path, with_rows(file, force=["select"]), key)
    assert given(with_rows(file, launcher={**VALUES["launcher"], "name": "other"}), None, Inputs()) == key
    assert given(with_rows(file, stages=["select", "report"]), None, Inputs()) != key
    made.write_text("- a.py:c\n")
    assert not is_finished(tmp_path, now, key)
    made.unlink()
    assert not is_finished(tmp_path, now, key)
    file.write_text("other rows\n")
    assert given(now, None, Inputs()) != key
