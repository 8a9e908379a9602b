"""A policy that plays recorded outputs: for tests, and for replaying golden solutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tbexp.interpret.messages import Message, Reading, ToolSpec
from tbexp.policy.kinds import Completion, Usage


class ScriptedPolicy:
    """choose: the outputs of a conversation, from its opening messages and its seed. Past their end it closes with
    `<DONE>`.
    """

    name = "scripted"

    def __init__(self, choose: Callable[[Sequence[Message], int], Sequence[Reading]]):
        self._choose = choose

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, seed: int) -> ScriptedSession:
        return ScriptedSession(list(self._choose(messages, seed)))

    async def close(self) -> None:
        return None


class ScriptedSession:
    def __init__(self, outputs: list[Reading]):
        self._outputs = outputs

    async def act(self, new: Sequence[Message]) -> Completion:
        reading = self._outputs.pop(0) if self._outputs else Reading(text="<DONE>")
        return Completion(reading=reading, usage=Usage(completion_tokens=1))

    async def close(self) -> None:
        return None
