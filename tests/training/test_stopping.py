"""Whether a step more fits before the end, and what is said of what was kept."""

from __future__ import annotations

import pytest

from tbexp.training import stopping

ROWS = {
    0: {"train/validation_pass_rate": 0.5},
    1: {"train/seconds/step": 90.0, "train/seconds/save": 20.0},
    **{step: {"train/seconds/step": 40.0} for step in range(2, 7)},
}


def test_a_step_and_a_save_as_measured_are_needed() -> None:
    assert stopping.need(ROWS, elapsed=0.0) == 60.0  # the slow first step is no measure any more
    assert stopping.need(ROWS, elapsed=30.0) == 30.0
    assert stopping.need(ROWS, elapsed=300.0) == 20.0
    assert stopping.need({0: ROWS[0]}, elapsed=0.0) is None


@pytest.mark.parametrize(
    ("saved", "reached", "start", "reason", "parts"),
    [
        (5, 5, 3, "", ["stopped after step 5, which is saved"]),
        (3, 5, 2, "no room", ["no room", "2 finished steps are lost", "from step 3"]),
        (4, 5, 2, "no room", ["1 finished step is lost"]),
        (5, 5, 5, "no room", ["kept 0 steps", "no finished step is lost", "from step 5"]),
    ],
)
def test_what_was_kept_and_lost_is_said(saved: int, reached: int, start: int, reason: str, parts: list[str]) -> None:
    text = stopping.message(saved=saved, reached=reached, start=start, reason=reason)
    assert all(part in text for part in parts), text
