"""Campaigns on the sample domain's real server, played by its recorded solutions."""

from __future__ import annotations

import asyncio
import io
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tbexp.attempts import AttemptStore
from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder
from tbexp.config.schema import Config
from tbexp.errors import UserError, WorldError, WorldFailure
from tbexp.evaluation import summarise
from tbexp.interpret.messages import Message, Reading
from tbexp.pipeline.campaign import CampaignResult, _Queue, run_campaign
from tbexp.pipeline.progress import Progress
from tbexp.pipeline.wanted import AdaptiveNumber, FixedNumber
from tbexp.policy import ScriptedPolicy
from tbexp.samples import data_root, solution
from tbexp.sandbox import read_servers
from tbexp.selection import Spend, StoppingRule, confidence_of
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
        uids = [task.uid for task in TASKS[:tasks]]
        settings = {"wanted": FixedNumber(uids, options.pop("attempts", 1)), "retries": 1, "config": CONFIG, **options}
        return run_campaign(tasks=TASKS[:tasks], servers=SERVERS, policy=policy, folder=folder, bar=bar, **settings)


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


def test_rows_tell_how_many_ran_at_a_time_and_on_how_many_devices(tmp_path: Path) -> None:
    policy = CONFIG.policy.model_copy(update={"concurrency": 3})
    run(tmp_path, solver(), tasks=2, attempts=2, config=CONFIG.model_copy(update={"policy": policy}))
    vllm = policy.vllm.model_copy(update={"tensor_parallel_size": 2})
    served = policy.model_copy(update={"serve": "vllm", "concurrency": 64, "vllm": vllm})
    run(tmp_path, solver(), tasks=2, attempts=3, config=CONFIG.model_copy(update={"policy": served}))
    with AttemptStore(tmp_path, read_only=True) as store:
        found = {row.attempt: (row.at_a_time, row.devices) for row in store.rows()}
    assert found == {0: (3, 1), 1: (3, 1), 2: (6, 2)}  # not more at a time than there are attempts


def test_attempts_whose_trajectories_are_gone_are_not_made_again(tmp_path: Path) -> None:
    run(tmp_path, solver(), tasks=2)
    (tmp_path / "trajectories.jsonl").unlink()
    assert run(tmp_path, solver(), tasks=2, attempts=2) == CampaignResult(2, {})
    with AttemptStore(tmp_path, read_only=True) as store:
        found = [(row.attempt, store.trajectory(row)) for row in store.rows()]
    assert [number if seen is None else seen["attempt"] for number, seen in found] == [0, 1, 0, 1]
    assert [seen is None for _, seen in found] == [True, False, True, False]


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


def test_rows_say_whose_verdict_needed_the_judge(tmp_path: Path) -> None:
    asks = "def __tb_test_fn(x, judge):\n    assert judge.yesno('Was the customer greeted?')\n"
    swallows = "def __tb_test_fn(x, judge):\n    if judge.yesno('Is it late?'):\n        assert False\n"
    tasks = [replace(TASKS[0], test_code=asks), replace(TASKS[1], test_code=swallows), TASKS[2]]
    judge = CONFIG.judge.model_copy(update={"kind": "scripted", "answers": {"greeted": False, "late": False}})
    config = CONFIG.model_copy(update={"judge": judge})
    with Progress(io.StringIO()) as progress:
        run_campaign(
            config,
            tasks=tasks,
            wanted=FixedNumber([task.uid for task in tasks], 1),
            retries=0,
            servers=SERVERS,
            policy=solver(),
            folder=tmp_path,
            bar=progress.stage("probe", None, "attempts"),
        )
    with AttemptStore(tmp_path, read_only=True) as store:
        found = {row.uid: (row.passed, row.judged) for row in store.rows()}
        figures = summarise(
            {"base": store.rows()},
            attempts=1,
            tasks={task.uid: task.domain for task in tasks},
            settings=config.evaluation,
        )["policies"]["base"]
    assert [found[task.uid] for task in tasks] == [(False, True), (True, True), (True, False)]
    assert figures["judged_share"] == 2 / 3 and figures["judged_by_code_share"] == 1 / 3


RATES = dict(zip([task.uid for task in TASKS], (0.0, 0.5, 0.9, 0.3), strict=False))


def sometimes(stop_at: int = 10**9) -> ScriptedPolicy:
    """Solves a task as often as RATES says, depending on the attempt's seed alone; refused at the attempt `stop_at`."""
    begun: list[int] = []

    def script(messages: Sequence[Message], seed: int) -> Sequence[Reading]:
        begun.append(seed)
        if len(begun) >= stop_at:
            raise UserError("the key is refused")
        uid = BY_QUERY[messages[-1].content]
        return solution(uid) if random.Random(seed).random() < RATES[uid] else [Reading(text="No. <DONE>")]

    return ScriptedPolicy(script)


def adaptive(spend: bool) -> AdaptiveNumber:
    buckets = CONFIG.buckets
    rule = StoppingRule.of_settings(5, buckets=buckets, min_clean=3, group_size=8, level=0.9, least=3)
    uids = list(RATES)
    return AdaptiveNumber(uids, rule, Spend(8, confidence_of(buckets, 8)) if spend else None)


def outcomes(folder: Path) -> list[tuple[str, int, bool | None]]:
    with AttemptStore(folder, read_only=True) as store:
        return [(row.uid, row.attempt, row.passed) for row in store.rows()]


@pytest.mark.parametrize("spend", [False, True])
def test_an_adaptive_campaign_makes_the_same_prefixes_however_many_run_at_once_and_where_it_was_broken_off(
    spend: bool, tmp_path: Path
) -> None:
    serial = CONFIG.model_copy(update={"policy": CONFIG.policy.model_copy(update={"concurrency": 1})})
    run(tmp_path / "serial", sometimes(), tasks=4, wanted=adaptive(spend), config=serial)
    for stop_at in (5, 12):
        with pytest.raises(UserError, match="refused"):
            run(tmp_path / "broken", sometimes(stop_at), tasks=4, wanted=adaptive(spend))
    run(tmp_path / "broken", sometimes(), tasks=4, wanted=adaptive(spend))
    made = outcomes(tmp_path / "serial")
    assert made == outcomes(tmp_path / "broken")
    assert {passed for _, _, passed in made} == {True, False}
    with AttemptStore(tmp_path / "serial", read_only=True) as store:
        wanted, rows = adaptive(spend), store.rows()
        assert wanted.counted(rows) == rows and not wanted.missing(store)
    prefix = wanted.prefix(rows)
    assert len(made) == prefix.attempts
    assert len(made) <= 20 if spend else len(made) < 20
    if spend:
        return
    # The full probe of the same attempts goes on from there, and its prefix is the same.
    run(tmp_path / "serial", sometimes(), tasks=4, attempts=5)
    with AttemptStore(tmp_path / "serial", read_only=True) as store:
        assert [(r.uid, r.attempt, r.passed) for r in adaptive(spend).counted(store.rows())] == made


def test_an_attempt_that_stays_a_system_error_takes_its_place_in_an_adaptive_prefix_and_is_tried_again(
    tmp_path: Path,
) -> None:
    def nothing_for_first(uid: str) -> BaseException | None:
        return WorldError("broken", "it broke") if uid == FIRST else None

    wanted = adaptive(spend=False)
    wanted.uids = wanted.uids[:2]
    assert run(tmp_path, solver(nothing_for_first), tasks=2, wanted=wanted, retries=0).errors == {"broken": 5}
    with AttemptStore(tmp_path, read_only=True) as store:
        assert wanted.prefix(store.rows()).used[FIRST] == 5 and wanted.unmade(store.rows()) == 0
        assert {key for key in wanted.missing(store) if key[0] == FIRST}
    run(tmp_path, solver(), tasks=2, wanted=wanted)
    with AttemptStore(tmp_path, read_only=True) as store:
        assert all(row.passed for row in wanted.counted(store.rows()))


def test_the_queue_ends_for_all_when_one_worker_fails_and_another_swallows_its_cancellation() -> None:
    async def go() -> None:
        queue, came = _Queue([("a", 0), ("b", 0)]), asyncio.get_running_loop().create_future()

        async def fails() -> None:
            await queue.next()
            await asyncio.sleep(0.01)
            came.set_result(None)
            queue.close()  # as a worker does that an error ends
            raise UserError("stop")

        async def swallows() -> None:
            while await queue.next() is not None:
                await asyncio.wait_for(asyncio.shield(came), 5)  # of a cancellation in the same moment nothing is heard
                queue.ended([])

        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(fails())
            group.create_task(swallows())

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(go())
    assert caught.group_contains(UserError)
