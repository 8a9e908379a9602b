from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

import tbexp
from tbexp.training.checkpoints import Validated
from tbexp.training.groups import Ledger
from tbexp.training.reporter import Reporter
from tbexp.training.rows import (
    ATTEMPTS,
    MISSING,
    OURS,
    VALIDATION,
    foreign,
    fragment_name,
    fragments,
    merge,
    named,
    of_attempts,
    read,
    validation,
    write,
)

ROOT = Path(tbexp.__file__).resolve().parent.parent


def step(number: int, **data: Any) -> str:
    return json.dumps({"step": number, "data": {"timing_s/step": 1.0, **data}}) + "\n"


def test_a_start_takes_back_what_an_earlier_one_wrote_beyond_its_own_beginning(tmp_path: Path) -> None:
    (tmp_path / fragment_name(0, 0)).write_text("".join(step(n, x=0) for n in (1, 2, 3, 4)))
    (tmp_path / fragment_name(1, 2)).write_text(step(3, x=1))
    rows = merge(fragments(tmp_path))
    assert {n: row["x"] for n, row in rows.items()} == {1: 0, 2: 0, 3: 1}


def test_validation_made_up_for_after_a_kill_joins_the_row_of_its_step(tmp_path: Path) -> None:
    (tmp_path / fragment_name(0, 0)).write_text(step(1) + step(2, x=5))
    made_up = {"step": 2, "data": {"val-core/validation/reward/mean@4": 0.25}}
    (tmp_path / fragment_name(1, 2)).write_text(json.dumps(made_up) + "\n" + step(3))
    rows = merge(fragments(tmp_path))
    assert rows[2]["x"] == 5 and rows[2][VALIDATION] == 0.25
    assert validation(rows, 8) == {2: Validated(0.25, 8)}


def test_a_validation_s_rate_is_of_all_attempts_that_ended_where_they_are_known() -> None:
    verls = {0: {VALIDATION: 1.0}, 1: {"x": 1.0}, 2: {VALIDATION: 0.5, "x": 2.0}, 3: {VALIDATION: 0.75}}
    noted = {0: (13, 5.0), 1: (16, 8.0), 2: (16, 8.0), 9: (16, 1.0)}  # what is noted of other steps has no row yet
    rows = of_attempts(verls, noted, 16)
    assert rows == {
        0: {VALIDATION: 5 / 13, ATTEMPTS: 13.0, MISSING: 3.0},
        1: {"x": 1.0},
        2: {VALIDATION: 0.5, ATTEMPTS: 16.0, MISSING: 0.0, "x": 2.0},
        3: {VALIDATION: 0.75},
    }
    assert verls[0] == {VALIDATION: 1.0}
    assert validation(rows, 16) == {0: Validated(5 / 13, 13, 3), 2: Validated(0.5, 16), 3: Validated(0.75, 16)}


def reported(folder: Path, told: dict[int, list[float]], start: int, **rows: float) -> None:
    """A start of verl that goes on from `start` and writes rows, one value each."""
    report = Reporter(
        folder,
        steps=9,
        keep=2,
        trials=4,
        progress=None,
        metrics=lambda row, step: told.setdefault(step, []).append(row["x"]),
    )
    report.begin(start)
    with report.fragment.open("a") as file:
        for name, value in rows.items():
            file.write(step(int(name.removeprefix("u")), x=value))
            file.flush()
            report.look()


def test_what_was_told_of_updates_that_are_made_again_is_told_again(tmp_path: Path) -> None:
    (tmp_path / "verl").mkdir()
    told: dict[int, list[float]] = {}
    reported(tmp_path, told, 0, u1=0.1, u2=0.2, u3=0.3)  # killed after update 3; its checkpoint is of update 1
    reported(tmp_path, told, 1, u2=0.8, u3=0.3, u4=0.9)
    assert {number: values[-1] for number, values in told.items()} == {1: 0.1, 2: 0.8, 3: 0.3, 4: 0.9}
    assert told[2] == [0.2, 0.8] and told[4] == [0.9]


def test_attempts_from_other_weights_than_the_trained_ones_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "verl").mkdir()
    report = Reporter(tmp_path, steps=3, keep=2, trials=4, progress=None, metrics=None)
    report.begin(0)
    name = "training/rollout_actor_probs_pearson_corr"
    with caplog.at_level(logging.WARNING):
        report.fragment.write_text(step(1, **{name: 0.998}) + step(2, **{name: 0.76}) + step(3))
        report.look()
        report.fragment.write_text(report.fragment.read_text() + step(4, **{name: 0.99}))
        report.look()
    assert [r.getMessage()[:9] for r in caplog.records] == ["update 2:"]
    assert foreign(report.rows) == [2]


def test_a_torn_last_line_is_no_row(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(step(1) + step(2)[:-9])
    assert list(read(file)) == [1]


def test_verls_figures_keep_their_names_and_get_ours() -> None:
    row = named({"actor/grad_norm": 0.5, "val-core/validation/reward/mean@4": 0.75, "x": float("nan"), "flag": True})
    assert row == {
        "actor/grad_norm": 0.5,
        "train/grad_norm": 0.5,
        "val-core/validation/reward/mean_at_4": 0.75,
        VALIDATION: 0.75,
    }


@pytest.mark.train
def test_a_validation_s_figures_are_the_same_in_whatever_order_its_attempts_ended() -> None:
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    def row(rewards: list[float]) -> dict[str, float]:
        made = process_validation_metrics(["tasks"] * 4, ["a"] * 4, {"reward": rewards, "acc": rewards})
        return {
            f"val-core/{source}/{variable}/{name}": float(value)
            for source, of_variables in made.items()
            for variable, figures in of_variables.items()
            for name, value in figures.items()
        }

    one, other = row([1.0, 0.0, 0.0, 0.0]), row([0.0, 0.0, 0.0, 1.0])
    assert one != other  # drawn anew from another order
    assert named(one) == pytest.approx(named(other), rel=1e-12)
    assert named(one)["val-core/tasks/reward/mean_at_4"] == 0.25


def test_the_entropy_that_verl_computed_is_preferred_to_that_of_the_samples() -> None:
    assert named({"train/entropy_of_samples": 1.0})["train/entropy"] == 1.0
    for order in (["actor/entropy", "train/entropy_of_samples"], ["train/entropy_of_samples", "actor/entropy"]):
        values = {"actor/entropy": 2.0, "train/entropy_of_samples": 1.0}
        assert named({name: values[name] for name in order})["train/entropy"] == 2.0


def test_the_mismatch_of_rollout_and_trainer_has_one_name_however_verl_measures_it() -> None:
    bypassed = {"actor/ppo_kl": 0.5}
    computed_again = {"actor/ppo_kl": 0.0, "rollout_corr/kl": 0.5, "training/rollout_probs_diff_mean": 0.1}
    for data in (bypassed, computed_again):
        assert named(data)["train/rollout_trainer_kl"] == 0.5
    assert "train/rollout_trainer_kl" not in named({"actor/ppo_kl": 0.0, "training/rollout_probs_diff_mean": 0.1})


def test_devices_wait_while_nothing_is_asked_for_and_for_the_sandbox_while_attempts_are_under_way() -> None:
    data = {"timing_s/step": 10.0, "timing_s/gen": 4.0, "train/seconds/requests": 3.0, "train/seconds/attempts": 3.5}
    row = named(data)
    assert (row["train/devices_waiting_share"], row["train/sandbox_waiting_share"]) == (0.1, 0.05)
    row = named({**data, "timing_s/gen": 2.9, "train/seconds/attempts": 3.0})  # clocks of several nodes
    assert (row["train/devices_waiting_share"], row["train/sandbox_waiting_share"]) == (0.0, 0.0)
    assert "train/devices_waiting_share" not in named({"timing_s/step": 10.0, "timing_s/gen": 4.0})


def test_the_documented_figures_of_an_update_are_those_that_are_logged() -> None:
    table = (ROOT / "docs" / "reference-run.md").read_text().partition("## What an update logs")[2].partition("##")[0]
    told = set(re.findall(r"^\| `(train/[\w/]+)`", table, re.MULTILINE))
    attempt = {
        "reward": 1.0,
        "tokens": 2,
        "surprise": 1.0,
        "seconds": {"total": 2.0, "tools": 1.0},
        "asked": [(0, 1)],
        "span": (0, 1),
    }
    ledger = Ledger(wanted=1, limit=1, dispatched=1, kinds={"a": "mixed"}, attempts=[attempt])
    logged = {
        **ledger.metrics(),
        **dict.fromkeys(OURS.values(), 0.0),
        **of_attempts({0: {VALIDATION: 0.0}}, {0: (1, 0.0)}, 1)[0],
        "train/thrown_away/seconds": 0.0,
        "train/devices_waiting_share": 0.0,
        "train/sandbox_waiting_share": 0.0,
    }
    assert len(told) > 15 and told - {"train/finish/REASON"} <= logged.keys(), told - logged.keys()


def test_written_rows_are_one_json_object_per_step_in_order(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", {2: {"b": 1.0}, 0: {"a": 2.0}})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 0, "a": 2.0}, {"step": 2, "b": 1.0}]
