"""Attempts for other tools: rows in the form of `tb infer`, with messages and verdicts, beside a stage's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tbexp.attempts import AttemptRow, AttemptStore, to_tb_infer_row
from tbexp.config.whole import write_whole
from tbexp.tasks import Task


def write_tb_infer(store: Path, rows: Sequence[AttemptRow], file: Path, tasks: Sequence[Task]) -> None:
    """Writes the rows with what `store` has of their trajectories, in the order of tasks and attempts."""
    with AttemptStore(store, read_only=True) as attempts:
        found = as_tb_infer(attempts, rows, tasks)
        write_whole(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found))


def as_tb_infer(store: AttemptStore, rows: Sequence[AttemptRow], tasks: Sequence[Task]) -> Iterator[dict[str, Any]]:
    """The rows in the order of `tb infer`: all attempts of the first task, then of the next."""
    by_uid = {task.uid: task for task in tasks}
    place = {uid: number for number, uid in enumerate(by_uid)}
    for row in sorted(rows, key=lambda row: (place.get(row.uid, len(place)), row.uid, row.attempt)):
        yield to_tb_infer_row(row, store.trajectory(row), by_uid.get(row.uid))
