"""What passes between agent, tools and user: the values every room above this one speaks in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the agent sees it; `input_schema` is a JSON schema of an object."""

    name: str
    description: str
    input_schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the agent asked for. `error` says why it could not be read; `arguments` is then empty."""

    name: str
    arguments: Mapping[str, Any]
    id: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `name` and `call_id` belong to tool answers, `calls` and `reasoning` to the assistant."""

    role: Role
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    name: str | None = None
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What one output of the model says: reasoning (None: none), visible text ("" : none), and calls in order."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None

    def message(self) -> Message:
        """The assistant message that this reading is."""
        return Message("assistant", self.text, self.calls, self.reasoning)
