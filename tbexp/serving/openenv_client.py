"""tbexp's own policy in an OpenEnv environment server: backend, simulated user and check are the server's.

Decided here: what of the server's observations is the agent's news, and whose fault a failure is. A server that does
not answer, or answers otherwise than `openenv_server` does, is the world's failure; what it says of the attempt at the
end is taken as it is. The client is the one of the package openenv.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

from tbexp.config.schema import Limits
from tbexp.episode import Attempt
from tbexp.errors import WorldError
from tbexp.interpret.messages import Message, ToolCall, ToolSpec
from tbexp.policy import Completion, OutOfContext, OwnTime, Policy, Usage

KIND = "environment"  # of system errors
FULL = "CAPACITY_REACHED"  # OpenEnv's word for it
WAIT_S = 0.5


async def attempt_at(
    url: str, uid: str, *, attempt: int, seed: int, policy: Policy, limits: Limits, timeout_s: float
) -> Attempt:
    """One attempt at the server's task `uid`. timeout_s: of one answer of the server. Raises UserError (the policy's
    endpoint refuses its key) and nothing for what agent or world do.
    """
    run = _Run(uid, attempt, seed, policy, limits)
    start = time.perf_counter()
    try:
        last = await run.play(url, timeout_s)
    except WorldError as problem:
        last = {"finish_reason": "system_error", "system_error": {"kind": problem.kind, "message": problem.message}}
    return run.attempt_of(last, time.perf_counter() - start)


class _Run:
    def __init__(self, uid: str, attempt: int, seed: int, policy: Policy, limits: Limits):
        self.uid, self.attempt, self.seed, self.policy = uid, attempt, seed, policy
        self.limits = limits
        self.own_time = OwnTime(limits.generation_seconds)
        self.usage, self.turns, self.calls, self.agent_s = Usage(), 0, 0, 0.0

    async def play(self, url: str, timeout_s: float) -> dict[str, Any]:
        """The last observation, with its reward."""
        client, result = await self._begun(url, timeout_s)
        try:
            if result.done:
                return _last(result)
            session = None
            try:
                opening = result.observation
                messages = [_message(each) for each in opening["messages"]]
                tools = [ToolSpec(t["name"], t["description"], t["input_schema"]) for t in opening["tools"]]
                session = self.policy.open(messages, tools, seed=self.seed)
                new: list[Message] = []
                while True:
                    action, calls = await self._act(session, new)
                    with _worlds_fault(url):
                        result = await client.step(action)
                    if result.done:
                        return _last(result)
                    new = _news(result.observation, calls)
            finally:
                if session is not None:
                    await session.close()
        except (KeyError, TypeError) as error:
            raise WorldError(KIND, f"{url} answers otherwise than a tbexp environment: {error!r}") from error
        finally:
            with suppress(Exception):
                await client.close()

    async def _begun(self, url: str, timeout_s: float) -> tuple[Any, Any]:
        """A connection, and what the reset on it gives. A server whose places are all taken is waited for, since each
        attempt there ends within its own limit.
        """
        from openenv.core.generic_client import GenericEnvClient

        deadline = time.monotonic() + self.limits.generation_seconds + timeout_s
        while True:
            client: Any = GenericEnvClient(base_url=url, message_timeout_s=timeout_s)
            try:
                with _worlds_fault(url):
                    await client.connect()
                    return client, await client.reset(test_uid=self.uid, attempt=self.attempt, seed=self.seed)
            except BaseException as error:
                with suppress(Exception):
                    await client.close()
                if not isinstance(error, WorldError) or FULL not in error.message:
                    raise
                if time.monotonic() > deadline:
                    told = f"{error.message}; set policy.concurrency at most to the server's serve.sessions"
                    raise WorldError(KIND, told) from None
            await asyncio.sleep(WAIT_S)

    async def _act(self, session: Any, new: Sequence[Message]) -> tuple[dict[str, Any], tuple[ToolCall, ...]]:
        """The policy's next action, and the calls in it."""
        begun = time.perf_counter()
        try:
            async with self.own_time.running():
                completion: Completion = await session.act(new)
        except OutOfContext:
            return {"type": "give_up", "reason": "token_limit"}, ()
        except TimeoutError:
            return {"type": "give_up", "reason": "time_limit"}, ()
        finally:
            self.agent_s += time.perf_counter() - begun
        self.usage, self.turns = self.usage + completion.usage, self.turns + 1
        if self.own_time.left < 0:
            return {"type": "give_up", "reason": "time_limit"}, ()
        reading = completion.reading
        self.calls += len(reading.calls)
        used = completion.usage
        action: dict[str, Any] = {
            "type": "call_tool" if reading.calls else "submit_message",
            "content": reading.text if reading.calls else reading.text or "",
            "reasoning": reading.reasoning,
            "metadata": {
                "usage": {
                    "prompt_tokens": used.prompt_tokens,
                    "cached_tokens": used.cached_tokens,
                    "completion_tokens": used.completion_tokens,
                    "reasoning_tokens": used.reasoning_tokens,
                }
            },
        }
        if reading.calls:
            # Numbered anew: a model may give one id to two calls.
            action["parallel_tool_calls"] = [
                {
                    "name": call.name,
                    "arguments": dict(call.arguments),
                    "call_id": str(number),
                    "parse_error": call.error,
                }
                for number, call in enumerate(reading.calls)
            ]
        return action, reading.calls

    def attempt_of(self, last: Mapping[str, Any], seconds: float) -> Attempt:
        counts = last.get("metadata") or {}
        error = last.get("system_error")
        passed = None if error else (last.get("test_summary") or {}).get("passed")
        if passed is None and not error:
            why = last.get("error")  # of a reset that was refused: no such task there, say
            error = {"kind": KIND, "message": f"the environment gives no verdict{f': {why}' if why else ''}"[:2000]}
        told = counts.get("seconds") or {}
        return Attempt(
            uid=self.uid,
            attempt=self.attempt,
            passed=passed,
            reward=0.0 if error else float(last.get("reward") or 0.0),
            finish_reason="system_error" if error else str(last.get("finish_reason")),
            turns=self.turns,
            tool_calls=int(counts.get("tool_calls", self.calls)),
            usage=self.usage,
            seconds={**told, "agent": round(self.agent_s, 4), "total": round(seconds, 4)},
            domain=str(counts.get("domain") or ""),
            system_error=WorldError(error["kind"], error["message"]) if error else None,
            others={role: Usage(**used) for role, used in (counts.get("others") or {}).items()},
            judged=counts.get("judged") is True,
            trajectory=dict(last.get("attempt") or {"uid": self.uid, "attempt": self.attempt, "messages": []}),
        )


@contextmanager
def _worlds_fault(url: str) -> Iterator[None]:
    """Whatever the client of openenv raises is the environment's failure."""
    try:
        yield
    except Exception as error:
        raise WorldError(KIND, f"{url}: {type(error).__name__}: {error}"[:2000]) from error


def _last(result: Any) -> dict[str, Any]:
    return {**result.observation, "reward": result.reward, "metadata": result.metadata or {}}


def _message(wire: Mapping[str, Any]) -> Message:
    """A message of the opening, which has the form that chat endpoints take."""
    calls = tuple(_call(call) for call in wire.get("tool_calls") or ())
    content = wire.get("content") or ""
    return Message(wire["role"], content, calls, call_id=wire.get("tool_call_id"), name=wire.get("name"))


def _call(wire: Mapping[str, Any]) -> ToolCall:
    function = wire["function"]
    return ToolCall(function["name"], json.loads(function["arguments"]), wire["id"])


def _news(observation: Mapping[str, Any], calls: Sequence[ToolCall]) -> list[Message]:
    """What the agent is told of a step."""
    kind = observation["kind"]
    if kind == "error":
        raise WorldError(KIND, f"the environment refuses a step: {observation.get('error')}")
    new = []
    for call, result in zip(calls, observation.get("tool_results") or (), strict=False):
        new.append(Message("tool", result["result"], name=call.name, call_id=call.id))
    if (said := observation.get("user_message")) is not None:
        new.append(Message("user", cast(str, said)))
    return new
