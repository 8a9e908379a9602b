"""Recorded outputs of a model, read from files of several shapes.

Decided here: what a line of a file means. A line with `output` is one output: its text as the model wrote it, without
the end token. A line with `messages` is an attempt: of `tbexp` or of `tb infer`. Attempts of local weights hold the
outputs themselves (`outputs`); of all others only the reading is left, and each turn of the agent is written down anew
in the format, which tells whether another reader agrees on calls, not what it makes of broken ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbexp.errors import Problem, UserError
from tbexp.interpret import ToolCall, ToolSpec, render_call

FORMATS = ("qwen3_xml", "hermes")
KEY = "parity.recordings"
_SHOWN = 20  # problems of one file


@dataclass(frozen=True, slots=True)
class Recording:
    """One output. thinking: the model thinks, and its server was told so. rebuilt: written anew from its reading."""

    id: str
    model: str
    format: str
    output: str
    tools: tuple[ToolSpec, ...] = ()
    thinking: bool = False
    thinking_open: bool = False
    rebuilt: bool = False
    made: str = ""


Tools = Mapping[str, tuple[ToolSpec, ...]]


def read_tools(file: Path) -> Tools:
    """The named lists of tools of a JSON file; one list alone is named "". Raises UserError."""
    try:
        data = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as problem:
        raise UserError(Problem(f"{file} cannot be read: {problem}", "parity.tools", "a JSON file")) from None
    lists = data if isinstance(data, dict) else {"": data}
    try:
        return {name: tool_specs(each) for name, each in lists.items()}
    except ValueError as problem:
        fix = "a list of tools as chat endpoints take them, or an object of such lists by name"
        raise UserError(Problem(f"{file}: {problem}", "parity.tools", fix)) from None


def tool_specs(data: Any) -> tuple[ToolSpec, ...]:
    """Tools in the shape of chat endpoints; ValueError where they are not."""
    if not isinstance(data, list):
        raise ValueError("tools are a list")
    specs = []
    for tool in data:
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError("a tool is an object with function.name and function.parameters")
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        if not isinstance(schema, dict):
            raise ValueError(f"the parameters of {function['name']} are no object")
        specs.append(ToolSpec(function["name"], str(function.get("description") or ""), schema))
    return tuple(specs)


class UnknownTools(ValueError):
    """A recording whose tools stand nowhere."""


def read_recordings(
    files: Sequence[Path], *, model: str, format: str, tools: Tools, thinking: bool = False, thinking_open: bool = False
) -> list[Recording]:
    """All recordings of these files. What a line does not say (model, format, tools) is as given here.

    Raises UserError with what cannot be read, file and line.
    """
    problems: list[Problem] = []
    found: list[Recording] = []
    for file in files:
        known = {**tools, **_tools_beside(file)}
        wrong = []
        for number, line in enumerate(file.read_text(encoding="utf-8-sig").splitlines(), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("a line is a JSON object")
                default = Recording(
                    f"{file.name}:{number}", model, format, "", known.get("", ()), thinking, thinking_open
                )
                found += _recordings(row, default, known)
            except UnknownTools as problem:
                fix = "parity.tools=FILE, or the tools.jsonl of the attempts beside their file"
                wrong.append(Problem(str(problem), f"{file}:{number}", fix))
            except ValueError as problem:
                wrong.append(Problem(str(problem), f"{file}:{number}", "output, or messages; docs/parity.md has both"))
        problems += wrong[:_SHOWN]
        if len(wrong) > _SHOWN:
            problems.append(Problem(f"{len(wrong) - _SHOWN} more lines cannot be read", str(file)))
    if not problems and not found:
        problems.append(Problem("hold no output of an agent", KEY, "name other files"))
    if problems:
        raise UserError(problems)
    return found


def _tools_beside(file: Path) -> dict[str, tuple[ToolSpec, ...]]:
    """The tool lists that an attempt store keeps beside its trajectories, by their hash."""
    names = (file.name.replace("trajectories", "tools", 1), "tools.jsonl")
    beside = next((found for name in names if (found := file.with_name(name)) != file and found.is_file()), None)
    if beside is None:
        return {}
    rows = [json.loads(line) for line in beside.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return {row["tools_hash"]: tool_specs(row["tools"]) for row in rows}


def _recordings(row: Mapping[str, Any], default: Recording, tools: Tools) -> Iterator[Recording]:
    specs = default.tools
    if isinstance(named := row.get("tools"), str):
        if named not in tools:
            raise UnknownTools(f"no tools are named {named!r}")
        specs = tools[named]
    elif named is not None:
        specs = tool_specs(named)
    format = row.get("format", default.format)
    if format not in FORMATS:
        raise ValueError(f"{format!r} is no format: {' or '.join(FORMATS)}")
    if "output" in row:
        if not isinstance(row["output"], str):
            raise ValueError("output is a text")
        opened = bool(row.get("thinking_open", default.thinking_open))
        yield Recording(
            str(row.get("id", default.id)),
            str(row.get("model", default.model)),
            format,
            row["output"],
            specs,
            bool(row.get("thinking", opened or default.thinking)),
            opened,
            made=str(row.get("made", "")),
        )
    elif isinstance(row.get("messages"), list):
        yield from _of_attempt(row, default, specs)
    else:
        raise ValueError("has neither output nor messages")


def _of_attempt(row: Mapping[str, Any], default: Recording, specs: tuple[ToolSpec, ...]) -> Iterator[Recording]:
    attempt = row.get("attempt", (row.get("metadata") or {}).get("repetition", 0))
    name = f"{row.get('uid', default.id)}#{attempt}"
    outputs = row.get("outputs")
    if outputs:
        for turn, each in enumerate(outputs):
            opened = bool(each["thinking_open"])
            thinking = opened or default.thinking
            yield Recording(f"{name}/{turn}", default.model, each["format"], each["output"], specs, thinking, opened)
        return
    for turn, (text, thought, calls) in enumerate(_turns(row["messages"])):
        if any(call.error for call in calls):  # what the model wrote is not known
            continue
        if calls and not specs:
            raise UnknownTools("calls were made, but the tools are not known, nor are their types")
        try:
            written = [render_call(call, format=default.format, tools=specs) for call in calls]
        except ValueError:
            continue
        opening = "" if default.thinking_open else "<think>\n"
        reasoned = f"{opening}{thought}\n</think>\n\n" if thought else ("</think>\n\n" if default.thinking_open else "")
        output = reasoned + "\n".join([text] * bool(text) + written)
        thinking = bool(thought) or default.thinking or default.thinking_open
        yield Recording(
            f"{name}/{turn}", default.model, default.format, output, specs, thinking, default.thinking_open, True
        )


def _turns(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, list[ToolCall]]]:
    """Text, reasoning and calls of each completion: it ends with its calls, or with a text that no calls follow."""
    text, thought = "", ""
    for message in messages:
        kind = message.get("T")
        if kind == "Text" and message.get("role") == "assistant":
            tag = (message.get("metadata") or {}).get("tag", "text")
            if tag == "direct":  # a tool's answer that was passed on
                continue
            if text:
                yield text, thought, []
                text, thought = "", ""
            if tag == "think":
                thought = str(message.get("content", ""))
            else:
                text = str(message.get("content", ""))
        elif kind in ("ParallelToolCall", "ToolCall"):
            given = message["tool_calls"] if kind == "ParallelToolCall" else [message]
            yield text, thought, [_call(each) for each in given]
            text, thought = "", ""
        elif text or thought:
            yield text, thought, []
            text, thought = "", ""
    if text or thought:
        yield text, thought, []


def _call(data: Mapping[str, Any]) -> ToolCall:
    arguments = data.get("arguments")
    error = (data.get("metadata") or {}).get("error")
    return ToolCall(str(data.get("name", "")), arguments if isinstance(arguments, dict) else {}, "", error)
