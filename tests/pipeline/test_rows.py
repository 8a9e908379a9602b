"""Pools of rows that were made elsewhere, about tasks that are not here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tbexp.app import main


def test_uids_of_any_form_are_selected_and_an_excluded_one_that_is_unknown_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"uid": f"task-{n}", "test_result": {"result": k < 4}} for n in range(9) for k in range(8)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["stages=[select]", "probe.rows=[rows.jsonl]", "tracking=none", "selection.exclude=[task-3,tusk-4]"]
    assert main([*words, "hydra.run.dir=run"]) == 0
    assert yaml.safe_load(Path("run/select/pool.yaml").read_text()) == [f"task-{n}" for n in range(9) if n != 3]
    said = capsys.readouterr().err
    assert "selection.exclude names 1 that are no tasks here: tusk-4" in said and "Traceback" not in said


def test_a_held_out_task_among_the_rows_is_told_as_one_that_is_in_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    uids = ["invoice.py:test_invoice_1", "damage.py:test_damage_again_3"]  # a candidate, and one that is held out
    rows = [{"uid": uid, "test_result": {"result": k < 4}} for uid in uids for k in range(8)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["stages=[select]", "probe.rows=[rows.jsonl]", "tracking=none", "hydra.run.dir=run"]) == 0
    assert yaml.safe_load(Path("run/select/pool.yaml").read_text()) == sorted(uids)
    found = json.loads(Path("run/overlap.json").read_text())
    assert (found["pool"], found["equal_tasks"], found["unknown"]) == (2, 1, 0)
    assert "1 are equal" in capsys.readouterr().err
