"""What every policy is to the episode: something that is opened on a conversation and then acts, turn by turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tbexp.interpret.messages import Message, Reading, ToolSpec


class OutOfContext(Exception):
    """The conversation no longer fits the model's context: the agent's failure, not the world's."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or more completions. prompt_tokens include cached ones, completion_tokens include reasoning."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.completion_tokens + other.completion_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


@dataclass(frozen=True, slots=True)
class Completion:
    """One output of the policy. finish `length`: it was cut off. raw: the text before it was read."""

    reading: Reading
    finish: Literal["stop", "length"] = "stop"
    usage: Usage = field(default_factory=Usage)
    raw: str = ""


class PolicySession(Protocol):
    """One conversation with a policy."""

    async def act(self, new: Sequence[Message]) -> Completion:
        """The next completion; `new` is what was said to the agent since the last one (nothing before the first).

        Raises OutOfContext, WorldError (the endpoint failed) and UserError (it refused the key).
        """
        ...

    async def close(self) -> None: ...


class Policy(Protocol):
    """Produces the agent's turns."""

    name: str

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, seed: int) -> PolicySession: ...

    async def close(self) -> None: ...
