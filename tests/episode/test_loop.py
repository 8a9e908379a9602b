"""The loop against the recorded behaviour of the reference, its limits, and whose fault a failure is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tbexp.config.schema import Limits, SandboxConfig
from tbexp.episode import Attempt, World, run_attempt
from tbexp.episode.people import clean_reply
from tbexp.errors import UserError, WorldError
from tbexp.grading import TestContext, Verdict, open_grader
from tbexp.interpret.messages import Message, Reading, ToolCall, ToolSpec
from tbexp.policy import OutOfContext, ScriptedPolicy, Usage
from tbexp.tasks import Agent, Scenario, Task, ToolDef, ToolOverride

GOLDEN: dict[str, str] = json.loads((Path(__file__).parent / "golden/loop.json").read_text(encoding="utf-8"))["cases"]

OBJECT = {"type": "object", "properties": {}}
TASK = Task(
    uid="t.py:test_1",
    agent=Agent("agent", "S", (ToolDef("end", "ends", OBJECT, is_end_turn=True),)),
    scenario=Scenario(
        name="shop",
        world_state={"shop": {"stock": 1}},
        tools=(
            ToolOverride("a"),
            ToolOverride("d", direct_response="D:{v}"),
            ToolOverride("e", direct_response="E:{v}"),
        ),
    ),
    query="Q",
    user_context="K",
    test_code="the test",
)
ASK_USER = Limits(empty_completion="ask_user")


def text(content: str) -> Reading:
    return Reading(content)


def calls(*names: str, say: str = "", error: str | None = None) -> Reading:
    return Reading(say, tuple(ToolCall(name, {}, f"call_{i}", error) for i, name in enumerate(names)))


class Backend:
    """Stands for sandbox and session: what the loop uses of them. faults: place -> what is raised there."""

    def __init__(self, faults: Mapping[str, Exception]):
        self.faults = faults
        self.tools = {name: ToolSpec(name, "a tool") for name in ("a", "d", "e")}
        self.init_result = {"shop": {"id": 7}}
        self.id = "session-7"
        self.executed: list[str] = []
        self.replayed: list[tuple[str, dict[str, Any]]] = []
        self.asked_for: tuple[Any, Any] | None = None
        self.open = 0

    @asynccontextmanager
    async def session(self, server_config: Mapping[str, Any], tools: Sequence[Any]) -> AsyncIterator[Backend]:
        self.fail("start")
        self.asked_for = (server_config, tools)
        self.open += 1
        try:
            yield self
        finally:
            self.open -= 1

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        self.executed.append(name)
        self.fail(f"call {len(self.executed)}")
        return json.dumps({"v": name})

    async def replay(self, name: str, arguments: Mapping[str, Any]) -> str:
        self.replayed.append((name, dict(arguments)))
        self.fail(f"replay {len(self.replayed)}")
        return "" if name in self.tools else "the session shows no such tool"

    async def effects(self) -> dict[str, Any]:
        assert self.open == 1
        self.fail("effects")
        return {"shop": {"stock": 2}}

    def fail(self, place: str) -> None:
        if place in self.faults:
            raise self.faults[place]


class Customer:
    """Says what it is told to, then nothing; cleaned as a model's answers are."""

    def __init__(self, says: Sequence[str], may_end: bool, backend: Backend):
        self.may_end, self._left, self._backend = may_end, list(says), backend
        self.seen: list[tuple[str, list[Message], int]] = []

    async def reply(self, user_context: str, visible: Sequence[Message], *, seed: int) -> str:
        self._backend.fail("user")
        self.seen.append((user_context, list(visible), seed))
        return clean_reply(self._left.pop(0) if self._left else "")


class Examiner:
    """Passes everything, and keeps what it was shown."""

    def __init__(self, verdict: Verdict):
        self.verdict = verdict
        self.contexts: list[TestContext] = []

    async def grade(self, test_code: str, context: TestContext, *, judge: Any, fixtures: Any, servers: Any) -> Verdict:
        assert test_code == "the test"
        self.contexts.append(context)
        return self.verdict


class Player(ScriptedPolicy):
    """A scripted policy that counts its sessions. hook: awaited before each act."""

    def __init__(self, script: Sequence[Reading], tokens: int, hook: Callable[[], Any] | None):
        super().__init__(script)
        self.tokens, self.hook = tokens, hook
        self.opened: list[tuple[list[Message], list[str], int]] = []
        self.heard: list[list[Message]] = []
        self.open_sessions = 0

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, seed: int) -> Any:
        self.opened.append((list(messages), [tool.name for tool in tools], seed))
        session = super().open(messages, tools, seed=seed)
        act = session.act
        self.open_sessions += 1

        async def counted(new: Sequence[Message]) -> Any:
            self.heard.append(list(new))
            if self.hook is not None:
                await self.hook()
            return replace(await act(new), usage=Usage(prompt_tokens=10, completion_tokens=self.tokens))

        async def close() -> None:
            self.open_sessions -= 1

        session.act, session.close = counted, close  # type: ignore[method-assign]
        return session


@dataclass
class Played:
    """An attempt, or what it raised, and everybody who took part."""

    attempt: Attempt
    raised: BaseException | None
    backend: Backend
    customer: Customer
    examiner: Examiner
    player: Player

    def summary(self) -> str:
        """As the golden file tells a case."""
        done = self.attempt
        context = self.examiner.contexts[0]
        recorded = [call["tool_call"]["name"] for call in context.tool_calls]
        parts = [done.finish_reason, f"executed={self.backend.executed}", f"tool_calls={recorded}"]
        return " | ".join([*parts, f"response={context.response!r}", self.transcript()])

    def transcript(self) -> str:
        return " ".join(told(message) for message in self.attempt.trajectory["messages"])


def told(message: Mapping[str, Any]) -> str:
    if message["T"] == "ParallelToolCall":
        return f"call({','.join(call['name'] for call in message['tool_calls'])})"
    if message["T"] == "ToolResponse":
        return f"resp({message['name']})"
    tag = message["metadata"].get("tag", "text")
    return f"{message['role']}{'' if tag == 'text' else ':' + tag}[{message['content']}]"


def play(
    script: Sequence[Reading],
    says: Sequence[str] = (),
    *,
    limits: Limits = ASK_USER,
    may_end: bool = False,
    faults: Mapping[str, Exception] | None = None,
    verdict: Verdict | None = None,
    tokens: int = 5,
    hook: Callable[[], Any] | None = None,
    nobody: bool = False,
    grade: bool = True,
    seed: int = 11,
    cancel: bool = False,
    **task: Any,
) -> Played:
    """One attempt with all parts but the loop played by the above; afterwards everything has been closed."""
    backend = Backend(faults or {})
    customer = Customer(says, may_end, backend)
    examiner = Examiner(verdict or Verdict(True, 1.0))
    player = Player(script, tokens, hook)
    world = World(backend, examiner, None if nobody else customer, None)  # type: ignore[arg-type]

    async def go() -> Any:
        running = asyncio.ensure_future(
            run_attempt(
                replace(TASK, **task), attempt=3, seed=seed, policy=player, world=world, limits=limits, grade=grade
            )
        )
        if cancel:
            while not player.heard:
                await asyncio.sleep(0)
            running.cancel()
        return (await asyncio.gather(running, return_exceptions=True))[0]

    found = asyncio.run(go())
    raised = found if isinstance(found, BaseException) else None
    assert (backend.open, player.open_sessions) == (0, 0)
    return Played(found, raised, backend, customer, examiner, player)


CASES: dict[str, dict[str, Any]] = {
    "done": {"script": [text("hi <DONE>")]},
    "text+call in one completion": {"script": [calls("a", say="working"), text("end <DONE>")]},
    "end tool with another": {"script": [calls("a", "end")]},
    "direct last": {"script": [calls("a", "d"), text("ok <DONE>")]},
    "agent limit 0": {"script": [text("never")], "max_agent_sim_turns": 0},
    "agent limit 2 text,text": {
        "script": [text("q1"), text("q2"), text("q3")],
        "says": ["ok"],
        "max_agent_sim_turns": 2,
    },
    "user limit 2": {"script": [text(f"q{i}") for i in range(9)], "says": ["ok"] * 9, "max_user_sim_turns": 2},
    "user ends": {"script": [text("anything else?")], "says": ["no thanks <DONE>"], "may_end": True},
    "no user context": {"script": [text("q")], "user_context": None},
    "user answer quoted+label": {"script": [text("q"), text("b <DONE>")], "says": ['User: "yes"']},
    "user error": {"script": [text("q")]},
    "think only": {"script": [Reading(reasoning="hmm"), text("b <DONE>")]},
    "direct then user": {"script": [calls("d")], "says": ["u"]},
}


@pytest.mark.parametrize("case", GOLDEN)
def test_the_loop_does_what_the_reference_does(case: str) -> None:
    assert play(**CASES[case]).summary() == GOLDEN[case]


def test_after_thoughts_alone_the_agent_is_asked_again_also_by_default() -> None:
    played = play(**CASES["think only"], limits=Limits())
    assert played.summary() == GOLDEN["think only"] and played.player.heard == [[], []]


@pytest.mark.parametrize("limits", [{"actions": 3}, {"tokens": 15}])
@pytest.mark.parametrize("empty", ["fail", "ask_user"])
def test_an_agent_that_thinks_for_ever_reaches_our_limits(empty: Any, limits: dict[str, int]) -> None:
    played = play([Reading(reasoning="hmm")] * 9, limits=Limits(empty_completion=empty, **limits))
    assert (played.attempt.turns, played.attempt.passed) == (3, False)
    assert played.attempt.finish_reason == f"{next(iter(limits)).removesuffix('s')}_limit"


@pytest.mark.parametrize("empty", ["fail", "ask_user"])
@pytest.mark.parametrize(
    ("script", "options", "finish"),
    [
        ([calls("a", say="bye <DONE>"), Reading()], {}, "done"),
        ([calls("a", say="bye <DONE>"), Reading()], {"max_agent_sim_turns": 2}, "done"),
        ([calls("a", say="bye <DONE>")], {"max_agent_sim_turns": 1}, "done"),
        ([calls("a", say="bye <DONE>"), Reading(reasoning="hmm"), Reading()], {}, "done"),
        ([calls("a", say="bye <DONE>"), calls("a"), Reading()], {}, "done"),
        ([calls("a", say="bye <DONE>"), text("no"), text("b <DONE>")], {"user_context": None}, "no_user_llm"),
        ([calls("a", say="bye <DONE>"), text("no")], {"max_agent_sim_turns": 3}, "agent_limit"),
        ([calls("d", say="bye <DONE>")], {"max_agent_sim_turns": 3}, "agent_limit"),
        ([calls("a", "end", say="bye <DONE>")], {}, "end_turn_tool"),
    ],
)
def test_the_last_visible_text_decides_whether_the_agent_is_done(
    script: list[Reading], options: dict[str, Any], finish: str, empty: Any
) -> None:
    assert play(script, limits=Limits(empty_completion=empty), **options).attempt.finish_reason == finish


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_a_direct_answer_is_an_action(limit: int) -> None:
    played = play([calls("d", "e"), calls("a"), text("<DONE>")], max_agent_sim_turns=limit)
    assert played.backend.executed == (["d", "e"] if limit < 4 else ["d", "e", "a"])
    assert played.attempt.finish_reason == "agent_limit"


def test_a_direct_answer_counts_for_our_limit_too() -> None:
    assert play([calls("d"), text("<DONE>")], limits=Limits(actions=2)).attempt.finish_reason == "action_limit"


@pytest.mark.parametrize(
    ("case", "end"),
    [
        ("user error", "user[I don't know.]"),
        ("direct then user", "assistant:direct[D:d]"),
    ],
)
def test_by_default_a_completion_without_text_and_calls_is_the_agents_failure(case: str, end: str) -> None:
    played = play(**CASES[case], limits=Limits())
    assert (played.attempt.finish_reason, played.attempt.passed) == ("agent_error", False)
    assert played.transcript().endswith(end)
    assert not played.examiner.contexts


def test_every_direct_answer_of_a_batch_is_forwarded_and_the_user_sees_them() -> None:
    played = play([calls("d", "a", "e"), text("ok?"), text("<DONE>")], ["yes"])
    assert played.transcript() == (
        "system[S] user[Q] call(d,a,e) resp(d) resp(a) resp(e) assistant:direct[D:d] assistant:direct[E:e] "
        "assistant[ok?] user[yes] assistant[<DONE>]"
    )
    assert played.examiner.contexts[0].tool_direct_responses == ["D:d", "E:e"]
    assert [m.content for m in played.customer.seen[0][1]] == ["Q", "D:d", "E:e", "ok?"]


@pytest.mark.parametrize("template", ["{w}", "{v.x.y}", "{0}", "{v", "{v:d}"])
def test_a_direct_answer_that_cannot_be_made_is_an_error_that_the_agent_is_told(template: str) -> None:
    tools = (ToolOverride("d", direct_response=template),)
    played = play([calls("d"), text("<DONE>")], scenario=replace(TASK.scenario, tools=tools))
    said = "Error: the direct response could not be made from the tool's answer"
    (context,) = played.examiner.contexts
    assert context.tool_direct_responses == [] and context.tool_calls[0]["tool_response"]["content"] == said
    assert [m.content for m in played.player.heard[1]] == [said]


def test_a_call_that_could_not_be_read_has_no_direct_answer() -> None:
    played = play([calls("d", error="Error: no JSON"), text("<DONE>")])
    (context,) = played.examiner.contexts
    assert context.tool_direct_responses == [] and [m.content for m in played.player.heard[1]] == ["Error: no JSON"]


def test_every_executed_call_is_recorded_when_the_agents_limit_falls_inside_a_batch() -> None:
    played = play([calls("a", "d", "a"), text("too late")], max_agent_sim_turns=1)
    assert played.summary() == (
        "agent_limit | executed=['a', 'd', 'a'] | tool_calls=['a', 'd', 'a'] | response='' | "
        "system[S] user[Q] call(a,d,a) resp(a) resp(d) resp(a) assistant:direct[D:d]"
    )
    assert played.attempt.passed is True


def test_the_agents_limit_also_falls_between_a_text_and_its_calls() -> None:
    assert play([calls("a", say="wait"), text("too late")], max_agent_sim_turns=1).summary() == (
        "agent_limit | executed=[] | tool_calls=[] | response='wait' | system[S] user[Q] assistant[wait]"
    )


@pytest.mark.parametrize(("may_end", "asked"), [(False, 2), (True, 3)])
def test_a_user_that_may_end_has_one_turn_more(may_end: bool, asked: int) -> None:
    played = play([text("q")] * 9, ["ok"] * 9, may_end=may_end, max_user_sim_turns=2)
    assert (played.attempt.finish_reason, len(played.customer.seen)) == ("user_limit", asked)


def test_an_unknown_tool_and_an_unreadable_call_are_told_to_the_agent() -> None:
    unreadable = calls("a", error="Error: arguments must be an object")
    played = play([calls("nope"), unreadable, text("<DONE>")])
    assert played.backend.executed == []
    assert [[m.content for m in new] for new in played.player.heard] == [
        [],
        ["Error: function nope does not exist"],
        ["Error: arguments must be an object"],
    ]
    recorded = played.examiner.contexts[0].tool_calls
    assert [c["tool_call"]["metadata"] for c in recorded] == [{}, {"error": "Error: arguments must be an object"}]
    assert played.attempt.passed is True and played.attempt.tool_calls == 2


def test_calls_get_ids_that_are_unique_in_the_conversation_and_so_do_their_answers() -> None:
    played = play([calls("a", "a"), calls("a", "d"), text("<DONE>")])
    messages = played.attempt.trajectory["messages"]
    called = [call["id"] for m in messages if m["T"] == "ParallelToolCall" for call in m["tool_calls"]]
    answered = [m["id"] for m in messages if m["T"] == "ToolResponse"]
    heard = [m.call_id for new in played.player.heard for m in new]
    assert called == answered == heard and len(set(called)) == 4


def test_the_agent_hears_each_message_of_others_once_and_the_user_only_what_is_visible() -> None:
    script = [Reading("which?", reasoning="hmm"), calls("a", say="wait"), text("more?"), text("bye <DONE>")]
    played = play(script, ["one", "two"], bot_instructions="B")
    (opening, tools, seed) = played.player.opened[0]
    assert [(m.role, m.content) for m in opening] == [("system", "S"), ("system", "B"), ("user", "Q")]
    assert (tools, seed) == (["end", "a", "d", "e"], 11)
    assert [[(m.role, m.content) for m in new] for new in played.player.heard] == [
        [],
        [("user", "one")],
        [("tool", '{"v": "a"}')],
        [("user", "two")],
    ]
    assert [[m.content for m in visible] for _, visible, _ in played.customer.seen] == [
        ["Q", "which?"],
        ["Q", "which?", "one", "wait", "more?"],
    ]
    assert [(context, seed) for context, _, seed in played.customer.seen] == [("K", 12), ("K", 13)]


def test_the_users_seed_stays_within_31_bits() -> None:
    played = play([text("q"), text("<DONE>")], ["a"], seed=2**31 - 1)
    assert [seed for *_, seed in played.customer.seen] == [0]


def test_a_user_that_may_not_end_is_answered() -> None:
    played = play([text("q"), text("b <DONE>")], ["no <DONE>"])
    assert (played.attempt.finish_reason, played.attempt.turns) == ("done", 2)


def test_without_a_user_the_first_question_ends_the_conversation() -> None:
    played = play([text("q")], nobody=True)
    assert (played.attempt.finish_reason, played.attempt.passed) == ("no_user_llm", True)


def test_the_test_sees_the_end_of_the_attempt_and_the_row_says_what_it_cost() -> None:
    played = play([calls("a"), text("ok <DONE>")], verdict=Verdict(False, 0.5, line=3, message="half"))
    done, (context,) = played.attempt, played.examiner.contexts
    assert played.backend.asked_for == (TASK.server_config(), TASK.scenario.tools)
    assert context.session_id == "session-7"
    assert (context.effects, context.init_result) == ({"shop": {"stock": 2}}, {"shop": {"id": 7}})
    assert (done.uid, done.attempt, done.domain) == ("t.py:test_1", 3, "shop")
    assert (done.passed, done.reward, done.system_error) == (False, 0.5, None)
    assert (done.turns, done.tool_calls, done.usage) == (2, 1, Usage(prompt_tokens=20, completion_tokens=10))
    assert set(done.seconds) == {"start", "agent", "tools", "grading", "total"}
    kept = json.loads(json.dumps(done.trajectory))
    assert (kept["effects"], kept["verdict"]["message"]) == ({"shop": {"stock": 2}}, "half")
    assert kept["session_id"] == context.session_id


def test_an_attempt_that_is_not_to_be_graded_has_failed_and_keeps_its_effects() -> None:
    played = play([text("<DONE>")], grade=False)
    assert (played.attempt.passed, played.attempt.trajectory["effects"]) == (False, {"shop": {"stock": 2}})
    assert not played.examiner.contexts


async def out_of_context() -> None:
    raise OutOfContext("64 tokens, and the context holds 64")


async def for_ever() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("finish", "limits", "options"),
    [
        ("action_limit", {"actions": 2}, {"script": [calls("a")] * 9}),
        ("action_limit", {"actions": 2}, {"script": [text("q")] * 9}),
        ("action_limit", {"actions": 2}, {"script": [calls("a", say="wait")] * 9}),
        ("token_limit", {"tokens": 10}, {"script": [calls("a")] * 9}),
        ("token_limit", {"tokens": 10}, {"script": [text("q")] * 9}),
        ("token_limit", {}, {"script": [], "hook": out_of_context}),
        ("time_limit", {"generation_seconds": 0.01}, {"script": [], "hook": for_ever}),
    ],
)
def test_our_own_limits_are_failures_and_are_not_graded(
    finish: str, limits: dict[str, Any], options: dict[str, Any]
) -> None:
    played = play(**options, limits=Limits(**limits))
    done = played.attempt
    assert (done.finish_reason, done.passed, done.reward, done.system_error) == (finish, False, 0.0, None)
    assert done.turns <= 2 and finish in done.trajectory["verdict"]["message"]
    assert not played.examiner.contexts


@pytest.mark.parametrize("limits", [{"actions": 1}, {"tokens": 5}])
def test_an_agent_that_is_done_with_its_last_action_is_graded(limits: dict[str, int]) -> None:
    played = play([text("ok <DONE>")], limits=Limits(**limits))
    assert (played.attempt.finish_reason, played.attempt.passed) == ("done", True)


BROKEN = WorldError("broken", "it broke")
SCRIPT = [calls("a", "d"), text("q"), text("b <DONE>")]


async def broken() -> None:
    raise BROKEN


@pytest.mark.parametrize(
    ("options", "transcript"),
    [
        ({"faults": {"start": BROKEN}}, ""),
        ({"hook": broken}, "system[S] user[Q]"),
        ({"faults": {"call 2": BROKEN}}, "system[S] user[Q] call(a,d) resp(a)"),
        (
            {"faults": {"user": BROKEN}},
            "system[S] user[Q] call(a,d) resp(a) resp(d) assistant:direct[D:d] assistant[q]",
        ),
        ({"faults": {"effects": BROKEN}}, None),
        ({"verdict": Verdict(None, 0.0, BROKEN, message="it broke")}, None),
    ],
    ids=["session start", "policy", "tool call", "user", "effects", "judge"],
)
def test_what_the_world_does_is_a_system_error_and_never_a_verdict(
    options: dict[str, Any], transcript: str | None
) -> None:
    played = play(SCRIPT, **options)
    done = played.attempt
    assert (done.passed, done.reward, done.finish_reason) == (None, 0.0, "system_error")
    assert done.system_error is not None and done.system_error.kind == "broken"
    assert transcript is None or played.transcript() == transcript
    assert done.seconds["total"] >= 0 and json.dumps(done.trajectory)


def test_a_tool_that_agent_and_server_both_offer_is_a_system_error() -> None:
    agent = replace(TASK.agent, builtin_tools=(ToolDef("a", "mine", OBJECT),))
    done = play(SCRIPT, agent=agent).attempt
    assert done.system_error is not None and done.system_error.kind == "duplicate_tool"


def test_a_judge_that_fails_inside_a_real_test_is_a_system_error() -> None:
    class Silent:
        async def ask(self, system: str, user: str) -> str:
            raise BROKEN

    code = "def test(x, judge):\n    assert judge.yesno('Polite?')\n__tb_test_fn = test\n"
    backend = Backend({})

    async def go() -> Attempt:
        async with open_grader(SandboxConfig(name="x", kind="prefork")) as grader:
            world = World(backend, grader, None, Silent())  # type: ignore[arg-type]
            task = replace(TASK, test_code=code)
            policy = ScriptedPolicy([text("<DONE>")])
            return await run_attempt(task, attempt=0, seed=1, policy=policy, world=world, limits=Limits())

    done = asyncio.run(go())
    assert (done.passed, done.finish_reason) == (None, "system_error")
    assert done.system_error is not None and done.system_error.message == "it broke"
    assert backend.open == 0


async def refused() -> None:
    raise UserError("the key is refused")


@pytest.mark.parametrize(
    "options",
    [
        {"faults": {"start": UserError("no such server")}},
        {"hook": refused},
        {"faults": {"user": UserError("the key is refused")}},
    ],
    ids=["session start", "policy", "user"],
)
def test_what_the_user_can_fix_is_raised_and_everything_is_closed(options: dict[str, Any]) -> None:
    assert isinstance(play(SCRIPT, **options).raised, UserError)


def test_an_attempt_that_is_cancelled_closes_everything() -> None:
    assert isinstance(play([], hook=for_ever, cancel=True).raised, asyncio.CancelledError)


def test_an_error_of_our_own_is_not_hidden_and_closes_everything() -> None:
    assert isinstance(play(SCRIPT, faults={"call 1": KeyError("bug")}).raised, KeyError)
