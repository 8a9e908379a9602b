"""Attempts as rows of `tb infer`: in the order of the tasks that were asked for."""

from __future__ import annotations

import json
from pathlib import Path

from tbexp.attempts import AttemptRow, AttemptStore
from tbexp.pipeline.export import write_tb_infer
from tbexp.tasks import Agent, Scenario, Task


def test_rows_stand_in_the_order_of_the_tasks_with_all_attempts_of_one_together(tmp_path: Path) -> None:
    tasks = [
        Task(uid, Agent("a", "s"), Scenario("s", {}), "q", metadata={"test_case_file": f"/there/{uid[:4]}"})
        for uid in ("b.py:z", "a.py:y", "b.py:x")
    ]
    uids = ["a.py:y", "b.py:x", "gone.py:w", "b.py:z"]
    with AttemptStore(tmp_path / "store") as store:
        for uid in uids:
            for attempt in (1, 0):
                store.append(AttemptRow(uid, attempt, True, 1.0), {"messages": [], "seconds": {"agent": 0.5}})
        rows = store.rows()
    write_tb_infer(tmp_path / "store", rows, tmp_path / "rows.jsonl", tasks)
    found = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    wanted = [(uid, attempt) for uid in ("b.py:z", "a.py:y", "b.py:x", "gone.py:w") for attempt in (0, 1)]
    assert [(row["uid"], row["metadata"]["repetition"]) for row in found] == wanted
    assert [row["metadata"].get("test_case_file") for row in found[::2]] == [
        "/there/b.py",
        "/there/a.py",
        "/there/b.py",
        None,
    ]
    assert all(row["metadata"]["time_agent"] == 0.5 for row in found)
