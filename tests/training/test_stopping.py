"""Whether a step more fits before the end, and what is said of what was kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tbexp.errors import Stopped
from tbexp.training import stopping
from tbexp.training.checkpoints import write_manifest
from tbexp.training.run import Request, stopped_at

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


class Report:
    """As much of a reporter as a request looks at."""

    def __init__(self, rows: dict[int, dict[str, float]]):
        self.rows = rows

    def done(self) -> int:
        return max((step for step, row in self.rows.items() if "train/seconds/step" in row), default=0)

    def since_row(self) -> float:
        return 10.0

    def say(self, what: str) -> None:
        return None


class Clock:
    """Seconds that are left, None before anyone has said so."""

    left: float | None = None

    def __call__(self) -> float | None:
        return self.left


def request(folder: Path, rows: dict[int, dict[str, float]]) -> tuple[Request, Clock, Report]:
    clock, report = Clock(), Report(dict(rows))
    return Request(folder, report, clock), clock, report  # type: ignore[arg-type]


def test_with_room_for_a_step_verl_is_told_and_the_step_awaited(tmp_path: Path) -> None:
    asked, clock, report = request(tmp_path, ROWS)
    asked.look()
    assert not (tmp_path / stopping.STOP).exists()
    clock.left = 56.0  # 40 s of a step, 10 of them gone, 20 to save, 5 to leave
    asked.look()
    asked.look()
    assert (tmp_path / stopping.STOP).exists()
    report.rows[7] = ROWS[6]
    with pytest.raises(Stopped) as stopped:
        asked.look()
    assert str(stopped.value) == "" and stopped.value.kept


def test_without_room_it_ends_at_once_and_says_why(tmp_path: Path) -> None:
    asked, clock, _ = request(tmp_path, ROWS)
    clock.left = 54.0
    with pytest.raises(Stopped, match="the end is 54 s away, and a step with its save takes 50 s"):
        asked.look()
    assert not (tmp_path / stopping.STOP).exists()


def test_before_anything_was_measured_it_is_tried_until_the_end_is_near(tmp_path: Path) -> None:
    asked, clock, _ = request(tmp_path, {0: ROWS[0]})
    clock.left = 30.0
    asked.look()
    assert (tmp_path / stopping.STOP).exists()
    clock.left = 4.0
    with pytest.raises(Stopped, match="not finished in time"):
        asked.look()


def test_steps_that_have_no_checkpoint_are_counted_as_lost(tmp_path: Path) -> None:
    whole = tmp_path / "checkpoints" / "global_step_4"
    whole.mkdir(parents=True)
    (whole / "weights").write_text("w")
    write_manifest(whole, 4)

    class Finished(Report):
        def look(self) -> None:
            return None

    stopped = stopped_at(tmp_path, Finished(ROWS), 2, "no room")  # type: ignore[arg-type]
    assert "2 finished steps are lost; the next start goes on from step 4" in str(stopped) and stopped.kept
    again = stopped_at(tmp_path, Finished(ROWS), 4, "no room")  # type: ignore[arg-type]
    assert "this start kept 0 steps" in str(again) and not again.kept
