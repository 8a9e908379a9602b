"""What an evaluation is given of a store."""

from __future__ import annotations

from pathlib import Path

from tbexp.attempts import AttemptRow, AttemptStore
from tbexp.pipeline.sharing import with_failed_tries


def test_failed_tries_are_counted_and_paid_for_before_the_attempt_that_they_led_to(tmp_path: Path) -> None:
    died = {"kind": "grader", "message": "it died"}
    with AttemptStore(tmp_path) as store:
        for row in (
            AttemptRow("b", 0, None, 0.0, system_error=died, prompt_tokens=7),
            AttemptRow("a", 0, True, 1.0, prompt_tokens=5),
            AttemptRow("b", 0, False, 0.0, prompt_tokens=6),
            AttemptRow("b", 1, None, 0.0, system_error=died, prompt_tokens=8),
        ):
            store.append(row, None)
    with AttemptStore(tmp_path, read_only=True) as store:
        rows = [row for row in store.rows() if row.attempt < 1]
        found = with_failed_tries(store, rows)
    assert [(row.uid, row.attempt, row.clean, row.prompt_tokens) for row in found] == [
        *(("a", 0, True, 5), ("b", 0, False, 7), ("b", 0, True, 6))
    ]
