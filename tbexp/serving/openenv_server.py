"""Tasks as an OpenEnv environment: reset and step over the WebSocket of the package openenv.

Decided here: the actions and observations, which have the names and fields that OpenEnv's thinkingbox_env gives them,
and who is told what: an observation holds what the agent may see, the last one also the verdict, and messages, effects
and the check's words only with serve.trajectories. Left to others: the attempt itself (outside.py), and sockets,
sessions and their number (openenv).

    reset(test_uid=UID | split=NAME, index=N, attempt=0, seed=null)
        a task; without one the seed draws it. attempt: decides the seed where none is given, as a campaign's does.
        One that is refused (no such task, an unknown field, a wrong type) says so; an episode under way goes on, so
        `done` is false then
    step({"type": "list_tools"})
    step({"type": "call_tool", "tool_name": NAME, "arguments": {}, "call_id": null})
    step({"type": "call_tool", "parallel_tool_calls": [{"name", "arguments", "call_id", "parse_error"}]})
    step({"type": "submit_message", "content": TEXT, "terminal_tool_calls": [...]})
    step({"type": "give_up", "reason": "token_limit" | "time_limit"})
        ends the attempt as the agent's failure: its context or its time is used up

`content` beside calls is said with them; `reasoning` is kept and shown to nobody. `metadata.usage` may hold the tokens
that the action took (prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens), which count for policy.limits.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, ConcurrencyConfig, EnvironmentMetadata, Observation, State
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

import tbexp
from tbexp.config.nearest import did_you_mean, nearest
from tbexp.config.schema import Limits
from tbexp.episode import Attempt, World
from tbexp.errors import UserError, WorldFailure
from tbexp.interpret.messages import ToolSpec
from tbexp.interpret.reading import read_chat_message
from tbexp.policy import Completion, OutOfContext, Usage
from tbexp.policy.chat import wire_message
from tbexp.serving.outside import Event, OutsideAttempt, Told
from tbexp.tasks import Task, is_benchmark

NAME = "tbexp"
STEP_S = 900.0  # more than a step takes when the user's and the judge's endpoints fail and are tried again
SPLITS = {"candidates": "train", "held_out": "test"}  # and the type that OpenEnv knows them by


@dataclass(frozen=True, slots=True)
class Offer:
    """What is offered. tasks: by split. seed_of: the seed of a task's attempt, by uid and number."""

    tasks: Mapping[str, Sequence[Task]]
    world: World
    limits: Limits
    seed_of: Callable[[str, int], int]
    trajectories: bool = False


class Asked(BaseModel):
    """What a reset asks for."""

    model_config = ConfigDict(extra="forbid")

    seed: StrictInt | None = Field(None, ge=0)
    episode_id: StrictStr | None = None
    test_uid: StrictStr | None = None
    task_uid: StrictStr | None = None
    split: StrictStr | None = None
    index: StrictInt | None = None
    attempt: StrictInt = Field(0, ge=0)
    agent: Any = None  # left unread, as `config` is: other environments know them
    config: Any = None

    @property
    def uid(self) -> str | None:
        return self.task_uid if self.test_uid is None else self.test_uid


class Call(BaseModel):
    name: str
    arguments: Any = Field(default_factory=dict)
    call_id: str | None = None
    parse_error: str | None = None  # the client could not read its model's call: the agent is told this


class TaskAction(Action):  # type: ignore[misc]
    type: Literal["list_tools", "call_tool", "submit_message", "give_up"]
    tool_name: str | None = None
    arguments: Any = None
    call_id: str | None = None
    parallel_tool_calls: list[Call] | None = None
    content: str | None = None
    reasoning: str | None = None
    terminal_tool_calls: list[Call] = Field(default_factory=list)
    tool_calls_before_content: bool = False  # of the same completion: their order makes no difference here
    reason: Literal["token_limit", "time_limit"] | None = None
    _refused: str | None = PrivateAttr(None)

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, told: Any, read: ModelWrapValidatorHandler[TaskAction]) -> TaskAction:
        """openenv's answer to what it cannot read does not say why, so it comes as an action that a step refuses."""
        try:
            return read(told)
        except ValidationError as error:
            action: TaskAction = cls.model_construct()
            action._refused = _reasons(error, cls)
            return action


class TaskObservation(Observation):  # type: ignore[misc]
    """kind: reset, tools, tool, tool_batch, user, terminal, error. A field that a kind does not have is null."""

    kind: str
    task_uid: str | None = None
    task: str | None = None  # the query
    system_instructions: str | None = None
    bot_instructions: str | None = None
    tools: list[dict[str, Any]] | None = None  # name, description, input_schema
    messages: list[dict[str, Any]] | None = None  # what the agent starts from, as chat endpoints take them
    seed: int | None = None
    call_id: str | None = None
    tool_result: str | None = None
    tool_error: str | None = None  # tool_not_found, invalid_args
    tool_results: list[dict[str, Any]] | None = None  # name, call_id, result, error
    user_message: str | None = None
    finish_reason: str | None = None
    reward_type: Literal["pass", "fail", "system_error"] | None = None
    system_error: dict[str, str] | None = None  # kind, message
    test_summary: dict[str, Any] | None = None  # passed, graded, is_system_error
    error: str | None = None
    steps_taken: int = 0
    attempt: dict[str, Any] | None = None  # with serve.trajectories, at the end


class TaskState(State):  # type: ignore[misc]
    task_uid: str | None = None
    status: Literal["idle", "active", "done", "closed", "error"] = "idle"
    system_error: dict[str, str] | None = None


class TaskEnvironment(Environment):  # type: ignore[misc]
    """One connection's episodes, one after another."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, offer: Offer, loop: asyncio.AbstractEventLoop):
        super().__init__()
        self._offer, self._loop = offer, loop
        self._attempt: OutsideAttempt | None = None
        self._last: TaskObservation | None = None  # of an episode that is over: later steps get it again
        self._tools: tuple[ToolSpec, ...] = ()
        self._asked: list[Call] = []
        self._single = False
        self._state = TaskState()

    # -- tasks, as OpenEnv's task interface has them

    def list_splits(self) -> list[dict[str, str]]:
        return [{"name": name, "type": SPLITS[name]} for name in self._offer.tasks]

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        return [self.get_task(split, index) for index in range(self.num_tasks(split))]

    def num_tasks(self, split: str) -> int:
        return len(self._offer.tasks.get(split, ()))

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        if not 0 <= index < self.num_tasks(split):
            raise IndexError(index)
        task = self._offer.tasks[split][index]
        return {"id": task.uid, "index": index, "domain": task.domain, "evaluation_only": is_benchmark(task)}

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        return self.list_tasks(split)[start:stop]

    def get_metadata(self) -> EnvironmentMetadata:
        tasks = ", ".join(f"{len(tasks)} {split}" for split, tasks in self._offer.tasks.items())
        text = f"Stateful tasks with tools, a simulated user, and a check of the final state: {tasks}"
        return EnvironmentMetadata(name=NAME, description=text, version=tbexp.__version__)

    # -- episodes

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> TaskObservation:
        raise NotImplementedError("episodes are asynchronous")

    def step(self, action: TaskAction, timeout_s: float | None = None, **kwargs: Any) -> TaskObservation:
        raise NotImplementedError("episodes are asynchronous")

    async def reset_async(self, seed: Any = None, episode_id: Any = None, **others: Any) -> TaskObservation:
        self._not_closed()
        chosen = self._chosen({"seed": seed, "episode_id": episode_id, **others})
        if isinstance(chosen, str):
            goes_on = self._state.status == "active"
            if goes_on:
                chosen = f"{chosen}; the episode at {self._state.task_uid} goes on"
            return TaskObservation(kind="error", error=chosen, finish_reason="reset_error", done=not goes_on)
        asked, task = chosen
        await self._end()
        attempt = asked.attempt
        seed = self._offer.seed_of(task.uid, attempt) if asked.seed is None else asked.seed
        self._state = TaskState(episode_id=asked.episode_id, task_uid=task.uid, status="active")
        self._task = task
        self._attempt = OutsideAttempt(
            task, attempt=attempt, seed=seed, world=self._offer.world, limits=self._offer.limits
        )
        observation = await self._observed(self._attempt.next())
        if observation.kind == "reset":
            observation.seed = seed
        return observation

    def _chosen(self, told: Mapping[str, Any]) -> tuple[Asked, Task] | str:
        """What is asked for and its task, or why a reset is refused."""
        try:
            asked = Asked.model_validate(told)
        except ValidationError as error:
            return _reasons(error, Asked)
        task = self._task_of(asked)
        return task if isinstance(task, str) else (asked, task)

    def _task_of(self, asked: Asked) -> Task | str:
        """The task, or why there is none."""
        tasks = {split: list(tasks) for split, tasks in self._offer.tasks.items()}
        every = [task for part in tasks.values() for task in part]
        uid, split, index = asked.uid, asked.split, asked.index
        if split is not None:
            if split not in tasks:
                return f"there is no split {split}: {', '.join(tasks)}"
            every = tasks[split]
        if uid is not None:
            found = [task for task in every if task.uid == uid]
            return found[0] if found else f"there is no task {uid} among {len(every)}"
        if index is not None:
            return every[index] if 0 <= index < len(every) else f"there is no task {index} among {len(every)}"
        return random.Random(asked.seed).choice(every) if every else "there are no tasks"

    async def step_async(self, action: TaskAction, timeout_s: float | None = None, **others: Any) -> TaskObservation:
        self._not_closed()
        if self._last is not None:
            return self._last
        if self._attempt is None:
            return TaskObservation(kind="error", error=action._refused or "reset comes first")
        if action._refused is None and action.type == "list_tools":
            return self._stamped(TaskObservation(kind="tools", tools=[_tool(tool) for tool in self._tools]))
        if wrong := action._refused or _wrong(action):
            return self._stamped(TaskObservation(kind="error", error=wrong))
        self._state.step_count += 1
        if action.type == "give_up":
            gave_up = (
                TimeoutError() if action.reason == "time_limit" else OutOfContext("the agent's context is used up")
            )
            return await self._observed(self._attempt.answer(gave_up))
        self._asked, self._single = _calls(action), action.tool_name is not None
        return await self._observed(self._attempt.answer(_completion(action, self._asked, self._tools)))

    async def _observed(self, coming: Any) -> TaskObservation:
        try:
            event: Event = await coming
        except (UserError, WorldFailure) as error:
            told = {"kind": type(error).__name__, "message": str(error)}
            return self._over(_failed(told, "error", error=str(error)), "error")
        if isinstance(event, Attempt):
            return self._over(self._terminal(event), "error" if event.system_error else "done")
        return self._stamped(self._told(event))

    def _told(self, told: Told) -> TaskObservation:
        if told.tools is not None:
            self._tools, task = told.tools, self._task
            return TaskObservation(
                kind="reset",
                task=next((m.content for m in reversed(told.messages) if m.role == "user"), task.query),
                system_instructions=task.agent.system_instructions,
                bot_instructions=task.bot_instructions or task.scenario.bot_instructions,
                tools=[_tool(tool) for tool in self._tools],
                messages=[wire_message(message) for message in told.messages],
                metadata={"domain": task.domain, "scenario": task.scenario.name, "evaluation_only": is_benchmark(task)},
            )
        answers = [message for message in told.messages if message.role == "tool"]
        said = [message.content for message in told.messages if message.role == "user"]
        results = [
            {"name": call.name, "call_id": call.call_id, "result": answer.content, "error": self._error_of(call)}
            for call, answer in zip(self._asked, answers, strict=False)
        ]
        user = "\n\n".join(said) if said else None
        if not results:
            return TaskObservation(kind="user", user_message=user)
        if self._single:
            first = results[0]
            return TaskObservation(
                kind="tool", call_id=first["call_id"], tool_result=first["result"], tool_error=first["error"]
            )
        return TaskObservation(kind="tool_batch", tool_results=results, user_message=user)

    def _error_of(self, call: Call) -> str | None:
        if call.parse_error is not None or not isinstance(call.arguments, dict):
            return "invalid_args"
        return None if call.name in {tool.name for tool in self._tools} else "tool_not_found"

    def _terminal(self, done: Attempt) -> TaskObservation:
        counts = {
            "turns": done.turns,
            "tool_calls": done.tool_calls,
            "domain": done.domain,
            "seconds": done.seconds,
            "others": {role: asdict(used) for role, used in done.others.items()},
            "judged": done.judged,
        }
        if done.system_error is not None:
            told = {"kind": done.system_error.kind, "message": done.system_error.message}
            observation = _failed(told, "terminal")
        else:
            summary = {"passed": done.passed, "graded": bool(self._task.test_code.strip()), "is_system_error": False}
            observation = TaskObservation(
                kind="terminal",
                done=True,
                reward=done.reward,
                reward_type="pass" if done.passed else "fail",
                finish_reason=done.finish_reason,
                test_summary=summary,
            )
        observation.metadata = counts
        if self._offer.trajectories:
            observation.attempt = done.trajectory
        return observation

    def _stamped(self, observation: TaskObservation) -> TaskObservation:
        observation.task_uid, observation.steps_taken = self._state.task_uid, self._state.step_count
        return observation

    def _over(self, observation: TaskObservation, status: Literal["done", "error"]) -> TaskObservation:
        self._state.status, self._state.system_error = status, observation.system_error
        self._last = self._stamped(observation)
        return self._last

    @property
    def state(self) -> TaskState:
        return self._state

    async def _end(self) -> None:
        attempt, self._attempt, self._last = self._attempt, None, None
        if attempt is not None:
            await attempt.close()

    def _not_closed(self) -> None:
        """openenv frees the place of a session that was idle for too long, and leaves its connection open."""
        if self._state.status == "closed":
            raise RuntimeError("this session was idle for too long and has ended: connect again")

    def close(self) -> None:
        """Called by openenv from a thread of its own, or, of an environment made for one request, on the loop."""
        self._state.status = "closed"
        if self._attempt is None or self._loop.is_closed():
            return
        ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            ending.result()


def _reasons(error: ValidationError, of: type[BaseModel]) -> str:
    """Each field that is wrong, with its value and what it should be; of many the first."""
    wrong = error.errors()
    told = []
    for each in wrong[:5]:
        where = ".".join(map(str, each["loc"])) or "action"
        value = "" if each["type"] == "missing" else f"={each['input']!r:.100}"
        near = nearest(where, of.model_fields) if each["type"] == "extra_forbidden" else ()
        told.append(f"{where}{value}: {each['msg']}" + (f", {did_you_mean(near)}" if near else ""))
    more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    return "; ".join(told) + more


def _wrong(action: TaskAction) -> str | None:
    """What is wrong with an action; the episode stays where it is."""
    if action.type == "give_up":
        return None if action.reason else "give_up needs a reason: token_limit or time_limit"
    if action.type == "submit_message":
        said = action.content is not None or action.terminal_tool_calls
        return None if said else "submit_message needs content; an agent that said nothing submits an empty text"
    single, many = action.tool_name is not None, action.parallel_tool_calls is not None
    if single == many:
        return "call_tool takes either tool_name or parallel_tool_calls"
    if many and not action.parallel_tool_calls:
        return "parallel_tool_calls is empty"
    identities = [call.call_id for call in _calls(action) if call.call_id is not None]
    return None if len(set(identities)) == len(identities) else "call ids come twice"


def _calls(action: TaskAction) -> list[Call]:
    if action.type == "submit_message":
        return list(action.terminal_tool_calls)
    if action.tool_name is not None:
        arguments = {} if action.arguments is None else action.arguments
        return [Call(name=action.tool_name, arguments=arguments, call_id=action.call_id)]
    return list(action.parallel_tool_calls or ())


def _completion(action: TaskAction, calls: Sequence[Call], tools: Sequence[ToolSpec]) -> Completion:
    """What the agent did, read as an endpoint's message is."""
    message = {
        "content": action.content,
        "reasoning_content": action.reasoning,
        "tool_calls": [{"function": {"name": call.name, "arguments": call.arguments}} for call in calls],
    }
    reading = read_chat_message(message, tools)
    read = tuple(
        found if call.parse_error is None else replace(found, arguments={}, error=call.parse_error)
        for call, found in zip(calls, reading.calls, strict=True)
    )
    return Completion(replace(reading, calls=read), "stop", _usage(action.metadata.get("usage")), "", 0.0)


def _usage(told: Any) -> Usage:
    told = told if isinstance(told, Mapping) else {}
    names = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
    try:
        return Usage.told(*(told.get(name) for name in names))
    except ValueError:
        return Usage()  # a client's negative tokens would lift its limits


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": dict(tool.input_schema)}


def _failed(told: dict[str, str], kind: str, error: str | None = None) -> TaskObservation:
    """The world failed: a reward of 0 that is no verdict."""
    return TaskObservation(
        kind=kind,
        done=True,
        reward=0.0,
        reward_type="system_error",
        finish_reason="system_error",
        system_error=told,
        test_summary={"passed": None, "graded": False, "is_system_error": True},
        error=error,
    )


def openenv_app(offer: Offer, *, sessions: int) -> FastAPI:
    """The application. Called on the loop that serves it. sessions: episodes at once.

    A session in which nothing happens for `policy.limits.generation_seconds` and the time that a step may take is
    ended, and its place is free; its attempt was over by then, since the agent's time was.
    """
    loop = asyncio.get_running_loop()

    def tbexp_environment() -> TaskEnvironment:
        return TaskEnvironment(offer, loop)

    app = create_fastapi_app(
        tbexp_environment,
        TaskAction,
        TaskObservation,
        concurrency_config=ConcurrencyConfig(
            max_concurrent_envs=sessions, session_timeout=offer.limits.generation_seconds + STEP_S
        ),
        env_name=NAME,
        state_cls=TaskState,
        mode="simulation",
    )

    async def ready() -> JSONResponse:
        return JSONResponse({"ready": True, "tasks": {name: len(tasks) for name, tasks in offer.tasks.items()}})

    for path in ("/ready", "/readyz"):
        app.add_api_route(path, ready, methods=["GET"])
    return app
