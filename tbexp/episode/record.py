"""The conversation as it is recorded: JSON messages in the shapes of thinkingbox-format.md 6.1."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tbexp.episode.history import recorded_calls
from tbexp.interpret.messages import Message, ToolCall


class Conversation:
    """messages: everything in order. tool_calls: every call with its response, for the test."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.tool_calls: list[dict[str, Any]] = []
        self.direct_texts: list[str] = []
        self.call_ids: list[str] = []

    def recorded(self, message: Mapping[str, Any]) -> None:
        """A message of the task's history, as it was recorded."""
        self.messages.append({**message, "metadata": dict(message.get("metadata") or {})})
        self.call_ids.extend(call.id for call in recorded_calls([message]))

    def text(self, role: str, content: str, *, simulated: bool = False, done: bool = False) -> None:
        metadata: dict[str, Any] = {}
        if role == "assistant":
            metadata["tag"] = "text"
        if simulated:
            metadata["is_user_llm"] = True
        if done:
            metadata["is_done"] = True
        self.messages.append({"T": "Text", "role": role, "content": content, "metadata": metadata})

    def think(self, content: str) -> None:
        self.messages.append({"T": "Text", "role": "assistant", "content": content, "metadata": {"tag": "think"}})

    def direct(self, content: str) -> None:
        self.direct_texts.append(content)
        self.messages.append({"T": "Text", "role": "assistant", "content": content, "metadata": {"tag": "direct"}})

    def calls(self, calls: Sequence[ToolCall], ends_turn: Callable[[str], bool]) -> None:
        ends = any(ends_turn(call.name) for call in calls)
        self.messages.append(
            {
                "T": "ParallelToolCall",
                "tool_calls": [_call(call, ends_turn(call.name)) for call in calls],
                "metadata": {"is_end_turn_tool": True} if ends else {},
            }
        )

    def response(self, call: ToolCall, answer: str) -> None:
        response = {"T": "ToolResponse", "name": call.name, "content": answer, "id": call.id, "metadata": {}}
        self.messages.append(response)
        self.tool_calls.append({"tool_call": _call(call, False), "tool_response": response})

    def end_call(self, call: ToolCall) -> None:
        """A call of an end-turn tool: nothing is executed, an empty response is recorded for the test."""
        response = {"T": "ToolResponse", "name": call.name, "content": "", "id": call.id, "metadata": {}}
        self.tool_calls.append({"tool_call": _call(call, True), "tool_response": response})

    def response_text(self) -> str:
        """The agent's last text tagged text, "" if there is none."""
        for message in reversed(self.messages):
            if message["T"] == "Text" and message["role"] == "assistant" and _tag(message) == "text":
                return str(message["content"])
        return ""

    def done(self) -> bool:
        """Whether the last visible text of the agent, what was forwarded for it included, said that it is done."""
        for message in reversed(self.messages):
            if message["T"] == "Text" and message["role"] == "assistant" and _visible(message):
                return bool(message["metadata"].get("is_done"))
        return False

    def visible(self) -> list[Message]:
        """What the user has seen and said."""
        return [
            Message(m["role"], m["content"])
            for m in self.messages
            if m["T"] == "Text" and m["role"] in ("user", "assistant") and _visible(m)
        ]


def _visible(message: Mapping[str, Any]) -> bool:
    return _tag(message) != "think" and not message["metadata"].get("is_dummy")


def _tag(message: Mapping[str, Any]) -> str:
    return str(message["metadata"].get("tag", "text"))


def _call(call: ToolCall, ends_turn: bool) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    if call.error is not None:
        metadata["error"] = call.error
    if ends_turn:
        metadata["is_end_turn_tool"] = True
    return {"T": "ToolCall", "name": call.name, "arguments": dict(call.arguments), "id": call.id, "metadata": metadata}
