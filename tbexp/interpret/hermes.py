"""Calls in the Hermes format: one JSON object with `name` and `arguments` between `<tool_call>` and `</tool_call>`.

JSON has types of its own, so the tool's schema is not looked at. The object is read where it stands, not searched
for: a text inside it may contain `</tool_call>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tbexp.interpret.messages import ToolCall
from tbexp.interpret.typing_rules import Unreadable, complaint, decode_json

_CALL_CLOSE = "</tool_call>"
_SPACE = re.compile(r"[ \t\r\n]*")
_CLOSED = re.compile(r"\s*(?:</tool_call>|\Z)")


def block_reader(output: str, schemas: Mapping[str, Mapping[str, Any]]) -> Callable[[int, str], tuple[ToolCall, int]]:
    """A function that reads the block opened just before a position of `output`: the call, and where the block ends."""

    def block(place: int, identity: str) -> tuple[ToolCall, int]:
        def unreadable(why: str, place: int, name: str = "") -> tuple[ToolCall, int]:
            end = output.find(_CALL_CLOSE, place)
            if end < 0:
                why += "; the output ended before </tool_call>"
            call = ToolCall(name, {}, identity, complaint(name, why))
            return call, len(output) if end < 0 else end + len(_CALL_CLOSE)

        start = _SPACE.match(output, place).end()  # type: ignore[union-attr]
        try:
            value, end = _decode(output, start)
        except json.JSONDecodeError as problem:
            return unreadable(f"{problem.msg} at character {problem.pos + 1} of the call", start + problem.pos)
        except Unreadable as problem:
            return unreadable(str(problem), start + problem.end)
        closed = _CLOSED.match(output, end)
        if closed is None:
            return unreadable("there is more after the JSON object", end)
        return call_from(value, identity), closed.end()

    return block


def _decode(output: str, start: int) -> tuple[Any, int]:
    """The JSON value at `start` and where it ends; positions in errors count from `start`.

    Only the text up to a `</tool_call>` is looked at (an error counts lines from the beginning of what it is given,
    which would make many errors quadratic), twice as much each time that a text in quotes reaches beyond it.
    """
    size = 0
    while True:
        limit = output.find(_CALL_CLOSE, start + size)
        part = output[start:limit] if limit >= 0 else output[start:]
        try:
            value, end = decode_json(part)
            return value, start + end
        except json.JSONDecodeError as problem:
            if limit < 0 or not problem.msg.startswith("Unterminated string"):
                raise
        size = 2 * len(part) + 1


def call_from(value: Any, identity: str) -> ToolCall:
    """The call that an already decoded `{"name": ..., "arguments": {...}}` is."""
    if not isinstance(value, dict):
        return ToolCall("", {}, identity, complaint("", "it must be a JSON object with name and arguments"))
    name, arguments = value.get("name"), value.get("arguments")
    if not isinstance(name, str) or not name:
        return ToolCall("", {}, identity, complaint("", "name must be a text"))
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, identity, complaint(name, "arguments must be a JSON object"))
    return ToolCall(name, arguments, identity)


def written(call: ToolCall, schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """What stands between `<tool_call>` and `</tool_call>`."""
    value = {"name": call.name, "arguments": dict(call.arguments)}
    return "\n" + json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
