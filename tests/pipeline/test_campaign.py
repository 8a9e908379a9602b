"""Campaigns on the sample domain's real server, played by its recorded solutions."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tbexp.attempts import AttemptStore
from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder
from tbexp.config.schema import Config
from tbexp.errors import UserError, WorldError, WorldFailure
from tbexp.interpret.messages import Message, Reading
from tbexp.pipeline.campaign import CampaignResult, run_campaign
from tbexp.pipeline.progress import Progress
from tbexp.policy import ScriptedPolicy
from tbexp.samples import data_root, solution
from tbexp.sandbox import read_servers
from tbexp.tasks import load_tasks

with opened(conf_folder()) as compose:
    CONFIG = Config.model_validate(plain(compose([])))

SERVERS = read_servers(data_root() / "servers" / "servers.yaml", python=sys.executable, allow_env=[])
TASKS = [task for task in load_tasks(data_root(), "agent") if task.uid.startswith("extend.py:")]
BY_QUERY = {task.query: task.uid for task in TASKS}
FIRST, SECOND = TASKS[0].uid, TASKS[1].uid


def solver(fail: Callable[[str], BaseException | None] = lambda uid: None) -> ScriptedPolicy:
    """Plays the recorded solution; `fail` says with which error an attempt at a task begins."""

    def script(messages: Sequence[Message], seed: int) -> Sequence[Reading]:
        uid = BY_QUERY[messages[-1].content]
        if (error := fail(uid)) is not None:
            raise error
        return solution(uid)

    return ScriptedPolicy(script)


def run(folder: Path, policy: ScriptedPolicy, *, tasks: int = len(TASKS), **options: Any) -> CampaignResult:
    with Progress(io.StringIO()) as progress:
        bar = progress.stage("probe", None, "attempts")
        settings = {"attempts": 1, "retries": 1, **options}
        return run_campaign(
            CONFIG, tasks=TASKS[:tasks], servers=SERVERS, policy=policy, folder=folder, bar=bar, **settings
        )


def test_the_recorded_solutions_of_a_topic_pass_and_a_second_call_does_nothing(tmp_path: Path) -> None:
    assert len(BY_QUERY) == len(TASKS) == 12
    assert run(tmp_path, solver()) == CampaignResult(12, {})
    before = (tmp_path / "attempts.jsonl").read_bytes()
    with AttemptStore(tmp_path, read_only=True) as store:
        rows = store.rows()
        ends = [(store.trajectory(row) or {})["messages"][-1]["content"] for row in rows]
    assert [(row.uid, row.passed, row.tries) for row in rows] == [(task.uid, True, 1) for task in TASKS]
    assert {row.finish_reason for row in rows} == {"done"} and all(end.endswith("<DONE>") for end in ends)

    def nobody(uid: str) -> BaseException:
        return AssertionError(f"{uid} is attempted again")

    assert run(tmp_path, solver(nobody)) == CampaignResult(0, {})
    assert (tmp_path / "attempts.jsonl").read_bytes() == before


def test_a_system_error_that_goes_away_is_tried_again_and_one_that_stays_is_counted(tmp_path: Path) -> None:
    seen: list[str] = []

    def fail(uid: str) -> BaseException | None:
        seen.append(uid)
        passing = uid == FIRST and seen.count(uid) == 1
        return WorldError("broken", "it broke") if passing or uid == SECOND else None

    assert run(tmp_path, solver(fail), tasks=2) == CampaignResult(2, {"broken": 1})
    with AttemptStore(tmp_path, read_only=True) as store:
        rows, history = store.rows(), store.history()
    assert [(row.uid, row.passed, row.tries) for row in rows] == [(FIRST, True, 2), (SECOND, None, 2)]
    assert sorted((row.uid, row.tries, row.clean) for row in history) == [
        (FIRST, 1, False),
        (FIRST, 2, True),
        (SECOND, 1, False),
        (SECOND, 2, False),
    ]
    # The next call makes what is missing, and more attempts where more are asked for.
    assert run(tmp_path, solver(), tasks=2, attempts=2) == CampaignResult(3, {})
    with AttemptStore(tmp_path, read_only=True) as store:
        assert [(row.uid, row.attempt, row.passed) for row in store.rows()] == [
            (uid, attempt, True) for uid in (FIRST, SECOND) for attempt in (0, 1)
        ]


@pytest.mark.parametrize(
    ("error", "raised", "says"),
    [
        (WorldError("broken", "it broke"), WorldFailure, "20 attempts in a row were system errors.* broken.*it broke"),
        (UserError("the key is refused"), UserError, "the key is refused"),
    ],
)
def test_a_campaign_that_cannot_go_on_ends(
    error: Exception, raised: type[Exception], says: str, tmp_path: Path
) -> None:
    with pytest.raises(raised, match=says):
        run(tmp_path, solver(lambda uid: error))
    with AttemptStore(tmp_path, read_only=True) as store:
        assert not any(row.clean for row in store.rows())
