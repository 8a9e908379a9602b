from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbexp.errors import UserError
from tbexp.training.checkpoints import (
    MANIFEST,
    Validated,
    best_step,
    check_ranks,
    expendable,
    found,
    remove,
    resume_point,
    write_manifest,
)
from tbexp.training.reporter import prune
from tbexp.training.rows import ATTEMPTS, MISSING, VALIDATION, fragment_name, validation
from tbexp.training.run import TrainResult, made_before, train

sys.path.insert(0, str(Path(__file__).parent))


def checkpoint(root: Path, step: int, *, whole: bool = True) -> Path:
    folder = root / f"global_step_{step}"
    (folder / "actor").mkdir(parents=True)
    (folder / "actor" / "model_world_size_1_rank_0.pt").write_bytes(b"weights" * 10)
    (folder / "data.pt").write_bytes(b"place in the stream")
    if whole:
        write_manifest(folder, step)
    return folder


def test_the_newest_whole_checkpoint_with_a_metrics_row_is_gone_on_from(tmp_path: Path) -> None:
    for step in (2, 4, 6, 10):
        checkpoint(tmp_path, step, whole=step != 10)
    point, skipped = resume_point(tmp_path, logged=[0, 1, 2, 3, 4])
    assert point is not None and point.step == 4
    assert skipped == [
        "checkpoint of step 10 is skipped: it was not written to the end",
        "checkpoint of step 6 is skipped: its step was not recorded to the end",
    ]


def test_what_is_told_as_made_before_is_what_a_training_goes_on_from(tmp_path: Path) -> None:
    assert made_before(tmp_path) == 0
    for step in (2, 4):
        checkpoint(tmp_path / "checkpoints", step)
    assert made_before(tmp_path) == 0  # without a row
    file = tmp_path / "verl" / fragment_name(0, 0)
    file.parent.mkdir()
    file.write_text("".join(json.dumps({"step": n, "data": {"timing_s/step": 1.0}}) + "\n" for n in (1, 2, 3)))
    assert made_before(tmp_path) == 2


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (lambda f: (f / "data.pt").write_bytes(b"place"), "data.pt has 5 of 19 bytes"),
        (lambda f: (f / "data.pt").unlink(), "data.pt is missing"),
        (lambda f: (f / MANIFEST).unlink(), "it was not written to the end"),
        (lambda f: (f / MANIFEST).write_text('{"step"'), "its manifest cannot be read"),
        (lambda f: None, ""),
    ],
)
def test_a_torn_checkpoint_says_what_it_lacks(tmp_path: Path, harm: object, fault: str) -> None:
    folder = checkpoint(tmp_path, 3)
    harm(folder)  # type: ignore[operator]
    assert [c.fault for c in found(tmp_path)] == [fault]


def test_nothing_to_go_on_from_is_no_error(tmp_path: Path) -> None:
    assert resume_point(tmp_path / "none", logged=[]) == (None, [])


@pytest.mark.parametrize(
    ("made", "nodes", "devices", "fix"),
    [
        (3, 2, 1, "topology.nodes=3, or remove"),
        (4, 1, 8, "topology.gpus_per_node too: 4 in all, or remove"),
        (24, 2, 8, "topology.nodes=3, or remove"),
        (3, 3, 1, None),
        (8, 1, 8, None),
        (8, 2, 4, None),
        (None, 2, 4, None),
    ],
)
def test_a_checkpoint_of_another_number_of_ranks_is_not_gone_on_from(
    tmp_path: Path, made: int | None, nodes: int, devices: int, fix: str | None
) -> None:
    folder = checkpoint(tmp_path / "KEY" / "checkpoints", 6)
    if made is not None:
        (folder / "actor" / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": made}))
    [point] = found(folder.parent)
    if fix is None:
        check_ranks(point, nodes=nodes, devices=devices)
        return
    with pytest.raises(UserError) as caught:
        check_ranks(point, nodes=nodes, devices=devices)
    [problem] = caught.value.problems
    assert f"step 6 was made by {made} ranks, and this run has {nodes * devices} ({nodes} nodes" in problem.what
    assert problem.where == "topology.nodes" and problem.fix.startswith(fix) and str(tmp_path / "KEY") in problem.fix


def test_a_training_that_another_number_of_ranks_began_starts_nothing_and_removes_nothing(tmp_path: Path) -> None:
    pytest.importorskip("verl")
    from toy_config import toy_config

    for step in (1, 2):
        folder = checkpoint(tmp_path / "checkpoints", step, whole=False)
        (folder / "actor" / "fsdp_config.json").write_text('{"world_size": 3}')
        if step == 1:
            write_manifest(folder, step)
    (tmp_path / "verl").mkdir()
    row = {"step": 1, "data": {"timing_s/step": 1.0}}
    (tmp_path / "verl" / fragment_name(0, 0)).write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError, match="step 1 was made by 3 ranks, and this run has 1"):
        train(toy_config(), model_folder=tmp_path, train_uids=["a"], validation_uids=["b"], folder=tmp_path)
    assert [c.step for c in found(tmp_path / "checkpoints")] == [1, 2]
    assert not (tmp_path / "verl" / "plan.json").exists()


def test_a_removal_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 1)
    remove(folder)
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("validation", "trials", "chosen"),
    [
        ({0: 0.9, 10: 0.5, 20: 0.7, 30: 0.7}, 10_000, 30),
        ({0: 0.9}, 100, None),
        ({10: 0.62, 20: 0.60, 30: 0.55}, 144, 20),  # one standard error of the best is 0.04
        ({10: 0.62, 20: 0.60, 30: 0.55}, 10_000, 10),
        ({10: 1.0, 20: 0.99}, 50, 10),  # no error is left to be within
        ({10: 0.0, 20: 0.0}, 50, 20),
    ],
)
def test_the_latest_step_that_cannot_be_told_from_the_best_is_chosen(
    validation: dict[int, float], trials: int, chosen: int | None
) -> None:
    assert best_step({step: Validated(rate, trials) for step, rate in validation.items()}, validation) == chosen


@pytest.mark.parametrize(
    ("validation", "there", "chosen"),
    [
        # The best one's own attempts say how far the others may be from it.
        ({1: (0.62, 144, 0), 2: (0.60, 144, 0), 3: (0.55, 144, 0)}, [1, 2, 3], 2),
        ({1: (0.62, 80, 64), 2: (0.60, 144, 0), 3: (0.55, 144, 0)}, [1, 2, 3], 2),
        ({1: (0.62, 20, 10), 2: (0.60, 144, 0), 3: (0.55, 144, 0)}, [1, 2, 3], 3),
        ({1: (0.62, 20, 10), 2: (0.62, 144, 0), 3: (0.55, 144, 0)}, [1, 2, 3], 2),
        # One pass of two attempts is no rate to hold others against, nor one to be chosen by, unless there is no other.
        ({1: (0.62, 144, 0), 2: (1.0, 2, 142), 3: (0.60, 144, 0)}, [1, 2, 3], 3),
        ({1: (0.62, 144, 0), 2: (1.0, 2, 142)}, [1, 2], 1),
        ({1: (0.62, 144, 0), 2: (1.0, 2, 142)}, [2], 2),
        ({1: (0.5, 2, 142), 2: (1.0, 2, 142)}, [1, 2], 2),
    ],
)
def test_a_validation_counts_by_the_attempts_that_ended(
    validation: dict[int, tuple[float, int, int]], there: list[int], chosen: int
) -> None:
    assert best_step({step: Validated(*found) for step, found in validation.items()}, there) == chosen


@pytest.mark.parametrize(
    ("there", "chosen"),
    [
        ([1, 2, 3, 4, 5, 6, 7], 3),  # .60 and its standard error of .04: step 3 passes .56
        ([1, 2, 6, 7], 2),
        ([6, 7], 6),  # none is within: the best that is left
        ([], None),
        ([8], None),
    ],
)
def test_a_checkpoint_that_is_gone_still_says_what_the_others_are_held_against(
    there: list[int], chosen: int | None
) -> None:
    falling = {step: Validated(round(0.62 - 0.02 * step, 2), 148) for step in range(1, 8)}
    assert best_step(falling, there) == chosen


def passing(rates: list[float]) -> dict[int, dict[str, float]]:
    return {step: {"train/seconds/step": 1.0, VALIDATION: rate} for step, rate in enumerate(rates, 1)}


def test_a_falling_curve_keeps_the_checkpoint_that_is_chosen_and_the_newest(tmp_path: Path) -> None:
    rates = [0.60, 0.58, 0.56, 0.54, 0.52, 0.50, 0.48]
    for step in range(1, 8):
        checkpoint(tmp_path / "checkpoints", step)
        prune(tmp_path, passing(rates[:step]), keep=2, trials=148)
    assert [c.step for c in found(tmp_path / "checkpoints")] == [3, 6, 7]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=8), st.integers(1, 3))
def test_what_pruning_leaves_holds_the_choice_among_all(played: list[tuple[int, int]], keep: int) -> None:
    """played: attempts of 12 that ended, and passes of at most as many."""
    history = passing([min(passed, ended) / ended for ended, passed in played])
    for step, (ended, _) in enumerate(played, 1):
        history[step] |= {ATTEMPTS: float(ended), MISSING: 12.0 - ended}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for step in history:
            checkpoint(root / "checkpoints", step)
            prune(root, {s: row for s, row in history.items() if s <= step}, keep, 12)
        left = {c.step for c in found(root / "checkpoints")}
    every = validation(history, 12)
    assert best_step(every, left) == best_step(every, every)
    assert len(left) <= keep + 1


@given(st.sets(st.integers(1, 60)), st.integers(1, 5), st.none() | st.integers(1, 60))
def test_the_newest_and_the_best_checkpoint_are_never_expendable(steps: set[int], keep: int, best: int | None) -> None:
    gone = expendable(steps, keep=keep, best=best)
    left = steps - set(gone)
    assert set(sorted(steps)[-keep:]) <= left
    assert best not in gone
    assert len(left) <= keep + 1


@pytest.mark.parametrize(
    ("chosen", "rates", "best"),
    [
        (30, {0: 0.9, 10: 0.6, 20: 0.55, 30: 0.58}, (10, 0.6)),
        (30, {0: 0.1, 10: 0.6, 20: 0.6, 30: 0.6}, (30, 0.6)),
        (30, {0: 0.1, 10: 0.6, 20: 0.6, 30: 0.59}, (10, 0.6)),
        (10, {0: 0.1, 10: 0.6}, (10, 0.6)),
    ],
)
def test_the_step_that_validated_best_is_told_apart_from_the_chosen_one(
    chosen: int, rates: dict[int, float], best: tuple[int, float]
) -> None:
    history = {step: {VALIDATION: rate} for step, rate in rates.items()} | {5: {"train/reward_mean": 1.0}}
    result = TrainResult(Path(), chosen, 30, history)
    assert (result.best, result.validation_pass_rate) == (best, rates[chosen])
