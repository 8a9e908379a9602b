"""Sweeps as processes, tracked: killed and continued, with mistakes in some jobs, as separate jobs at one moment."""

from __future__ import annotations

import csv
import json
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import tbexp

RARELY, OFTEN = "buckets.bands.rarely.upper", "buckets.bands.often.upper"
TWELVE = [f"{RARELY}=0.05,0.08,0.12,0.15", f"{OFTEN}=0.85,0.9,0.95"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a probe of 200 tasks that was made elsewhere."""
    draw = random.Random(1)
    with (tmp_path / "rows.jsonl").open("w") as file:
        for task in range(200):
            rate = draw.betavariate(0.5, 0.5)
            for attempt in range(8):
                row = {"uid": f"desk_{task % 9}.py:test_{task}", "attempt": attempt, "passed": draw.random() < rate}
                file.write(json.dumps({**row, "system_error": None}) + "\n")
    return tmp_path


def start(place: Path, *words: str) -> subprocess.Popen[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(place), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "tbexp", "stages=[select]", "probe.rows=[rows.jsonl]", *words],
        cwd=place,
        env={**environment, "PYTHONPATH": str(Path(tbexp.__file__).parent.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(place: Path, *words: str) -> tuple[int, str]:
    """Exit code, and what was said."""
    with start(place, *words) as process:
        try:
            _, said = process.communicate(timeout=280)
        except BaseException:
            process.kill()
            raise
    return process.returncode, said


def query(place: Path, text: str, values: Sequence[str] = ()) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(place / "outputs" / "mlflow.db")) as connection:
        return connection.execute(text, values).fetchall()


def table(place: Path) -> list[dict[str, str]]:
    (file,) = place.glob("outputs/laptop/sweep-*/jobs.csv")
    with file.open() as lines:
        return list(csv.DictReader(lines))


def children(place: Path) -> dict[str, str]:
    """Status of each child run by its id; there is one parent."""
    found = query(place, "select run_uuid, value from tags where key = 'mlflow.parentRunId'")
    assert len({parent for _, parent in found}) == 1
    statuses = dict(query(place, "select run_uuid, status from runs"))
    assert set(statuses) == {run for run, _ in found} | {found[0][1]}
    return {run: statuses[run] for run, _ in found}


def test_a_killed_sweep_of_twelve_thresholds_goes_on_where_it_stopped_and_is_one_sweep_in_mlflow(place: Path) -> None:
    with start(place, "-m", *TWELVE) as process:
        assert process.stderr is not None
        assert any(line.startswith("job 6 of 12: ") for line in process.stderr)
        process.kill()
    made = {file: file.stat().st_mtime_ns for file in place.glob("outputs/laptop/*/select/manifest.json")}
    assert 5 <= len(made) < 12

    code, said = run(place, "-m", *TWELVE)
    assert code == 0, said
    assert 4 <= said.count("finished before, nothing to do") < 12 and "probe:" not in said
    rows = table(place)
    assert [(row[RARELY], row[OFTEN], row["state"]) for row in rows] == [
        (low, high, "done") for low in ("0.05", "0.08", "0.12", "0.15") for high in ("0.85", "0.9", "0.95")
    ]
    assert len({row["pool_size"] for row in rows}) > 1
    assert children(place) == {row["mlflow_run_id"]: "FINISHED" for row in rows}
    for row in rows:
        params = dict(query(place, "select key, value from params where run_uuid = ?", [row["mlflow_run_id"]]))
        assert (params[RARELY], params[OFTEN]) == (row[RARELY], row[OFTEN])
        name = query(place, "select name from runs where run_uuid = ?", [row["mlflow_run_id"]])
        assert name == [(f"rarely.upper={row[RARELY]} often.upper={row[OFTEN]}",)]
        text = "select value from metrics where run_uuid = ? and key = 'select/pool_size'"
        assert set(query(place, text, [row["mlflow_run_id"]])) == {(float(row["pool_size"]),)}

    metrics, files = query(place, "select count(*) from metrics where key like 'select/%'"), set(place.rglob("*"))
    code, said = run(place, "-m", *TWELVE)
    assert (code, said.count("finished before, nothing to do")) == (0, 12), said
    assert query(place, "select count(*) from metrics where key like 'select/%'") == metrics
    assert len(children(place)) == 12 and set(place.rglob("*")) == files
    assert not list(place.rglob("multirun.yaml")) and not list(place.glob("outputs/stages/probe"))


def test_eight_jobs_at_one_moment_on_a_fresh_database_all_end_well_and_are_tracked(place: Path) -> None:
    edges = [f"{RARELY}=0.{edge:02}" for edge in range(5, 13)]
    processes = [start(place, edge) for edge in edges]
    try:
        for process in processes:
            _, said = process.communicate(timeout=280)
            assert process.returncode == 0 and "WARNING" not in said, said
    finally:
        for process in processes:
            process.kill()
    assert query(place, "select status, count(*) from runs group by status") == [("FINISHED", 8)]
    assert len(query(place, f"select distinct value from params where key = '{RARELY}'")) == 8
    assert query(place, "select count(*) from metrics where key = 'select/pool_size'") == [(8,)]


def test_a_mistake_in_some_jobs_leaves_the_others_alone_and_nothing_behind(place: Path) -> None:
    words = ["tracking=none", "-m", f"{RARELY}=0.08,0.5", "group.size=8,1", "selection.min_clean=3,9"]
    code, said = run(place, *words)
    assert code == 2 and "Traceback" not in said
    assert said.count("out of order") == 1 and "6 of 8 jobs cannot run, the others go on" in said
    rows = table(place)
    assert [row["state"] for row in rows] == ["done", *["mistake"] * 7]
    assert "no task of 200 is kept" in rows[1]["error"] and "group.size: 1 must be" in rows[2]["error"]
    assert "out of order" in rows[4]["error"] and "out of order" in rows[7]["error"]
    folders = {path.name for path in place.glob("outputs/laptop/*") if path.is_dir()}
    assert {name.split("-")[0] for name in folders} == {"seed1", "sweep"} and len(folders) == 3


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["-m", "seed=1,2", "dry_run=true"], 0, "nothing was run"),
        (["-m", "seed=1,2", "probe.rows=[broken.jsonl]"], 2, "tbexp: broken.jsonl:2: no JSON"),
        (["probe.rows=[broken.jsonl]"], 2, "tbexp: broken.jsonl:2: no JSON"),
        (["probe.rows=[]", "stages=[probe,select]", "tasks.candidates=[swap.py:test_nothing]"], 2, "test_nothing"),
    ],
)
def test_what_only_looks_or_cannot_begin_leaves_nothing(words: list[str], code: int, part: str, place: Path) -> None:
    (place / "broken.jsonl").write_text((place / "rows.jsonl").read_text()[:150] + "\n")
    with start(place, *words) as process:
        out, said = process.communicate(timeout=280)
    assert process.returncode == code and part in out + said, out + said
    assert said.count("tbexp: ") == (code == 2)
    assert sorted(path.name for path in place.iterdir()) == ["broken.jsonl", "rows.jsonl"]
