"""What a start of a job that Slurm warns has kept, and what it says of that."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tbexp import node
from tbexp.attempts import AttemptRow, AttemptStore
from tbexp.cluster import IDLE, STOPPED
from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder
from tbexp.pipeline import on_node
from tbexp.pipeline.context import Context, Place, Untracked
from tbexp.pipeline.progress import Progress
from tbexp.pipeline.run import run_stages

CLEAN, ERROR = (
    {"passed": True, "reward": 1.0},
    {"passed": None, "reward": 0.0, "system_error": {"kind": "k", "message": "m"}},
)
Started = Callable[[dict[str, Any]], tuple[int, str]]

with opened(conf_folder()) as compose:
    CONFIG = plain(compose(["experiment=smoke", "launcher=slurm"]))


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    """One more start of job 12 with this work; its exit code and its last words."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(node, "interrupt_on", lambda notice: None)
    monkeypatch.setattr(node.logging.getLogger(), "handlers", [])
    count = 0

    def start(tells: dict[str, Any]) -> tuple[int, str]:
        nonlocal count
        folder = tmp_path / f"12-{count}"
        count += 1
        folder.mkdir()
        told = {"config": CONFIG, "run_dir": str(tmp_path), "folder": str(tmp_path), "overrides": [], "sweep": None}
        (tmp_path / "plan.json").write_text(json.dumps(told | tells))
        code = node.main([str(tmp_path / "plan.json"), str(folder)])
        said = folder / "outcome.json"
        return code, json.loads(said.read_text())["message"] if said.exists() else ""

    return start


def test_attempts_that_a_start_finished_are_what_it_has_kept(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[list[dict[str, Any]]] = []
    store = tmp_path / "store"
    monkeypatch.setattr(on_node, "stages_campaign", lambda context, name: SimpleNamespace(folder=store))

    def attempts(context: Any, campaign: Any, shard: Any) -> None:
        for other in (shard.name, "1-of-2"):  # the job of the other part makes attempts all the time
            with AttemptStore(store, shard=other) as opened_store:
                first = len(opened_store.history())
                for number, how in enumerate(made[0] if other == shard.name else [CLEAN]):
                    opened_store.append(AttemptRow(other, first + number, **how))
        raise KeyboardInterrupt

    monkeypatch.setattr(on_node, "attempts_of_shard", attempts)
    part = {"campaign": "probe", "shard": 0, "of": 2}
    for rows, code, told in (
        ([CLEAN, ERROR, CLEAN], STOPPED, "this start finished 2 attempts"),
        ([], IDLE, "this start finished 0 attempts"),
        ([ERROR, ERROR], IDLE, "this start finished 0 attempts"),
        ([CLEAN], STOPPED, "this start finished 1 attempt; the next start"),
    ):
        made[:] = [rows]
        found = started(part)
        assert found[0] == code and told in found[1], (rows, found)


def test_of_small_stages_those_count_that_no_start_had_finished(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    finishes: list[str] = []

    def run_here(config: Any, *, place: Place, **_: Any) -> None:
        for stage in finishes:
            place.finished(stage)
        if finishes != config.stages:
            raise KeyboardInterrupt

    monkeypatch.setattr(on_node, "run_here", run_here)
    late = {"stages": ["evaluate", "report"]}
    for finished, code, told in (
        ([], IDLE, "stopped: this start finished no stage; the next start makes the rest"),
        (["evaluate"], STOPPED, "stopped: evaluate finished; the next start makes the rest"),
        (["evaluate"], IDLE, "stopped: this start finished no stage; the next start makes the rest"),  # once more
        ([], IDLE, "stopped: this start finished no stage; the next start makes the rest"),
        (["evaluate", "report"], 0, ""),
    ):
        finishes[:] = finished
        assert started(late) == (code, told)


def test_a_start_that_is_stopped_before_it_begins_has_kept_nothing(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(on_node, "stages_campaign", interrupted)
    code, told = started({"campaign": "probe", "shard": 0, "of": 2})
    assert code == IDLE and "kept nothing new" in told


def test_a_stage_that_ended_well_is_told_and_one_that_was_interrupted_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tbexp.config.schema import Config
    from tbexp.pipeline import probing, stages

    def interrupted(context: Context) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(probing, "probe", lambda context: None)
    monkeypatch.setattr(stages, "report", interrupted)
    finished: list[str] = []
    config = Config.model_validate({**CONFIG, "stages": ["probe", "report"]})
    with Progress() as progress:
        context = Context(config, tmp_path, progress, Untracked(), place=Place(finished=finished.append))
        with pytest.raises(KeyboardInterrupt):
            run_stages(context)
    assert finished == ["probe"]
