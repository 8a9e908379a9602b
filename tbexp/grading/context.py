"""What a test gets to see: standard library only, since the grading process loads this file by its path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Record(dict[str, Any]):
    """A JSON object whose keys can also be read as attributes, as tests do with messages and tool calls."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class MessageKind(type):
    """Makes `isinstance(message, Text)` say what `message.T == "Text"` does."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Mapping) and value.get("T") == cls.__name__


class _Message(metaclass=MessageKind):
    """Called, it makes a message of its kind: a Record, as all messages are."""

    def __new__(cls, **fields: Any) -> Any:
        return Record({"T": cls.__name__, "metadata": {}, **fields})


class Text(_Message): ...


class ToolCall(_Message): ...


class ParallelToolCall(_Message): ...


class ToolResponse(_Message): ...


def records(value: Any) -> Any:
    """`value` with every object in it made a Record."""
    if isinstance(value, Mapping):
        return Record({key: records(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return [records(item) for item in value]
    return value


@dataclass(slots=True)
class TestContext:
    """The end of one attempt, as thinkingbox-format.md 7.1 has it; all of it is JSON.

    messages and the parts of tool_calls have the shapes of 6.1. effects and init_result are by server. What tests and
    fixtures write into metadata ends in the verdict.
    """

    __test__ = False  # its name makes pytest think otherwise

    response: str = ""
    tool_direct_responses: list[str] = field(default_factory=list)
    effects: dict[str, Any] = field(default_factory=dict)
    tool_calls: list[Any] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)
    init_result: dict[str, Any] = field(default_factory=dict)
    session_id: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    def query(self) -> str:
        """The first text of the user."""
        return next((text for role, text in self._visible() if role == "user"), "")

    def transcript(self, limit: int = 0) -> str:
        """`User: ...` and `Assistant: ...` paragraphs; limit=n keeps the longest tail with n texts of the assistant."""
        texts = self._visible()
        if limit > 0:
            assistant = [i for i, (role, _) in enumerate(texts) if role == "assistant"]
            if len(assistant) > limit:
                texts = texts[assistant[-limit - 1] + 1 :]
        return "\n\n".join(f"{role.capitalize()}: {text}" for role, text in texts)

    def server_tool(self, server: str, tool: str, arguments: Mapping[str, Any] | None = None) -> str:
        """The text of any tool of the attempt's servers, hidden and reserved ones included, called on the live session.

        RuntimeError for a server that the session does not have, and where there is no session.
        """
        raise RuntimeError("there is no live session to call")

    def _visible(self) -> list[tuple[str, str]]:
        found = []
        for message in self.messages:
            metadata = message.get("metadata") or {}
            spoken = message.get("T") == "Text" and message.get("role") in ("user", "assistant")
            if spoken and metadata.get("tag") != "think" and not metadata.get("is_dummy"):
                found.append((message["role"], message["content"]))
        return found
