"""Which jobs a submission leaves out, without a Slurm: see tests/integration/test_slurm.py for one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tbexp.app import main
from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder
from tbexp.config.schema import Config
from tbexp.pipeline import submit
from tbexp.pipeline.context import Context, Untracked
from tbexp.pipeline.progress import Progress

LEFT = ("probe", "select/manifest.json", "train", "evaluate/summary.json")


def jobs(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, stages: str, probed: bool, trained: bool, left: tuple[str, ...]
) -> list[str]:
    """Names of the jobs of a run whose folder has `left`. probed, trained: what is in the shared store."""
    import tbexp.reporting

    for name in left:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    monkeypatch.setattr(submit, "finished", lambda context, name: probed if name == "probe" else trained)
    monkeypatch.setattr(submit, "is_trained", lambda context: trained)
    monkeypatch.setattr(submit, "store_of", lambda context, name: folder / "store")
    monkeypatch.setattr(tbexp.reporting, "is_current", lambda run_dir: bool(left))
    with opened(conf_folder()) as compose:
        values: dict[str, Any] = plain(compose(["experiment=smoke", "launcher=slurm", f"stages={stages}"]))
    with Progress() as progress:
        config = Config.model_validate({**values, "store": str(folder / "store")})
        return [job.name for job in submit.jobs_of(Context(config, folder, progress, Untracked()))]


ALL = "[probe,select,train,evaluate,report]"


@pytest.mark.parametrize(
    ("stages", "probed", "trained", "left", "submitted"),
    [
        (ALL, True, True, LEFT, []),
        (ALL, True, True, (), ["report"]),  # it tells what the others came to
        (ALL, True, False, LEFT, ["select", "train", "evaluate base", "evaluate trained", "report"]),
        # New attempts may make another pool, so what was trained and evaluated counts for nothing.
        (ALL, False, True, LEFT, ["probe", "select", "train", "evaluate trained", "report"]),
        ("[probe,select]", True, False, LEFT[:2], []),
        ("[probe,select]", True, False, (), ["select"]),  # another run has made the attempts
        ("[probe,select]", False, False, LEFT[:2], ["probe", "select"]),
        ("[probe]", False, False, (), ["probe", "probe summary"]),
        ("[evaluate]", True, True, LEFT[:3], ["evaluate summary"]),
        ("[evaluate]", True, False, LEFT[:2], ["evaluate base", "evaluate trained", "evaluate summary"]),
        ("[report]", True, True, (), ["report"]),
    ],
)
def test_a_submission_leaves_out_what_is_finished_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    stages: str,
    probed: bool,
    trained: bool,
    left: tuple[str, ...],
    submitted: list[str],
) -> None:
    assert jobs(monkeypatch, tmp_path, stages=stages, probed=probed, trained=trained, left=left) == submitted


def test_the_training_of_another_run_on_the_same_pool_is_told_of_by_this_runs_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with opened(conf_folder()) as compose:
        config = Config.model_validate({**plain(compose(["experiment=smoke"])), "store": str(tmp_path)})
    run, shared = tmp_path / "run", tmp_path / "train" / "key"
    (run / "select").mkdir(parents=True)
    (run / "select" / "manifest.json").write_text("{}")
    shared.mkdir(parents=True)
    (shared / f"result-{config.training.steps}.json").write_text('{"chosen_step": 1}')
    monkeypatch.setattr(submit.stages, "training_folder", lambda context: (shared, [], []))
    monkeypatch.setattr("tbexp.training.weights_fault", lambda folder: "")
    with Progress() as progress:
        context = Context(config, run, progress, Untracked())
        assert not submit.is_trained(context)
        (run / "train").symlink_to(shared)
        assert submit.is_trained(context)


@pytest.mark.parametrize(
    ("stages", "lacks"),
    [
        ("[train]", ["there is no pool to train on"]),
        ("[train,evaluate,report]", ["there is no pool to train on"]),
        ("[select]", ["there is no probe to select from"]),
        ("[select,train]", ["there is no probe to select from"]),
        ("[evaluate]", ["there is no trained policy to evaluate"]),
        ("[evaluate,report]", ["there is no trained policy to evaluate"]),
    ],
)
def test_what_stages_take_from_ones_that_are_not_named_has_to_be_there_at_submission(
    stages: str,
    lacks: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As on this machine; and a plan tells it among what is missing."""
    monkeypatch.chdir(tmp_path)
    (program := tmp_path / "sbatch").write_text("#!/bin/sh\ntouch submitted\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    words = ["experiment=smoke", "launcher=slurm", f"stages={stages}", "tracking=none"]
    assert main([*words, "dry_run=true"]) == 0
    plan = capsys.readouterr().out
    assert sorted(file.name for file in tmp_path.iterdir()) == ["sbatch"]
    assert main(words) == 2
    said = capsys.readouterr().err
    for text in lacks:
        assert text in said and text in plan and "fix: put" in said, (said, plan)
    assert not (tmp_path / "submitted").exists() and not list(tmp_path.rglob("jobs.json"))


def test_all_that_waits_is_told_when_a_run_is_submitted_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tbexp.pipeline import submitted

    jobs = [
        {"name": "probe", "id": "1", "tasks": 2, "folder": str(tmp_path), "stores": True, "shared": True},
        {"name": "select", "id": "2", "tasks": 1, "folder": str(tmp_path), "stores": False, "shared": False},
        {"name": "report", "id": "3", "tasks": 1, "folder": str(tmp_path), "stores": False, "shared": False},
    ]
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "jobs.json").write_text(json.dumps({"jobs": jobs}))

    class State:
        def __init__(self, alive: bool):
            self.alive = alive

    monkeypatch.setattr(submitted, "states", lambda job, folder, tasks: [State(job != "3")])
    assert submitted.queued(tmp_path) == ["probe (1)", "select (2)"]
    assert submitted.alive(tmp_path) == ["select (2)"]  # the probe may be another run's


@pytest.mark.parametrize("knows", [True, False])
def test_where_slurm_cannot_be_asked_nothing_is_cancelled_and_the_status_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], knows: bool
) -> None:
    """knows: it answers, and has forgotten the job."""
    fails = "echo squeue: error: no DNS >&2; echo squeue: fatal: Could not establish a configuration source >&2; exit 1"
    for name in ("squeue", "scontrol", "sacct", "scancel"):
        (program := tmp_path / name).write_text(f"#!/bin/sh\n{'exit 0' if knows and name == 'squeue' else fails}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    (run / "slurm").mkdir(parents=True)
    job = {"name": "probe", "id": "7", "tasks": 1, "folder": str(run / "slurm"), "stores": False, "shared": False}
    (run / "slurm" / "jobs.json").write_text(json.dumps({"jobs": [job]}))
    words = ["experiment=smoke", "launcher=slurm", "tracking=none", f"hydra.run.dir={run}"]
    code = main([*words, "stages=[cancel]"])
    told = capsys.readouterr()
    assert (code, "nothing is running" in told.out) == ((0, True) if knows else (3, False))
    reason = (
        "Slurm did not answer, so nothing was cancelled and jobs may be running: squeue: fatal: Could not establish"
    )
    assert (reason in told.err) is not knows
    assert main([*words, "stages=[status]"]) == 0
    shown = capsys.readouterr().out
    assert "UNKNOWN" in shown and ("Slurm did not answer" in shown and "SLURM_CONF" in shown) is not knows


@pytest.mark.parametrize(
    ("state", "nodes", "restarts", "told"),
    [
        ("PENDING", "", 0, "PENDING"),
        ("PENDING", "", 1, "PENDING, started once"),
        ("PENDING", "", 2, "PENDING, started 2 times"),
        ("RUNNING", "n1", 0, "RUNNING"),
        ("RUNNING", "n1", 1, "RUNNING, started 2 times"),
    ],
)
def test_the_status_tells_how_often_a_job_has_started(
    tmp_path: Path, state: str, nodes: str, restarts: int, told: str
) -> None:
    from tbexp.cluster import JobState
    from tbexp.pipeline.submitted import row

    one = JobState("8", state, nodes, "", restarts, tmp_path / "log")
    assert row({"name": "train", "shared": False}, one)[2] == told
