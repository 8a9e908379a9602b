"""Calls in the format of Qwen3.5 and later: `<function=NAME>` with one `<parameter=KEY>` per argument.

A parameter ends at the first `</parameter>` that is followed by another parameter or by `</function>`, so its text may
contain anything that looks like a tag. It never reaches beyond `</function>` or `</parameter>` with `</tool_call>`
after it, so that a tag left out spoils one call and not the next. One line break after the opening and one before the
closing belong to the format, all others to the value.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

from tbexp.interpret.messages import ToolCall
from tbexp.interpret.typing_rules import NAMES, Unreadable, complaint, parameter_types, take, write

_CALL_CLOSE = "</tool_call>"
_FUNCTION = re.compile(r"\s*<function=([^<>\n]*)>")
_NEXT = re.compile(r"\s*(?:<parameter=([^<>\n]*)>|(</function>))")
_CLOSED = re.compile(r"\s*(?:</tool_call>|\Z)")
_VALUE_END = re.compile(r"</parameter>(?=\s*(?:<parameter=|</function>))|</(?:function|parameter)>\s*</tool_call>")
_ARTICLE = {"null": "null", "boolean": "true or false", "array": "a JSON array", "object": "a JSON object"}


def block_reader(output: str, schemas: Mapping[str, Mapping[str, Any]]) -> Callable[[int, str], tuple[ToolCall, int]]:
    """A function that reads the block opened just before a position of `output`: the call, and where the block ends."""
    ends: list[re.Match[str]] | None = None  # found once, so that many unclosed parameters cost no more than one
    starts: list[int] = []

    def value_end(place: int) -> re.Match[str] | None:
        nonlocal ends
        if ends is None:
            ends = list(_VALUE_END.finditer(output))
            starts.extend(match.start() for match in ends)
        index = bisect_left(starts, place)
        return ends[index] if index < len(ends) else None

    def block(place: int, identity: str) -> tuple[ToolCall, int]:
        def unreadable(name: str, why: str, place: int) -> tuple[ToolCall, int]:
            end = output.find(_CALL_CLOSE, place)
            if end < 0:
                why += "; the output ended before </tool_call>"
            return ToolCall(name, {}, identity, complaint(name, why)), len(output) if end < 0 else end + len(
                _CALL_CLOSE
            )

        header = _FUNCTION.match(output, place)
        name = header.group(1).strip() if header else ""
        if header is None or not name:
            return unreadable("", "<tool_call> must be followed by <function=NAME>", place)
        place = header.end()
        texts: dict[str, str] = {}
        while True:
            step = _NEXT.match(output, place)
            if step is None:
                return unreadable(name, "expected <parameter=KEY> or </function>", place)
            place = step.end()
            if step.group(2):
                break
            key = step.group(1).strip()
            end = value_end(place)
            if end is None or end.group() != "</parameter>":
                why = f"parameter {key} is not closed by </parameter> with another parameter or </function> after it"
                return unreadable(name, why, place)
            if not key or key in texts:
                return unreadable(
                    name, f"parameter {key} is given twice" if key else "a parameter has no name", end.end()
                )
            texts[key] = _without_breaks(output[place : end.start()])
            place = end.end()
        closed = _CLOSED.match(output, place)
        if closed is None:
            return unreadable(name, "</function> must be followed by </tool_call>", place)
        return _typed(name, texts, schemas.get(name), identity), closed.end()

    return block


def _without_breaks(text: str) -> str:
    text = text[1:] if text.startswith("\n") else text
    return text[:-1] if text.endswith("\n") else text


def _typed(name: str, texts: Mapping[str, str], schema: Mapping[str, Any] | None, identity: str) -> ToolCall:
    arguments: dict[str, Any] = {}
    problems = []
    for key, text in texts.items():
        types = parameter_types(schema, key)
        try:
            arguments[key] = take(text, types)
        except Unreadable as problem:
            wanted = " or ".join(
                _ARTICLE.get(kind, f"a {kind}" if kind == "number" else f"an {kind}")
                for kind in NAMES
                if kind in types and not (kind == "integer" and "number" in types)
            )
            problems.append(f"parameter {key} must be {wanted}, got {_excerpt(text)} ({problem})")
    if problems:
        return ToolCall(name, {}, identity, complaint(name, "; ".join(problems)))
    return ToolCall(name, arguments, identity)


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


def written(call: ToolCall, schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """What stands between `<tool_call>` and `</tool_call>`; ValueError where the format has no text for it."""
    lines = [f"\n<function={_name(call.name)}>\n"]
    for key, value in call.arguments.items():
        if call.name in schemas:
            text = write(value, parameter_types(schemas[call.name], key))
        else:
            text = value if isinstance(value, str) else write(value, frozenset(NAMES))
        body = f"\n{text}\n</parameter>\n"
        end = _VALUE_END.search(body + "</function>\n")
        if end is None or end.start() != len(text) + 2:
            raise ValueError(f"argument {key} contains the sequence that ends a parameter in this format")
        lines.append(f"<parameter={_name(key)}>{body}")
    return "".join(lines) + "</function>\n"


def _name(name: str) -> str:
    if not name or name != name.strip() or any(mark in name for mark in "<>\n"):
        raise ValueError(f"{name!r} is no name that this format can write")
    return name
