"""Attempts for other tools: rows in the form of `tb infer`, with messages and verdicts, beside a stage's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tbexp.attempts import AttemptRow, AttemptStore, to_tb_infer_row
from tbexp.config.whole import write_whole

FILE = "tb_infer.jsonl"


def write_tb_infer(store: Path, rows: Sequence[AttemptRow], file: Path) -> None:
    """Writes the rows with what `store` has of their trajectories, task by task, in the order of attempts."""
    with AttemptStore(store, read_only=True) as attempts:
        ordered = sorted(rows, key=lambda row: (row.uid, row.attempt))
        lines = [json.dumps(to_tb_infer_row(row, attempts.trajectory(row)), ensure_ascii=False) for row in ordered]
    write_whole(file, "".join(f"{line}\n" for line in lines))
