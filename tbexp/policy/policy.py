"""What a policy is to the rooms above: something that opens a conversation and acts in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tbexp.interpret.messages import Message, Reading, ToolSpec

MOST_TOKENS = 2**40  # no completion has more
Finish = Literal["stop", "length"]


class OutOfContext(Exception):
    """The conversation no longer fits into the model's context: the agent's failure (finish reason `token_limit`)."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or more completions. Cached ones are part of the prompt, reasoning ones of the completion."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0

    @staticmethod
    def told(*counts: object) -> Usage:
        """What somebody else says, in the order of the fields; None and whatever is no whole number is 0. Some servers
        count reasoning beside the completion: where it is more than that, it is added.

        ValueError: it cannot be, for a count is negative or more tokens are cached than the prompt has.
        """
        prompt, cached, completion, reasoning = (value if type(value) is int else 0 for value in counts)
        if reasoning > completion >= 0:
            completion += reasoning
        if not (0 <= cached <= prompt <= MOST_TOKENS and 0 <= reasoning <= completion <= MOST_TOKENS):
            names = ("prompt", "cached", "completion", "reasoning")
            said = zip((prompt, cached, completion, reasoning), names, strict=True)
            raise ValueError(", ".join(f"{value} {name} tokens" for value, name in said))
        return Usage(prompt, cached, completion, reasoning)

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.completion_tokens + other.completion_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


@dataclass(frozen=True, slots=True)
class Completion:
    """One output of a policy: what it says, why it ended, what it cost; `raw` is the text or JSON as it came.

    output: what was read, where it was read here and not by a server, for `stages=[parity]`: output (without its end
    token), format, thinking_open.
    """

    reading: Reading
    finish: Finish
    usage: Usage
    raw: str
    seconds: float
    output: Mapping[str, Any] | None = None


class PolicySession(Protocol):
    """One conversation. After the first `act`, `new` are the tool answers and user messages since the last one."""

    async def act(self, new: Sequence[Message]) -> Completion:
        """The next completion. Raises OutOfContext, WorldError (an endpoint failed), UserError (it refused the key)."""
        ...

    async def close(self) -> None: ...


class Policy(Protocol):
    """name: stands in rows and logs."""

    name: str

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, seed: int) -> PolicySession: ...

    async def close(self) -> None: ...
