"""The loop itself, as thinkingbox-format.md section 6 has it.

Two kinds of limit. The task's own (`max_agent_sim_turns`, `max_user_sim_turns`) end the conversation, and the state
is graded as it stands. Ours (`policy.limits`) stop an agent that would go on for ever: the attempt has failed
whatever the state is, since a task that is right when nothing changes would otherwise reward endless talk.

Where the reference loop is known to be defective this one differs: every direct answer of a batch is forwarded, every
executed call is recorded when the limit falls inside a batch, arguments that are no object are told to the agent, and
an empty completion is the agent's failure (`policy.limits.empty_completion`). After one that holds thoughts alone the
agent is asked again, as there; so that it cannot think for ever, our limit of actions counts these too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tbexp.config.schema import Limits
from tbexp.episode.history import recorded_calls, told
from tbexp.episode.people import User
from tbexp.episode.record import Conversation
from tbexp.errors import Problem, UserError, WorldError
from tbexp.grading import Grader, Judge, TestContext, Verdict
from tbexp.interpret.messages import Message, ToolCall, ToolSpec
from tbexp.interpret.rendering import chat_tool
from tbexp.policy import Completion, OutOfContext, OwnTime, Policy, PolicySession, Usage, metered
from tbexp.sandbox import Sandbox, Session
from tbexp.tasks import Task, ToolDef, ToolOverride

DONE = "<DONE>"
NO_DIRECT_TEXT = "Error: the direct response could not be made from the tool's answer"
ROW_METADATA = ("scenario", "agent", "test_case_name")  # the file's path is this machine's
OWN_LIMITS = frozenset({"action_limit", "token_limit", "time_limit", "agent_error"})  # failures, not graded


@dataclass(frozen=True, slots=True)
class World:
    """What an attempt meets besides the policy. `user` None: nobody answers."""

    sandbox: Sandbox
    grader: Grader
    user: User | None
    judge: Judge | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One finished attempt.

    passed is None exactly if `system_error` is set. judged: the check asked the judge. seconds: by part (start, agent,
    user, tools, grading), and `total`. trajectory: what happened, as JSON: messages in the shapes of
    thinkingbox-format.md 6.1, effects, verdict.
    """

    uid: str
    attempt: int
    passed: bool | None
    reward: float
    finish_reason: str
    turns: int
    tool_calls: int
    usage: Usage
    seconds: dict[str, float]
    domain: str
    system_error: WorldError | None = None
    others: Mapping[str, Usage] = field(default_factory=dict)  # tokens of the endpoints of user and judge, by role
    judged: bool = False
    trajectory: dict[str, Any] = field(default_factory=dict)


class Clock:
    """Seconds by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Any:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


async def run_attempt(
    task: Task, *, attempt: int, seed: int, policy: Policy, world: World, limits: Limits, grade: bool = True
) -> Attempt:
    """One attempt with a fresh backend. Raises UserError (the user can fix it) and nothing for what agent or world
    do.
    """
    run = _Run(task, seed, policy, world, limits)
    start = time.perf_counter()
    verdict: Verdict | None = None
    error: WorldError | None = None
    finish, effects = "system_error", {}
    with metered() as spent:
        try:
            with run.clock.part("start"):
                opening = world.sandbox.session(task.server_config(), task.scenario.tools)
                session = await opening.__aenter__()
            try:
                finish = await run.converse(session)
                with run.clock.part("grading"):
                    effects = await session.effects()
                    verdict = await run.judge_state(session, finish, effects, graded=grade)
            finally:
                await opening.__aexit__(None, None, None)
        except WorldError as problem:
            error = problem
        except UserError as mistakes:
            of_task = f"{task.uid}, scenario {task.scenario.name}"
            raise UserError([replace(each, where=each.where or of_task) for each in mistakes.problems]) from None
    if verdict is not None:
        error = verdict.system_error
    if error is not None:
        finish = "system_error"
    run.clock.seconds["total"] = time.perf_counter() - start
    passed = None if error is not None or verdict is None else verdict.passed
    return Attempt(
        uid=task.uid,
        attempt=attempt,
        passed=passed,
        reward=verdict.reward if verdict is not None and error is None else 0.0,
        finish_reason=finish,
        turns=run.turns,
        tool_calls=len(run.talk.tool_calls),
        usage=run.usage,
        seconds={name: round(value, 4) for name, value in run.clock.seconds.items()},
        domain=task.domain,
        system_error=error,
        others={role: used for role, used in spent.items() if role != "policy"},
        judged=verdict is not None and verdict.judged,
        trajectory={
            "uid": task.uid,
            "attempt": attempt,
            "messages": run.talk.messages,
            "effects": effects,
            "init_result": run.init_result,
            "session_id": run.session_id,
            "verdict": None if verdict is None else _verdict_record(verdict),
            "metadata": run.metadata(),
            **run.recorded(),
            "seconds": {name: round(value, 4) for name, value in run.clock.seconds.items()},
        },
    )


class _Run:
    def __init__(self, task: Task, seed: int, policy: Policy, world: World, limits: Limits):
        self.task, self.seed, self.policy, self.world, self.limits = task, seed, policy, world, limits
        self.clock = Clock()
        self.own_time = OwnTime(limits.generation_seconds)
        self.talk = Conversation()
        self.usage = Usage()
        self.actions = self.turns = self.thoughts = 0  # thoughts: completions that hold nothing else
        self.pending: list[Message] = []
        self.replay_warnings: list[str] = []
        self.outputs: list[Mapping[str, Any]] = []
        self.tools: tuple[ToolSpec, ...] = ()
        self.init_result: dict[str, Any] = {}
        self.session_id = ""
        self.agent: PolicySession | None = None

    def metadata(self) -> dict[str, Any]:
        """What `tb infer` keeps of an attempt besides messages and verdict (thinkingbox-format.md, 8)."""
        kept = {name: self.task.metadata[name] for name in ROW_METADATA if name in self.task.metadata}
        return {**kept, **({"replay_warnings": self.replay_warnings} if self.replay_warnings else {})}

    def recorded(self) -> dict[str, Any]:
        """What `stages=[parity]` reads once more: the outputs, and the tools that gave their arguments types."""
        return {"outputs": self.outputs, "tools": [chat_tool(tool) for tool in self.tools]} if self.outputs else {}

    async def converse(self, session: Session) -> str:
        """The conversation up to its end; says why it ended."""
        self.tools = self._tools(session)
        self.init_result, self.session_id = session.init_result, session.id
        try:
            self.task = self.task.formatted(session.init_result)
        except ValueError as problem:
            raise UserError(
                Problem(str(problem), self.task.uid, "mend the task, or set tasks.format_query=false")
            ) from None
        for text in self.task.system_messages():
            self.hear(Message("system", text))
        if self.task.history:
            await self._replay(session, self.task.history)
        try:
            return await self._turns(session)
        except OutOfContext:
            return "token_limit"
        except _OutOfTime:
            return "time_limit"
        finally:
            if self.agent is not None:
                await self.agent.close()

    async def _replay(self, session: Session, history: Sequence[Mapping[str, Any]]) -> None:
        """The recorded conversation, told to the agent, and its calls made again: the backend is as it was then."""
        for message in history:
            self.talk.recorded(message)
        self.pending.extend(told(history))
        builtin = {tool.name for tool in self.task.agent.builtin_tools}
        with self.clock.part("start"):
            for call in recorded_calls(history):
                if call.error is not None or call.name in builtin:
                    continue
                failure = await session.replay(call.name, call.arguments)
                if failure:
                    self.replay_warnings.append(f"{call.name}: {failure}"[:2000])

    async def _turns(self, session: Session) -> str:
        turn = 0
        while True:
            if self.actions >= self.task.max_agent_sim_turns:
                return "agent_limit"
            if turn == 0:
                self.hear(Message("user", self.task.query))
            elif (end := await self._ask_user(turn)) is not None:
                return end
            if (end := await self._agent_turn(session)) is not None:
                return end
            turn += 1

    async def _ask_user(self, turn: int) -> str | None:
        user = self.world.user
        if user is None or not self.task.user_context:
            return "no_user_llm"
        if turn > self.task.max_user_sim_turns + (1 if user.may_end else 0):
            return "user_limit"
        with self.clock.part("user"):
            text = await user.reply(self.task.user_context, self.talk.visible(), seed=(self.seed + turn) % 2**31)
        ended = user.may_end and text.rstrip().endswith(DONE)
        self.hear(Message("user", text), simulated=True, done=ended)
        return "user_done" if ended else None

    def hear(self, message: Message, *, simulated: bool = False, done: bool = False) -> None:
        """Somebody other than the agent spoke; the agent is told with its next turn."""
        self.talk.text(message.role, message.content, simulated=simulated, done=done)
        self.pending.append(message)

    async def _agent_turn(self, session: Session) -> str | None:
        """Completions until the agent speaks to the user (None: the conversation goes on) or the attempt ends."""
        while True:
            completion = await self._complete()
            reading = completion.reading
            calls = tuple(self._numbered(reading.calls))
            spoken = reading.text.strip()
            if reading.reasoning:
                self.talk.think(reading.reasoning)
            if not spoken and not calls:
                if reading.reasoning:
                    self.thoughts += 1
                    if (limit := self._own_limit()) is not None:
                        return limit
                    continue
                if self.talk.done():  # it said so with the calls before
                    return "done"
                return "agent_error" if self.limits.empty_completion == "fail" else None
            if spoken:
                self.actions += 1
                self.talk.text("assistant", reading.text, done=spoken.endswith(DONE))
                if not calls:
                    return "done" if spoken.endswith(DONE) else self._own_limit()
                if self.actions >= self.task.max_agent_sim_turns:
                    return self._agent_limit()
            self.actions += 1
            self.talk.calls(calls, self._ends_turn)
            if any(self._ends_turn(call.name) for call in calls):
                for call in calls:
                    if self._ends_turn(call.name):
                        self.talk.end_call(call)
                return "end_turn_tool"
            await self._execute(session, calls)
            if self.actions >= self.task.max_agent_sim_turns:
                return self._agent_limit()
            if (limit := self._own_limit()) is not None:
                return limit

    async def _complete(self) -> Completion:
        with self.clock.part("agent"):
            new, self.pending = self.pending, []
            if self.agent is None:
                self.agent, new = self.policy.open(new, self.tools, seed=self.seed), []
            try:
                async with self.own_time.running():
                    completion = await self.agent.act(new)
            except TimeoutError:
                raise _OutOfTime from None
        if completion.output is not None:
            self.outputs.append(completion.output)
        self.usage = self.usage + completion.usage
        self.turns += 1
        if self.own_time.left < 0:
            raise _OutOfTime
        return completion

    def _agent_limit(self) -> str:
        """How the conversation ends where the task's limit falls into a turn of the agent."""
        return "done" if self.talk.done() else "agent_limit"

    def _own_limit(self) -> str | None:
        if self.actions + self.thoughts >= self.limits.actions:
            return "action_limit"
        if self.usage.completion_tokens >= self.limits.tokens:
            return "token_limit"
        return None

    async def _execute(self, session: Session, calls: Sequence[ToolCall]) -> None:
        direct: list[str] = []
        for call in calls:
            with self.clock.part("tools"):
                answer = await self._answer(session, call)
            if call.error is None and (template := self._direct(call.name)) is not None:
                text = _direct_text(template, answer)
                if text is None:
                    answer = NO_DIRECT_TEXT
                else:
                    direct.append(text)
            self.talk.response(call, answer)
            self.pending.append(Message("tool", answer, name=call.name, call_id=call.id))
        for text in direct:
            self.actions += 1
            self.talk.direct(text)

    async def _answer(self, session: Session, call: ToolCall) -> str:
        if call.error is not None:
            return call.error
        if call.name in session.tools:
            return await session.call(call.name, call.arguments)
        return f"Error: function {call.name} does not exist"

    async def judge_state(self, session: Session, finish: str, effects: dict[str, Any], *, graded: bool) -> Verdict:
        """The verdict on the state as it stands, while the session still lives."""
        if finish in OWN_LIMITS:
            return Verdict(False, 0.0, message=f"the attempt ended by {finish}")
        if not graded:
            return Verdict(False, 0.0, message="not graded")
        context = TestContext(
            response=self.talk.response_text(),
            tool_direct_responses=list(self.talk.direct_texts),
            effects=effects,
            tool_calls=list(self.talk.tool_calls),
            messages=list(self.talk.messages),
            init_result=session.init_result,
            session_id=session.id,
        )
        return await self.world.grader.grade(
            self.task.test_code, context, judge=self.world.judge, fixtures=self.task.fixtures, servers=session
        )

    def _tools(self, session: Session) -> tuple[ToolSpec, ...]:
        builtin = [ToolSpec(t.name, t.description, t.input_schema) for t in self.task.agent.builtin_tools]
        twice = {t.name for t in builtin} & set(session.tools)
        if twice:
            raise WorldError("duplicate_tool", f"both the agent and a server offer {', '.join(sorted(twice))}")
        return (*builtin, *session.tools.values())

    def _ends_turn(self, name: str) -> bool:
        return any(t.name == name and t.is_end_turn for t in self._declared())

    def _direct(self, name: str) -> str | None:
        return next((t.direct_response for t in self._declared() if t.name == name and t.direct_response), None)

    def _declared(self) -> tuple[ToolDef | ToolOverride, ...]:
        return (*self.task.agent.builtin_tools, *self.task.scenario.tools)

    def _numbered(self, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """Calls with ids that are unique in the conversation."""
        named = []
        for call in calls:
            number = len(self.talk.call_ids)
            while (name := f"call_{number}") in self.talk.call_ids:  # a recorded call may have it
                number += 1
            self.talk.call_ids.append(name)
            named.append(ToolCall(call.name, call.arguments, name, call.error))
        return named


class _OutOfTime(Exception):
    """The policy's own generation took longer than it may."""


def _direct_text(template: str, answer: str) -> str | None:
    """What a tool's answer tells the user; None where the template cannot be filled from it."""
    try:
        values = json.loads(answer)
        return template.format(**values)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def _verdict_record(verdict: Verdict) -> dict[str, Any]:
    error = verdict.system_error
    return {
        "passed": verdict.passed,
        "reward": verdict.reward,
        "system_error": None if error is None else {"kind": error.kind, "message": error.message},
        "line": verdict.line,
        "line_content": verdict.line_content,
        "message": verdict.message,
        "prints": verdict.prints,
        "metadata": verdict.metadata,
    }
