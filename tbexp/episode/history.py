"""A recorded conversation that a task starts from, as the agent is told it.

Decided here: which recorded messages are one message of the agent. What a reference means is decided in `tasks`, and
that calls are made again in loop.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tbexp.interpret.messages import Message, ToolCall


def told(history: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages that the agent is shown.

    Thoughts, text and calls that follow each other were one completion, and are one message again. What was forwarded
    to the user past the agent (tag direct) is not shown, as in a conversation of its own.
    """
    messages: list[Message] = []
    thought: str | None = None
    text, place = "", 0  # place: 1 after a thought, 2 after a text of the message that is being read

    def close(calls: tuple[ToolCall, ...] = ()) -> None:
        nonlocal thought, text, place
        if place or calls:
            messages.append(Message("assistant", text, calls, thought))
        thought, text, place = None, "", 0

    for message in history:
        if message["T"] in ("ToolCall", "ParallelToolCall"):
            close(tuple(_calls(message)))
            continue
        if message["T"] == "Text" and message["role"] == "assistant":
            tag = (message.get("metadata") or {}).get("tag", "text")
            if tag == "direct":
                continue
            mine = 1 if tag == "think" else 2
            if place >= mine:
                close()
            thought, text = (message["content"], text) if tag == "think" else (thought, message["content"])
            place = mine
            continue
        close()
        if message["T"] == "Text":
            messages.append(Message(message["role"], message["content"]))
        else:
            messages.append(Message("tool", message["content"], name=message["name"], call_id=message["id"]))
    close()
    return messages


def recorded_calls(history: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall]:
    """Every tool call in order; those that could not be read when they were recorded have an error."""
    for message in history:
        yield from _calls(message)


def _calls(message: Mapping[str, Any]) -> Iterator[ToolCall]:
    parts = message["tool_calls"] if message["T"] == "ParallelToolCall" else [message]
    for call in parts if message["T"] in ("ToolCall", "ParallelToolCall") else ():
        error = (call.get("metadata") or {}).get("error")
        yield ToolCall(call["name"], call["arguments"] or {}, str(call["id"]), None if error is None else str(error))
