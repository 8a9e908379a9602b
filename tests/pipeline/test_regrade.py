"""Stored attempts judged again by changed checks; they are made on the sample domain's real server."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tbexp.attempts import AttemptRow, AttemptStore
from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder
from tbexp.config.schema import Config
from tbexp.errors import UserError, WorldFailure
from tbexp.interpret.messages import Message, Reading
from tbexp.pipeline.campaign import run_campaign
from tbexp.pipeline.inputs import Inputs
from tbexp.pipeline.progress import Progress
from tbexp.pipeline.regrade import calls_of, regrade
from tbexp.pipeline.wanted import FixedNumber
from tbexp.policy import ScriptedPolicy
from tbexp.samples import data_root, solution
from tbexp.sandbox import read_servers
from tbexp.tasks import Task, load_tasks

with opened(conf_folder()) as compose:
    CONFIG = Config.model_validate(plain(compose([])))

TASKS = [task for task in load_tasks(data_root(), "agent") if task.uid.startswith("extend.py:")][:3]
SETTINGS = CONFIG.model_copy(update={"evaluation": CONFIG.evaluation.model_copy(update={"attempts": 1})})
REFUSES = "def __tb_test_fn(x, judge):\n    assert False, 'no more'\n"


class Given(Inputs):
    """Tasks as the test has changed them."""

    def __init__(self, tasks: list[Task]):
        super().__init__()
        self.tasks = tasks

    def held_out(self, config: Any) -> list[Task]:
        return self.tasks

    def candidates(self, config: Any) -> list[Task]:
        return []


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    by_query = {task.query: task.uid for task in TASKS}

    def script(messages: Sequence[Message], seed: int) -> Sequence[Reading]:
        return solution(by_query[messages[-1].content])

    with Progress(io.StringIO()) as progress:
        run_campaign(
            SETTINGS,
            tasks=TASKS,
            wanted=FixedNumber([task.uid for task in TASKS], 1),
            retries=1,
            servers=read_servers(data_root() / "servers" / "servers.yaml", python=sys.executable, allow_env=[]),
            policy=ScriptedPolicy(script),
            folder=folder / "evaluate" / "base",
            bar=progress.stage("evaluate", None, "attempts"),
        )
    return folder


def again(played: Path, tasks: list[Task]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    regrade(SETTINGS, run_dir=played, inputs=Given(tasks))
    changed = [json.loads(line) for line in (played / "regrade/changed.jsonl").read_text().splitlines()]
    return changed, json.loads((played / "regrade/summary.json").read_text())["policies"]["base"]


def test_the_same_checks_give_the_same_verdicts_and_a_changed_one_another(played: Path) -> None:
    kept = (played / "evaluate/base/attempts.jsonl").read_bytes()
    changed, found = again(played, TASKS)
    assert changed == [] and found["pass_at_1"]["value"] == 1.0
    changed, found = again(played, [replace(TASKS[0], test_code=REFUSES), *TASKS[1:]])
    assert [(row["uid"], row["before"], row["after"]) for row in changed] == [(TASKS[0].uid, True, False)]
    assert "no more" in changed[0]["message"] and found["passed_attempts"] == 2
    assert (played / "evaluate/base/attempts.jsonl").read_bytes() == kept


def test_a_check_sees_what_it_saw_when_the_attempt_ended(played: Path) -> None:
    looks = (
        "def __tb_test_fn(x, judge):\n    assert x.tool_calls and x.tool_calls[0].tool_call.name\n"
        "    assert x.response.endswith('<DONE>') and x.query() and list(x.init_result) and list(x.effects)\n"
        "    assert len(x.session_id) == 32, x.session_id\n"
    )
    changed, _ = again(played, [replace(TASKS[0], test_code=looks), *TASKS[1:]])
    assert changed == []


@pytest.mark.parametrize("asks", ["x.server_tool('rental_desk', 'get_rental')", "judge.yesno('fine?')"])
def test_what_a_stored_state_cannot_answer_is_no_verdict_and_never_a_failure(played: Path, asks: str) -> None:
    with pytest.raises(WorldFailure, match="2 of 3 attempts have a verdict"):
        again(played, [replace(TASKS[0], test_code=f"def __tb_test_fn(x, judge):\n    {asks}\n"), *TASKS[1:]])
    (row,) = [json.loads(line) for line in (played / "regrade/changed.jsonl").read_text().splitlines()]
    assert (row["before"], row["after"]) == (True, None) and row["system_error"]["kind"]


@pytest.mark.parametrize("others", [[], ["evaluate/base"]])
@pytest.mark.parametrize("store", ["probe", "reference"])
def test_a_verdict_that_is_lost_outside_of_the_evaluation_is_a_failure_too(
    played: Path, tmp_path: Path, store: str, others: list[str]
) -> None:
    for name in (store, *others):
        shutil.copytree(played / "evaluate/base", tmp_path / name)
    (tmp_path / store / "trajectories.jsonl").unlink()
    with pytest.raises(WorldFailure, match=f"have lost their verdict: 3 of {store}; .*attempt 0: not_kept") as caught:
        regrade(SETTINGS, run_dir=tmp_path, inputs=Given(TASKS))
    assert "evaluation.allow_partial=true" in str(caught.value)
    assert (tmp_path / "regrade/summary.json").exists() == bool(others)  # what has all its verdicts is told
    allowed = SETTINGS.evaluation.model_copy(update={"allow_partial": True})
    regrade(SETTINGS.model_copy(update={"evaluation": allowed}), run_dir=tmp_path, inputs=Given(TASKS))
    changed = [json.loads(line) for line in (tmp_path / "regrade/changed.jsonl").read_text().splitlines()]
    assert [(row["policy"], row["after"]) for row in changed] == [(store, None)] * 3


def test_an_attempt_that_never_had_a_verdict_has_lost_none(tmp_path: Path) -> None:
    with AttemptStore(tmp_path / "probe") as store:
        store.append(AttemptRow(TASKS[0].uid, 0, None, 0.0, {"kind": "broken", "message": ""}), {"messages": []})
    regrade(SETTINGS, run_dir=tmp_path, inputs=Given(TASKS))
    assert (tmp_path / "regrade/changed.jsonl").read_text() == ""


def test_a_damaged_trajectory_takes_the_verdict_of_its_own_attempt_alone(
    played: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(played / "evaluate/base", tmp_path / "evaluate/base")
    file = tmp_path / "evaluate/base/trajectories.jsonl"
    first, *others = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first.replace(b'"', b"?") + b"".join(others))
    with pytest.raises(WorldFailure, match="2 of 3 attempts have a verdict"):
        again(tmp_path, TASKS)
    (row,) = [json.loads(line) for line in (tmp_path / "regrade/changed.jsonl").read_text().splitlines()]
    assert row["system_error"]["kind"] == "not_kept" and "cannot be read" in row["message"]
    assert f"{file}, {len(first)} bytes from byte 0" in caplog.text


def test_an_attempt_that_ended_by_its_own_limit_stays_failed(tmp_path: Path) -> None:
    with AttemptStore(tmp_path / "evaluate" / "base") as store:
        store.append(AttemptRow(TASKS[0].uid, 0, False, 0.0, finish_reason="token_limit"), {"messages": []})
    _, found = again(tmp_path, [replace(TASKS[0], test_code="def __tb_test_fn(x, judge):\n    pass\n")])
    assert found["passed_attempts"] == 0


def test_a_folder_without_attempts_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no attempts"):
        regrade(SETTINGS, run_dir=tmp_path, inputs=Given([]))


def test_a_call_that_was_never_made_is_not_shown_to_the_check() -> None:
    def call(number: int, **metadata: bool) -> dict[str, Any]:
        return {"T": "ToolCall", "name": "f", "arguments": {}, "id": f"c{number}", "metadata": metadata}

    answer = {"T": "ToolResponse", "name": "f", "content": "1", "id": "c0", "metadata": {}}
    found = calls_of(
        [
            {"T": "ParallelToolCall", "tool_calls": [call(0)]},
            answer,
            {"T": "ParallelToolCall", "tool_calls": [call(1), call(2, is_end_turn_tool=True)]},
        ]
    )
    assert [(each["tool_call"]["id"], each["tool_response"]["content"]) for each in found] == [("c0", "1"), ("c2", "")]
