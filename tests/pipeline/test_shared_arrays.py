"""Arrays that fill a store: who joins one that is under way, and with whom it ends. Without a Slurm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tbexp.cluster import JobState
from tbexp.errors import UserError
from tbexp.pipeline import submit, submitted


def state(id: str, said: str, exit: str = "0:0") -> JobState:
    return JobState(id, said, "", "", 0, Path("log"), exit=exit)


@pytest.mark.parametrize(
    ("tasks", "joined"),
    [
        (["RUNNING", "PENDING"], True),
        (["COMPLETED", "RUNNING"], True),
        (["COMPLETING", "RUNNING"], True),
        (["FAILED", "RUNNING"], None),
        (["PENDING", "OUT_OF_MEMORY"], None),
        (["COMPLETING 1:0", "RUNNING"], None),  # it will have failed
        (["COMPLETING 0:15"], None),  # it is being cancelled
        (["FAILED", "CANCELLED"], False),
        (["FAILED", "COMPLETED"], False),
        (["COMPLETED", "COMPLETED"], False),
        (["UNKNOWN", "UNKNOWN"], False),
    ],
)
def test_an_array_is_joined_while_it_can_still_end_well_and_refused_while_it_goes_on_although_it_cannot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tasks: list[str], joined: bool | None
) -> None:
    """joined: None: refused; False: a new one is submitted."""
    found = [state(f"7_{n}", *text.split()) for n, text in enumerate(tasks)]
    monkeypatch.setattr(submit, "states", lambda job, folder, count: found if job == "7" else [])
    new = {"name": "probe", "id": "8", "tasks": 2, "nodes": 1, "folder": str(tmp_path), "after": [], "stores": True}
    monkeypatch.setattr(submit, "entry", lambda *_: {**new, "shared": False})
    (tmp_path / "jobs.json").write_text(json.dumps({**new, "id": "7", "tasks": len(tasks), "runs": ["/runs/first"]}))
    job = submit.Planned("probe", tmp_path, ({}, {}), shared=True)
    context: Any = type("Context", (), {"run_dir": Path("/runs/second")})
    if joined is None:
        with pytest.raises(UserError) as refused:
            submit.submit_one(context, job, [], [])
        (problem,) = submit.half_failed(job)
        assert str(problem) == str(refused.value) and "stages=[cancel]" in problem.fix
        assert problem.what.startswith("probe: of its array 7_")
        assert json.loads((tmp_path / "jobs.json").read_text())["runs"] == ["/runs/first"]
        return
    assert submit.half_failed(job) == []
    told = submit.submit_one(context, job, [], [])
    assert (told["id"], told["shared"]) == (("7", True) if joined else ("8", False))
    runs = json.loads((tmp_path / "jobs.json").read_text())["runs"]
    assert runs == (["/runs/first", "/runs/second"] if joined else ["/runs/second"])


def record(run: Path, store: Path, own: list[str], array: str = "7") -> None:
    jobs = [{"name": "probe", "id": array, "tasks": 1, "folder": str(store), "stores": True}] if array else []
    jobs += [{"name": "select", "id": id, "tasks": 1, "folder": str(run), "stores": False} for id in own]
    (run / "slurm").mkdir(parents=True)
    (run / "slurm" / "jobs.json").write_text(json.dumps({"jobs": jobs}))


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was cancelled. Jobs below 100 are alive."""
    gone: list[str] = []
    monkeypatch.setattr(submitted, "states", lambda id, *_: [state(id, "RUNNING" if int(id) < 100 else "CANCELLED")])
    monkeypatch.setattr(submitted, "end_jobs", gone.extend)
    return gone


@pytest.mark.parametrize(
    ("others", "array", "submitting", "kept"),
    [
        (["9"], "7", False, True),
        ([], "7", False, True),  # it wants the attempts, or its other jobs are not submitted yet
        (["109"], "7", False, False),  # what waited for it is gone
        (["109"], "7", True, True),  # it is being submitted again
        ([], "", True, True),  # it has joined the array and not written its record
        ([], "", False, False),
        ([], "107", False, False),  # it has another array
    ],
)
def test_a_shared_array_ends_with_the_last_run_that_waits_for_it(
    tmp_path: Path, ended: list[str], others: list[str], array: str, submitting: bool, kept: bool
) -> None:
    store, mine, other = tmp_path / "store", tmp_path / "mine", tmp_path / "other"
    record(mine, store, ["8"])
    record(other, store, others, array)
    store.mkdir()
    (store / "jobs.json").write_text(json.dumps({"id": "7", "runs": [str(mine), str(other), str(tmp_path / "gone")]}))
    lock = FileLock(other / submit.SUBMITTING)
    if submitting:
        lock.acquire()
    try:
        told = submitted.withdraw(mine)
    finally:
        lock.release()
    assert ended == (["8"] if kept else ["8", "7"]) and ("probe (7)" in told) is not kept
    assert not (tmp_path / "gone").exists()


def test_a_submission_that_fails_ends_what_it_has_submitted_and_not_what_was_there(
    tmp_path: Path, ended: list[str]
) -> None:
    record(tmp_path / "run", tmp_path / "store", ["8"])  # of an earlier submission
    assert submitted.withdraw(tmp_path / "run", []) == [] and ended == []
    new = {"name": "train", "id": "9", "tasks": 1, "folder": str(tmp_path), "stores": False}
    assert submitted.withdraw(tmp_path / "run", [new]) == ["train (9)"] and ended == ["9"]
