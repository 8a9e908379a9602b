"""Processes that open the same MLflow database, and one that dies in it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from tbexp.config.schema import Tracking
from tbexp.tracking import open_run

MLFLOW = Tracking(name="mlflow", kind="mlflow")


def rows_of(database: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query).fetchall()


def test_a_process_that_was_killed_while_it_made_the_database_spoils_it_for_nobody(tmp_path: Path) -> None:
    database = tmp_path / "mlflow.db"
    script = f"""
from pathlib import Path
from tbexp.tracking.mlflow_link import _make
_make(Path({str(database)!r}))
"""
    making = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    fresh = tmp_path / "mlflow.db.new"
    while not (fresh.exists() and fresh.stat().st_size > 20_000):  # some tables of many
        assert making.poll() is None
        time.sleep(0.001)
    making.kill()
    making.wait()
    assert not database.exists()
    same: dict[str, Any] = {
        "experiment": "e",
        "run_name": "r",
        "run_key": "e/r",
        "folder": tmp_path / "f",
        "params": {},
    }
    with open_run(MLFLOW, default_uri=f"sqlite:///{database}", patience=120, **same) as run:
        run.metric("x", 1.0)
    assert rows_of(database, "select value from metrics") == [(1.0,)] and not fresh.exists()


def test_eight_processes_on_a_fresh_database_all_log_their_run(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from tbexp.config.schema import Tracking
from tbexp.tracking import open_run
number = sys.argv[1]
Path({str(tmp_path)!r}, "ready" + number).touch()
while not Path({str(tmp_path)!r}, "go").exists():
    time.sleep(0.01)
with open_run(Tracking(name="mlflow", kind="mlflow"), default_uri={f"sqlite:///{tmp_path}/mlflow.db"!r},
              experiment="sweep", run_name="job" + number, run_key="job" + number,
              folder=Path({str(tmp_path)!r}, "run" + number), params={{"n": number}}, patience=300) as run:
    for step in range(20):
        run.metric("x", step, step)
    assert run.run_id
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(number)], stderr=subprocess.PIPE, env=environment)
        for number in range(8)
    ]
    while len(list(tmp_path.glob("ready*"))) < 8 and all(process.poll() is None for process in processes):
        time.sleep(0.02)
    (tmp_path / "go").touch()
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert (process.returncode, errors.decode()) == (0, "")
    names = "select name, status from runs order by name"
    assert rows_of(tmp_path / "mlflow.db", names) == [(f"job{n}", "FINISHED") for n in range(8)]
    assert rows_of(tmp_path / "mlflow.db", "select count(*) from metrics") == [(160,)]
    assert rows_of(tmp_path / "mlflow.db", "select count(*) from experiments where name = 'sweep'") == [(1,)]
