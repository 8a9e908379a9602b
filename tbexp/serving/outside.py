"""An attempt whose agent is outside: somebody else says what the agent does, turn by turn.

Decided here: how an attempt is held between turns. It is the attempt of `episode` itself, with a policy that waits for
what it is told; so limits, simulated user and verdict are those of every other attempt. Left to others: how the
outside speaks (openenv_server.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from tbexp.config.schema import Limits
from tbexp.episode import Attempt, World, run_attempt
from tbexp.errors import UserError, WorldFailure
from tbexp.interpret.messages import Message, ToolSpec
from tbexp.policy import Completion, OutOfContext
from tbexp.tasks import Task


@dataclass(frozen=True, slots=True)
class Told:
    """What the agent is told before its next turn. tools: with the first alone."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] | None = None


GaveUp = OutOfContext | TimeoutError  # the agent cannot go on: its context, or its time, is used up
Event = Told | Attempt


class OutsideAttempt:
    """One attempt. `next` gives what the agent is told, or the attempt once it is over; `answer` its turn."""

    def __init__(self, task: Task, *, attempt: int, seed: int, world: World, limits: Limits):
        self._events: asyncio.Queue[Event | UserError | WorldFailure] = asyncio.Queue()
        self._answers: asyncio.Queue[Completion | GaveUp] = asyncio.Queue()
        policy = _Outside(self._events, self._answers)

        async def run() -> None:
            try:
                done: Event | UserError | WorldFailure = await run_attempt(
                    task, attempt=attempt, seed=seed, policy=policy, world=world, limits=limits
                )
            except (UserError, WorldFailure) as error:
                done = error
            self._events.put_nowait(done)

        self._running = asyncio.create_task(run())

    async def next(self) -> Event:
        """Raises UserError and WorldFailure, which end the attempt without a verdict."""
        coming = asyncio.ensure_future(self._events.get())
        try:
            await asyncio.wait({coming, self._running}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done() and self._events.empty():
                if self._running.cancelled():  # else whoever waits here would seem to be cancelled
                    raise RuntimeError("the attempt was closed before it was over")
                self._running.result()  # a defect of ours: raised here
            event = await coming
        finally:
            coming.cancel()
        if isinstance(event, UserError | WorldFailure):
            raise event
        return event

    async def answer(self, completion: Completion | GaveUp) -> Event:
        self._answers.put_nowait(completion)
        return await self.next()

    async def close(self) -> None:
        """Ends it with its backend, wherever it stands."""
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._running


class _Outside:
    """The policy that waits."""

    name = "outside"

    def __init__(
        self, events: asyncio.Queue[Event | UserError | WorldFailure], answers: asyncio.Queue[Completion | GaveUp]
    ):
        self._events, self._answers = events, answers

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, seed: int) -> _OutsideSession:
        return _OutsideSession(self._events, self._answers, Told(tuple(messages), tuple(tools)))

    async def close(self) -> None:
        return None


class _OutsideSession:
    def __init__(
        self,
        events: asyncio.Queue[Event | UserError | WorldFailure],
        answers: asyncio.Queue[Completion | GaveUp],
        first: Told,
    ):
        self._events, self._answers = events, answers
        self._first: Told | None = first

    async def act(self, new: Sequence[Message]) -> Completion:
        told, self._first = self._first or Told(tuple(new)), None
        self._events.put_nowait(told)
        answer = await self._answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        return None
