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

import pytest

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


def test_a_run_that_jobs_will_make_has_a_page_before_and_stays_one_run(server: str, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    from tbexp.config.compose import opened, plain
    from tbexp.config.folders import conf_folder
    from tbexp.config.schema import Config
    from tbexp.pipeline.run import tracked_as
    from tbexp.tracking import open_run, page_of_scheduled

    with opened(conf_folder()) as compose:
        config = Config.model_validate(plain(compose(["experiment=smoke", f"tracking.uri={server}"])))
    tracked = tracked_as(config, tmp_path / "seed1-scheduled", None)
    page = page_of_scheduled(server + "/", **tracked)
    (experiment,) = [found for found in MlflowClient(server).search_experiments() if found.name == "smoke"]
    assert page is not None and page.startswith(f"{server}/#/experiments/{experiment.experiment_id}/runs/")

    def runs() -> list[tuple[str, str]]:
        found = MlflowClient(server).search_runs([experiment.experiment_id])
        return [(run.info.run_id, run.info.status) for run in found if run.info.run_name == "seed1-scheduled"]

    run_id = page.rpartition("/")[2]
    assert runs() == [(run_id, "SCHEDULED")]
    with open_run(config.tracking, default_uri="", params={"a": 1}, **tracked) as run:
        run.metric("m", 1.0)
        assert run.run_id == run_id and runs() == [(run_id, "RUNNING")]
    assert runs() == [(run_id, "FINISHED")]
    assert page_of_scheduled(server, **tracked) == page and runs() == [(run_id, "SCHEDULED")]  # submitted once more


def test_a_tracker_without_pages_and_one_that_does_not_answer_keep_no_submission_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from tbexp.tracking import page_of_scheduled

    told = {"experiment": "e", "run_name": "r", "run_key": "e/r", "parent_run_id": None, "tags": {}}
    assert page_of_scheduled(f"sqlite:///{tmp_path}/m.db", folder=tmp_path, **told) is None  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir()) and not caplog.records
    assert page_of_scheduled("http://127.0.0.1:9", folder=tmp_path, **told) is None  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir()) and "its jobs tell it" in caplog.text


def test_a_submission_prints_the_page_of_its_run(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlflow.tracking import MlflowClient

    from tbexp.app import main

    monkeypatch.chdir(tmp_path)
    for name in ("sbatch", "srun"):
        (program := tmp_path / name).write_text("#!/bin/sh\necho Submitted batch job 7\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("tbexp.policy.endpoint.is_loopback", lambda host: False)  # as if it were another machine's
    words = ["experiment=smoke", "launcher=slurm", "stages=[probe,select]", f"tracking.uri={server}"]
    assert main([*words, "tracking.experiment=submitted"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("MLflow: ")]
    run = MlflowClient(server).get_run(line.rpartition("/")[2])
    assert line == f"MLflow: {server}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
    assert run.info.status == "SCHEDULED" and run.data.tags["tbexp.run_key"].startswith("smoke/seed")
