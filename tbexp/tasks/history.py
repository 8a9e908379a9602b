"""Recorded conversations that a task starts from: `<stem>.meta.yaml`, and the references into it.

Decided here: which messages a reference means. Left to others: replaying them (episode).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tbexp.errors import Problem
from tbexp.tasks import blocks
from tbexp.tasks.blocks import Check, nearest

_ROLES = ("system", "user", "assistant")


def _role(value: Any) -> str:
    return "" if value in _ROLES else f"is {value!r}, not one of {', '.join(_ROLES)}"


def _id(value: Any) -> str:
    good = isinstance(value, str | int) and not isinstance(value, bool)
    return "" if good else "must be a text or a whole number"


_KINDS: Mapping[str, Mapping[str, Check]] = {
    "Text": {"role": _role, "content": blocks.text},
    "ToolCall": {"name": blocks.text, "arguments": blocks.or_null(blocks.mapping), "id": _id},
    "ParallelToolCall": {"tool_calls": blocks.listing},
    "ToolResponse": {"name": blocks.text, "content": blocks.text, "id": _id},
}


class History:
    """The message groups of one file; a group whose name begins with # or that is empty does not count."""

    def __init__(self, file: Path, problems: list[Problem]):
        self.file = file
        self.groups: dict[str, list[dict[str, Any]]] = {}
        self.exists = file.is_file()
        if not self.exists:
            return
        block = blocks.read_block(blocks.read_text(file, problems), file, 1, problems)
        groups = block.values.get("$history", {}) if block else {}
        if block and not isinstance(groups, dict):
            problems.append(Problem("$history must be an object: group -> list of messages", block.at("$history")))
            return
        for name, messages in groups.items():
            if str(name).startswith("#") or messages is None:
                continue
            wrong = wrong_messages(messages)
            if wrong and block:
                problems.append(Problem(f"history group {name} {wrong}", block.at("$history")))
            else:
                self.groups[str(name)] = messages


def referenced(
    history: History, reference: str | Mapping[str, Any], where: str, problems: list[Problem]
) -> tuple[dict[str, Any], ...] | None:
    """The messages of `key:start:end` (or an object with these keys); None when that is noted as a problem.

    start: an index or a message_id; end: a message_id, exclusive, or empty for all that follow.
    """

    def wrong(what: str, fix: str = "") -> None:
        problems.append(Problem(f"history {what}", where, fix))

    if not history.exists:
        wrong(f"refers to {history.file}, which does not exist")
        return None
    if isinstance(reference, str):
        parts = reference.rsplit(":", 2)
        if len(parts) != 3 or not parts[0]:
            wrong(f"{reference!r} is not of the form key:start:end")
            return None
        key, start, end = parts
    else:
        if unknown := [name for name in reference if name not in ("key", "start", "end")]:
            wrong(f"has the unknown key {unknown[0]}; keys: key, start, end")
            return None
        key, start, end = (
            str(reference.get(name, "") if reference.get(name) is not None else "") for name in ("key", "start", "end")
        )
    if key not in history.groups:
        near = nearest(key, history.groups)
        wrong(f"group {key} is not in {history.file}", f"did you mean {near[0]}?" if near else "")
        return None
    messages = history.groups[key]
    places = {str(m["message_id"]): i for i, m in enumerate(messages) if m.get("message_id") is not None}
    first = int(start) if start.isascii() and start.isdecimal() and len(start) < 10 else places.get(start)
    last = places.get(end) if end else len(messages)
    if first is None or first >= len(messages):
        wrong(f"start {start!r} is neither an index nor a message_id of group {key} ({len(messages)} messages)")
        return None
    if last is None:
        wrong(f"end {end!r} is no message_id of group {key}")
        return None
    if last <= first:
        wrong(f"ends at {end!r}, which is not after its start {start!r}")
        return None
    return tuple(messages[first:last])


def wrong_messages(messages: Any) -> str:
    """What is wrong with a recorded conversation, "" when nothing is."""
    return next((w for m in messages if (w := _wrong(m))), "") if isinstance(messages, list) else "is no list"


def _no_call(call: Any) -> str:
    return "" if call["T"] == "ToolCall" else f"has a ParallelToolCall with a {call['T']} in it"


def _wrong(message: Any) -> str:
    if not isinstance(message, dict):
        return "has a message that is no object"
    kind = message.get("T")
    if not isinstance(kind, str) or kind not in _KINDS:
        return f"has a message with T {kind!r}; known: {', '.join(_KINDS)}"
    fields = _KINDS[kind]
    for name, check in fields.items():
        if name not in message:
            return f"has a {kind} without {name}"
        if wrong := check(message[name]):
            return f"has a {kind} whose {name} {wrong}"
    if wrong := blocks.or_null(blocks.mapping)(message.get("metadata")):
        return f"has a {kind} whose metadata {wrong}"
    if kind == "ParallelToolCall":
        calls = ({"T": "ToolCall", **call} if isinstance(call, dict) else call for call in message["tool_calls"])
        return next((w for call in calls if (w := _wrong(call) or _no_call(call))), "")
    return ""
