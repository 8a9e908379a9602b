"""What can go wrong in an attempt, one line a fault, and the row that it becomes.

Everything is real: server processes, the forked grader, user and judge behind HTTP. A fault that stays is tried as
often as the config says and is then a system error of its kind, never a verdict; one that goes away costs a try.
Nothing hangs: each attempt here takes a few limits' time.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tbexp.attempts import AttemptRow, AttemptStore
from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder
from tbexp.config.schema import Config, Endpoint, Limits, ModelPrice, Sampling
from tbexp.errors import WorldFailure
from tbexp.interpret.messages import Reading, ToolCall
from tbexp.pipeline.campaign import count_spent, run_campaign
from tbexp.pipeline.progress import Progress
from tbexp.pipeline.wanted import FixedNumber
from tbexp.policy import ChatEndpoint, ChatPolicy, Policy, ScriptedPolicy, Usage
from tbexp.sandbox import Server
from tbexp.tasks import Agent, Scenario, Task, ToolOverride

SERVER = Server("till", (sys.executable, "till.py"), {}, str(Path(__file__).parent / "data"))
RINGS = 'def test(x, judge):\n    assert x.effects["till"]["rung"] == 1\n    {}\n__tb_test_fn = test\n'
LONG = 2000  # characters that the agent is shown of a tool's answer

# fault -> what the till does, what the test does besides its check, what the endpoint answers; kind of the system error
FAULTS: dict[str, tuple[dict[str, Any], str, Any, str]] = {
    "the server crashes in a call": ({"call": "crash"}, "", None, "server_crashed"),
    "the server hangs in a call": ({"call": "hang"}, "", None, "tool_timeout"),
    "the server answers garbage": ({"call": "garbage"}, "", None, "server_garbage"),
    "init says no": ({"init": '{"status": "error", "message": "no"}'}, "", None, "server_init"),
    "init says nothing that can be read": ({"init": "well"}, "", None, "server_init"),
    "init crashes": ({"init": "crash"}, "", None, "server_crashed"),
    "init hangs": ({"init": "hang"}, "", None, "server_init"),
    "the effects are no object": ({"effects": "[1]"}, "", None, "effects_unreadable"),
    "the effects are an error": ({"effects": '{"status": "error", "message": "x"}'}, "", None, "effects_unreadable"),
    "the server crashes when asked for its effects": ({"effects": "crash"}, "", None, "server_crashed"),
    "the user endpoint answers 429": ({}, "", (429, {"error": "slower"}), "user_endpoint"),
    "the user endpoint answers 500": ({}, "", (500, {"error": "broken"}), "user_endpoint"),
    "the user endpoint answers garbage": ({}, "", (200, "<html>"), "user_endpoint"),
    "the user endpoint hangs up": ({}, "", (0, None), "user_endpoint"),
    "the user endpoint does not answer": ({}, "", "sleep", "user_endpoint"),
    "the judge dies": ({}, "assert judge.yesno('Is it?')", (500, {"error": "broken"}), "judge"),
    "the judge does not answer": ({}, "assert judge.yesno('Is it?')", "sleep", "judge"),
    "the test loops for ever": ({}, "while True: pass", None, "grader_timeout"),
    "the test sleeps for ever": ({}, "import time; time.sleep(3600)", None, "grader_timeout"),
    "the test allocates 10 GB": ({}, "bytearray(10 ** 10)", None, "grader_memory"),
    "the test kills its process": ({}, "import os; os.kill(os.getpid(), 9)", None, "grader_crashed"),
    "the test kills its grader": ({}, "import os; os.kill(os.getppid(), 9)", None, "grader_crashed"),
    "the test is wrong itself": ({}, "stok", None, "test_code"),
}
# What looks like a fault of the world and is none: verdict, and words of what the agent was told or of the verdict.
NO_FAULTS: dict[str, tuple[dict[str, Any], str, bool, str]] = {
    "the server answers 5 MB": ({"call": "5 MB"}, "", True, f"[cut here: {5_000_000 - LONG} of 5000000 characters"),
    "the teardown hangs": ({"teardown": "hang"}, "", True, ""),
    "the teardown crashes": ({"teardown": "crash"}, "", True, ""),
    "the check fails": ({}, 'assert False, "the shelf is empty"', False, "the shelf is empty"),
    "the check misses what the agent should have left": ({}, 'x.effects["till"]["sold"]', False, "KeyError: 'sold'"),
}
ASKS = (Reading("", (ToolCall("ring", {}, "c"),)), Reading("Is that right?"), Reading("Then it is done. <DONE>"))
QUIET = (ASKS[0], ASKS[2])
YES = {"choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}]}

with opened(conf_folder()) as compose:
    SHIPPED = plain(compose(["user=chat", "judge=chat"]))


@pytest.fixture
def endpoint(gardener: Any) -> Iterator[Any]:
    yield gardener
    gardener.quiet()


def task(till: dict[str, Any], more: str, system: str = "S") -> Task:
    return Task(
        uid="till.py:test_ring",
        agent=Agent("agent", system),
        scenario=Scenario("till", {"till": till}, (ToolOverride("ring"),)),
        query="Ring it once.",
        user_context="You are Ada.",
        test_code=RINGS.format(more),
    )


def attempt(
    folder: Path,
    one: Task,
    url: str,
    *,
    retries: int = 1,
    script: Any = ASKS,
    policy: Policy | None = None,
    attempts: int = 1,
    generation_seconds: float = 600.0,
) -> tuple[list[AttemptRow], dict[str, Any]]:
    """Every try's row, and the last one's trajectory. policy: None: says the script."""
    endpoint = {"base_url": url, "model": "m", "retries": 1, "timeout_s": 0.4}
    values = {**SHIPPED}
    values["user"] = {**SHIPPED["user"], "endpoint": {**SHIPPED["user"]["endpoint"], **endpoint}}
    values["judge"] = {**SHIPPED["judge"], "endpoint": {**SHIPPED["judge"]["endpoint"], **endpoint}}
    limits = {"call_timeout_s": 1.0, "start_timeout_s": 5.0, "grade_timeout_s": 1.0, "max_result_chars": LONG}
    values["sandbox"] = {**SHIPPED["sandbox"], **limits}
    values["policy"] = {**SHIPPED["policy"], "limits": Limits(generation_seconds=generation_seconds).model_dump()}
    with Progress(io.StringIO()) as progress:
        run_campaign(
            Config.model_validate(values),
            tasks=[one],
            wanted=FixedNumber([one.uid], attempts),
            retries=retries,
            servers={"till": SERVER},
            policy=policy or ScriptedPolicy(script),
            folder=folder,
            bar=progress.stage("probe", None, "attempts"),
        )
    with AttemptStore(folder, read_only=True) as store:
        rows = list(store.history())
        return rows, store.trajectory(rows[-1]) or {}


def answers(endpoint: Any, fault: Any) -> None:
    def before(number: int) -> Any:
        if fault == "sleep":
            time.sleep(0.6)
        return (200, YES) if fault in (None, "sleep") else fault

    endpoint.before = before


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_world_is_a_system_error_that_was_tried_again(tmp_path: Path, endpoint: Any, fault: str) -> None:
    till, more, answer, kind = FAULTS[fault]
    answers(endpoint, answer)
    retries = 0 if "hang" in fault else 1
    script = ASKS if "user" in fault else QUIET
    rows, _ = attempt(tmp_path, task(till, more), endpoint.url, retries=retries, script=script)
    assert [row.tries for row in rows] == list(range(1, retries + 2))
    for row in rows:
        assert (row.passed, row.reward, row.finish_reason) == (None, 0.0, "system_error")
        assert row.system_error is not None and row.system_error["kind"] == kind, row.system_error


@pytest.mark.parametrize("case", NO_FAULTS)
def test_what_is_no_fault_of_the_world_has_a_verdict_at_once(tmp_path: Path, endpoint: Any, case: str) -> None:
    till, more, passed, words = NO_FAULTS[case]
    answers(endpoint, None)
    (row,), trajectory = attempt(tmp_path, task(till, more), endpoint.url)
    assert (row.passed, row.system_error, row.finish_reason) == (passed, None, "done")
    assert words in trajectory["messages"][3]["content"] + trajectory["verdict"]["message"]


@pytest.mark.parametrize("place", ["init", "call", "effects"])
def test_a_fault_that_goes_away_costs_one_try(tmp_path: Path, endpoint: Any, place: str) -> None:
    answers(endpoint, None)
    till = {place: {"do": "crash", "once": str(tmp_path / "fired")}}
    rows, _ = attempt(tmp_path / "store", task(till, ""), endpoint.url)
    assert [(row.tries, row.passed) for row in rows] == [(1, None), (2, True)]


def test_an_endpoint_that_is_busy_once_costs_no_try(tmp_path: Path, endpoint: Any) -> None:
    endpoint.before = lambda number: (429, {"error": "slower"}) if number == 1 else (200, YES)
    rows, _ = attempt(tmp_path, task({}, "assert judge.yesno('Is it?')"), endpoint.url)
    assert [(row.tries, row.passed) for row in rows] == [(1, True)]


def test_nothing_but_tool_answers_is_ever_cut(tmp_path: Path, endpoint: Any) -> None:
    answers(endpoint, None)
    long = "Be kind. " * LONG
    _, trajectory = attempt(tmp_path, task({"call": "5 MB"}, "", system=long), endpoint.url)
    first, _, _, answer = trajectory["messages"][:4]
    assert first["content"] == long
    shown, marker = answer["content"].split("\n")
    assert shown == "ä" * LONG and marker == f"[cut here: {5_000_000 - LONG} of 5000000 characters are not shown]"


SAYS_DONE = {"choices": [{"message": {"role": "assistant", "content": "Done. <DONE>"}, "finish_reason": "stop"}]}


def takes(seconds: float, then: Any = (200, SAYS_DONE)) -> Callable[[int], Any]:
    def before(number: int) -> Any:
        time.sleep(seconds)
        return then

    return before


def busy_then(fine_from: int) -> Callable[[int], Any]:
    return lambda number: (200, SAYS_DONE) if number >= fine_from else (503, {"error": "busy"})


@pytest.mark.parametrize(
    ("before", "endpoint_of", "attempts", "seconds", "finish"),
    [
        pytest.param(takes(0.6), {"timeout_s": 0.2, "retries": 2}, 1, 0.5, "system_error", id="it never answers"),
        pytest.param(takes(0.0), {"requests_per_minute": 60.0}, 4, 2.0, "done", id="our rate limit makes it wait"),
        pytest.param(takes(0.6), {"max_concurrency": 1}, 4, 2.0, "done", id="our own queue makes it wait"),
        pytest.param(busy_then(4), {"retries": 3}, 1, 1.5, "done", id="pauses after refusals"),
        pytest.param(takes(0.5), {}, 1, 0.2, "time_limit", id="it answers, and takes too long for it"),
    ],
)
def test_of_an_endpoint_policys_time_what_is_answered_counts_and_the_rest_is_the_worlds(
    tmp_path: Path,
    endpoint: Any,
    before: Callable[[int], Any],
    endpoint_of: dict[str, Any],
    attempts: int,
    seconds: float,
    finish: str,
) -> None:
    endpoint.before = before
    policy = ChatPolicy(Endpoint(base_url=endpoint.url, model="m", **endpoint_of), Sampling())
    one = task({}, "")
    rows, _ = attempt(
        tmp_path, one, endpoint.url, retries=0, policy=policy, attempts=attempts, generation_seconds=seconds
    )
    assert [row.finish_reason for row in rows] == [finish] * attempts
    for row in rows:
        assert (row.system_error or {}).get("kind") == ("policy_endpoint" if finish == "system_error" else None)
        assert row.passed == (None if finish == "system_error" else False)


def test_a_spending_cap_goes_on_counting_where_a_store_is_resumed(tmp_path: Path, endpoint: Any) -> None:
    answer = {**SAYS_DONE, "usage": {"prompt_tokens": 10**6, "completion_tokens": 10**6}}
    endpoint.before = lambda number: (200, answer)
    one, price = task({}, ""), ModelPrice(prompt=1.0, completion=1.0)  # 2 dollars an attempt

    def spend(cap: float, attempts: int) -> int:
        policy = ChatPolicy(
            Endpoint(base_url=endpoint.url, model="m", max_concurrency=1),
            Sampling(),
            spending_cap_usd=cap,
            price=price,
        )
        rows, _ = attempt(tmp_path, one, endpoint.url, retries=0, policy=policy, attempts=attempts)
        return len(rows)

    assert spend(3.0, 1) == 1 and spend(3.0, 2) == 2
    with pytest.raises(WorldFailure, match=r"policy\.spending_cap_usd: 4\.00 of 3\.00 US dollars.*higher cap"):
        spend(3.0, 3)
    assert spend(5.0, 3) == 3


def test_what_user_and_judge_had_spent_before_counts_failed_tries_included(tmp_path: Path, endpoint: Any) -> None:
    told = {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    endpoint.before = lambda number: (200, {**YES, **told}) if number < 4 else (500, {"error": "broken"})
    judged = task({}, "assert judge.yesno('Is it?') and judge.yesno('Is it so?')")
    rows, _ = attempt(tmp_path, judged, endpoint.url, retries=0)
    again, _ = attempt(tmp_path, judged, endpoint.url, retries=0)
    assert [row.clean for row in rows + again] == [True, True]
    with AttemptStore(tmp_path, read_only=True) as store:
        people = {
            role: ChatEndpoint(Endpoint(base_url=endpoint.url, model="m"), role=role) for role in ("user", "judge")
        }
        holders = {role: SimpleNamespace(endpoint=one) for role, one in people.items()}
        count_spent(store, policy=ScriptedPolicy(ASKS), **holders)
    assert people["user"].spent_before == Usage(7, 0, 3) and people["judge"].spent_before == Usage(14, 0, 6)
