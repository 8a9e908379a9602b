"""An OpenEnv environment server as a process, driven by the client of openenv, and by tbexp itself."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

import tbexp
from tbexp.config.schema import Limits
from tbexp.episode import Attempt
from tbexp.interpret.messages import Reading
from tbexp.policy import Policy, ScriptedPolicy
from tbexp.samples.shipped import shipped
from tbexp.samples.situation import Call
from tbexp.serving.openenv_client import attempt_at

openenv = pytest.importorskip("openenv", reason="the extra serve (package openenv) is not installed")
PATIENCE_S = 90.0
UID = "swap.py:test_swap_site_smaller_3"


AS_TBEXP = ("-m", "tbexp")
IMPATIENT = (
    "-c",
    "import runpy, tbexp.serving.openenv_server as server; server.STEP_S = 5.0\n"
    "runpy.run_module('tbexp', run_name='__main__', alter_sys=True)",
)


@contextmanager
def served(folder: Path, *words: str, how: tuple[str, ...] = AS_TBEXP) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The environment server: its address and its process, which is ended afterwards."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(tbexp.__file__).parent.parent)
    said = folder / "said"
    command = [sys.executable, *how, "stages=[serve]", "serve=openenv", "serve.port=0", *words]
    with said.open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := re.search(r"at (http://127\.0\.0\.1:\d+) \(OpenEnv", said.read_text())):
            assert process.poll() is None and time.monotonic() < deadline, said.read_text()
            time.sleep(0.1)
        yield found[1], process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, said.read_text()
        assert "Traceback" not in said.read_text()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("served"), "serve.sessions=2", "serve.trajectories=true") as (address, _):
        yield address


def client(url: str) -> Any:
    """As somebody else would use it: the generic client of openenv, without async."""
    return openenv.GenericEnvClient(base_url=url, message_timeout_s=PATIENCE_S).sync()


def solve(env: Any, uid: str) -> list[Any]:
    """What the environment answers to the right steps of a task of the sample domain."""
    results = [env.reset(test_uid=uid)]
    for step in shipped()[uid].right:
        if isinstance(step, Call):
            action = {"type": "call_tool", "tool_name": step.tool, "arguments": dict(step.arguments), "call_id": "mine"}
        else:
            action = {"type": "submit_message", "content": step.text}
        results.append(env.step(action))
    return results


def test_a_task_that_is_done_right_passes(url: str) -> None:
    with client(url) as env:
        first, *middle, last = solve(env, UID)
        state = env.state()
        again = env.step({"type": "submit_message", "content": "more"})
    opening = first.observation
    assert opening["kind"] == "reset" and opening["task_uid"] == UID and not first.done and first.reward is None
    assert [message["role"] for message in opening["messages"]] == ["system", "system", "user"]
    assert opening["messages"][-1]["content"] == opening["task"]
    assert {"swap_machine", "get_rental"} <= {tool["name"] for tool in opening["tools"]}
    called = [each.observation for each in middle if each.observation["kind"] == "tool"]
    assert called and all(each["call_id"] == "mine" and each["tool_result"] for each in called)
    assert (last.done, last.reward, last.observation["reward_type"]) == (True, 1.0, "pass")
    assert last.observation["test_summary"] == {"passed": True, "graded": True, "is_system_error": False}
    assert last.observation["finish_reason"] == "done" and last.observation["steps_taken"] == len(middle) + 1
    attempt = last.observation["attempt"]
    assert attempt["verdict"]["passed"] is True and any(attempt["effects"].values())
    assert state["status"] == "done" and again.observation == last.observation


def test_a_task_that_is_done_wrong_fails_and_the_next_episode_begins_anew(url: str) -> None:
    with client(url) as env:
        env.reset(test_uid=UID)
        last = env.step({"type": "submit_message", "content": "I have done it. <DONE>"})
        assert (last.done, last.reward, last.observation["reward_type"]) == (True, 0.0, "fail")
        assert last.observation["test_summary"]["passed"] is False
        assert solve(env, UID)[-1].reward == 1.0


UNREADABLE = (
    ({"type": "no_such_type"}, "type='no_such_type': Input should be 'list_tools', 'call_tool', 'submit_message' or"),
    ({"tool_name": "get_rental"}, "type: Field required"),
    ({"type": "submit_message", "content": 3}, "content=3: Input should be a valid string"),
    ({"type": "submit_message", "text": "Hello"}, "text='Hello': Extra inputs are not permitted"),
    ({"type": "give_up", "reason": "tired"}, "reason='tired': Input should be 'token_limit' or 'time_limit'"),
    ({"type": "call_tool", "parallel_tool_calls": [{}]}, "parallel_tool_calls.0.name: Field required"),
    ({"type": "call_tool", "parallel_tool_calls": [{"name": n} for n in range(9)]}, "parallel_tool_calls.0.name=0: "),
    ({"type": "submit_message", "content": "x", "metadata": []}, "metadata=[]: Input should be a valid dictionary"),
)


def test_mistakes_of_a_client_are_told_and_cost_no_step(url: str) -> None:
    with client(url) as env:
        assert env.step(UNREADABLE[0][0]).observation["error"].startswith(UNREADABLE[0][1])
        assert env.step({"type": "list_tools"}).observation["error"] == "reset comes first"
        unknown = env.reset(test_uid="none.py:test_none")
        assert unknown.done and unknown.observation["finish_reason"] == "reset_error"
        env.reset(test_uid=UID)
        wrong = env.step({"type": "call_tool"})
        assert wrong.observation["kind"] == "error" and not wrong.done and wrong.observation["steps_taken"] == 0
        wrong = env.step({"type": "submit_message"})
        assert wrong.observation["kind"] == "error" and not wrong.done and "content" in wrong.observation["error"]
        tools = env.step({"type": "list_tools"}).observation
        assert tools["kind"] == "tools" and tools["steps_taken"] == 0
        calls = [
            {"name": "no_such_tool", "arguments": {}, "call_id": "a"},
            {"name": "get_rental", "arguments": [1], "call_id": "b"},
            {"name": "get_rental", "call_id": "c", "parse_error": "Error: that was no JSON"},
        ]
        batch = env.step({"type": "call_tool", "parallel_tool_calls": calls}).observation
        assert batch["kind"] == "tool_batch" and batch["steps_taken"] == 1
        found = [(each["call_id"], each["error"]) for each in batch["tool_results"]]
        assert found == [("a", "tool_not_found"), ("b", "invalid_args"), ("c", "invalid_args")]
        assert batch["tool_results"][2]["result"] == "Error: that was no JSON"
        for action, why in UNREADABLE:
            refused = env.step(action)
            told = refused.observation
            assert (told["kind"], told["steps_taken"], refused.done) == ("error", 1, False), action
            assert told["error"].startswith(why) and len(told["error"]) < 900, (action, told["error"])
        gone = env.step({"type": "give_up", "reason": "token_limit"})
        assert (gone.done, gone.reward, gone.observation["finish_reason"]) == (True, 0.0, "token_limit")


REFUSED = (
    ({"test_uid": "none.py:test_none"}, "there is no task none.py:test_none among 144"),
    ({"test_uid": ""}, "there is no task  among 144"),
    ({"test_uid": 3}, "test_uid=3: "),
    ({"split": "held_out", "index": "1"}, "index='1': "),
    ({"split": "held_out", "index": 48}, "there is no task 48 among 48"),
    ({"split": "held_out", "index": -1}, "there is no task -1 among 48"),
    ({"split": "nowhere"}, "there is no split nowhere: candidates, held_out"),
    ({"split": ["held_out"]}, "split=['held_out']: "),
    ({"seed": "x"}, "seed='x': "),
    ({"seed": True}, "seed=True: "),
    ({"test_uidd": UID}, f"test_uidd='{UID}': Extra inputs are not permitted, did you mean test_uid"),
    ({"test_uid": UID, "zzz": 1}, "zzz=1: Extra inputs are not permitted"),
    ({"seed": -1}, "seed=-1: "),
    ({"attempt": None}, "attempt=None: "),
    ({"attempt": "0", "episode_id": 7}, "episode_id=7: "),
)


def test_a_reset_that_is_refused_says_why_and_leaves_the_episode_as_it_was(url: str) -> None:
    listing = {"type": "call_tool", "tool_name": "get_rental", "arguments": {}}
    with client(url) as env:
        for asked, _ in REFUSED:  # before any episode
            refused = env.reset(**asked)
            assert refused.done and refused.observation["finish_reason"] == "reset_error", asked
        assert env.step({"type": "list_tools"}).observation["error"] == "reset comes first"
        assert env.state()["status"] == "idle"
        env.reset(test_uid=UID, episode_id="mine")
        env.step(listing)
        before = env.state()
        for asked, why in REFUSED:
            refused = env.reset(**asked)
            assert not refused.done and refused.observation["kind"] == "error" and refused.reward is None, asked
            error = refused.observation["error"]
            assert error.startswith(why) and error.endswith(f"; the episode at {UID} goes on"), (asked, error)
            assert "\n" not in error and len(error) < 300
            assert env.state() == before, asked
        assert env.step(listing).observation["steps_taken"] == 2
        last = env.step({"type": "submit_message", "content": "<DONE>"})
        refused = env.reset(index="1")
        assert last.done and refused.done and refused.observation["error"].endswith("valid integer")
        assert env.step(listing).observation == last.observation
    once = httpx.post(f"{url}/reset", json={"index": "1"}, timeout=PATIENCE_S)  # an episode of one request
    assert once.status_code == 200 and once.json()["observation"]["error"].startswith("index='1': ")


def test_of_a_task_that_the_environment_does_not_have_tbexps_own_client_says_so(url: str) -> None:
    policy = cast(Policy, None)  # it is not asked
    done = asyncio.run(
        attempt_at(url, "none.py:test_none", attempt=0, seed=1, policy=policy, limits=Limits(), timeout_s=PATIENCE_S)
    )
    assert done.system_error is not None and done.passed is None
    assert done.system_error.message.endswith("no verdict: there is no task none.py:test_none among 144")


def test_a_seed_or_a_place_in_a_split_chooses_the_task(url: str) -> None:
    with client(url) as env:
        drawn = [env.reset(seed=seed).observation["task_uid"] for seed in (5, 5, 6, 7)]
        assert drawn[0] == drawn[1] and len(set(drawn)) > 1
        listed = httpx.post(f"{url}/tbexp/task", json={"split": "held_out", "index": 3}).json()["task"]
        assert env.reset(split="held_out", index=3).observation["task_uid"] == listed["id"]
    assert {each["name"] for each in httpx.get(f"{url}/tbexp/splits").json()} == {"candidates", "held_out"}
    once = httpx.post(f"{url}/reset", json={"test_uid": UID}, timeout=PATIENCE_S).json()  # an episode of one request
    assert once["observation"]["task_uid"] == UID
    assert httpx.get(f"{url}/ready").json()["ready"] and httpx.get(f"{url}/health").status_code == 200


def test_each_connection_has_an_episode_of_its_own_up_to_the_limit(url: str) -> None:
    with client(url) as one, client(url) as two:
        one.reset(test_uid=UID)
        two.reset(test_uid=UID)
        lost = two.step({"type": "submit_message", "content": "<DONE>"})
        assert lost.done and not one.step({"type": "list_tools"}).done
        with pytest.raises(Exception, match=r"(?i)capacity"), client(url) as three:
            three.reset(test_uid=UID)
    with client(url) as free:  # places are given back
        assert not free.reset(test_uid=UID).done


def test_a_connection_on_which_nothing_happens_loses_its_place(tmp_path: Path) -> None:
    words = ("serve.sessions=1", "policy.limits.generation_seconds=1")
    with served(tmp_path, *words, how=IMPATIENT) as (address, _):
        httpx.post(f"{address}/reset", json={"test_uid": UID}, timeout=PATIENCE_S)  # backends start: it takes its time
        with client(address) as idle:
            assert not idle.reset(test_uid=UID).done
            deadline, place = time.monotonic() + PATIENCE_S, None
            while place is None:
                assert time.monotonic() < deadline
                try:
                    with client(address) as other:
                        place = other.reset(test_uid=UID)
                except Exception as error:
                    assert "capacity" in str(error).lower()
                    time.sleep(2.0)
            assert place.observation["kind"] == "reset"
            for ask in (lambda: idle.step({"type": "list_tools"}), lambda: idle.reset(test_uid=UID)):
                with pytest.raises(RuntimeError, match="idle for too long"):
                    ask()


def test_a_signal_ends_the_server_although_an_episode_is_under_way(tmp_path: Path) -> None:
    with served(tmp_path) as (address, process), client(address) as env:
        env.reset(test_uid=UID)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


@pytest.fixture(scope="module")
def garden_words() -> Callable[[Any], list[str]]:
    def words(place: Any) -> list[str]:
        return ["tasks=folder", f"tasks.root={place.garden}", "tasks.candidates=releases/candidates.yaml"]

    return words


def test_tbexps_own_policy_gets_there_the_verdicts_that_it_gets_here(
    new_place: Callable[[], Any], unbroken: Any, garden_words: Callable[[Any], list[str]]
) -> None:
    place = new_place()
    with served(place.folder, *garden_words(place), "serve.sessions=3") as (address, process):
        # More at once than the server has places for: the others wait.
        elsewhere = ["sandbox=openenv", f"sandbox.environment.url={address}", "policy.concurrency=8"]
        done = place.run(*elsewhere)
        assert done.returncode == 0, done.stderr
        assert place.counts() == unbroken[0].counts()
        mine = {(row["uid"], row["attempt"]): row for row in unbroken[0].rows()}
        for row in place.rows():
            there = mine[row["uid"], row["attempt"]]
            for name in ("passed", "reward", "finish_reason", "turns", "tool_calls", "prompt_tokens", "domain"):
                assert row[name] == there[name], (name, row["uid"])
        assert process.poll() is None


def test_an_attempt_elsewhere_says_whether_its_verdict_needed_the_judge(
    new_place: Callable[[], Any], garden_words: Callable[[Any], list[str]]
) -> None:
    place = new_place()
    checks = place.garden / "dataset/test_case/garden.py"
    code = checks.read_text()
    uid, checked = "garden.py:test_beans", 'assert changed(x) == {"B1": {"plant": "beans", "rows": 3}}'
    assert checked in code
    checks.write_text(code.replace(checked, "assert judge.yesno('Was the customer greeted?')"))
    judge = ["judge=scripted", "+judge.answers={greeted: false}"]

    async def attempts(url: str) -> list[Attempt]:
        options = {"attempt": 0, "seed": 0, "limits": Limits(), "timeout_s": PATIENCE_S}
        return [
            await attempt_at(url, each, policy=ScriptedPolicy([Reading(text="No. <DONE>")]), **options)
            for each in (uid, "garden.py:test_peas")
        ]

    with served(place.folder, *garden_words(place), *judge) as (address, _):
        asked, unasked = asyncio.run(attempts(address))
    assert (asked.passed, asked.judged, unasked.judged) == (False, True, False)


def test_an_environment_that_is_not_there_is_the_worlds_failure(new_place: Callable[[], Any]) -> None:
    place = new_place()
    words = ["sandbox=openenv", "sandbox.environment.url=http://127.0.0.1:9", "probe.retries=0"]
    done = place.run(*words)
    assert done.returncode == 3 and "environment" in done.stderr
    assert {row["system_error"]["kind"] for row in place.rows()} == {"environment"}
