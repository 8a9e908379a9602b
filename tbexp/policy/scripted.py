"""A policy that says what it is told to: recorded solutions and tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tbexp.interpret.messages import Message, Reading, ToolSpec
from tbexp.policy.policy import Completion, Usage

Script = Callable[[Sequence[Message], int], Sequence[Reading]]  # (opening messages, seed) -> what it says, in order


class ScriptedPolicy:
    """Says the readings of a script one after the other, then nothing."""

    name = "scripted"

    def __init__(self, script: Script | Sequence[Reading]):
        self._script: Script = script if callable(script) else lambda messages, seed: script

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, seed: int) -> ScriptedSession:
        return ScriptedSession(self._script(messages, seed))

    async def close(self) -> None:
        return None


class ScriptedSession:
    """heard: every message since the opening."""

    def __init__(self, readings: Sequence[Reading]):
        self._left = list(readings)
        self.heard: list[Message] = []

    async def act(self, new: Sequence[Message]) -> Completion:
        self.heard.extend(new)
        reading = self._left.pop(0) if self._left else Reading()
        return Completion(reading, "stop", Usage(), reading.text, 0.0)

    async def close(self) -> None:
        return None
