"""The one reading of a model's output, and its inverse for calls.

Decided here: what is reasoning, what is visible text, where calls begin and end, and the text the agent gets when a
call cannot be read. Training and evaluation both call `read`. Left to others: types of arguments (typing_rules.py),
running the calls, and answering calls of tools that do not exist.

The output is walked once, from left to right, and every position is looked at a bounded number of times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tbexp.interpret import hermes, qwen_xml
from tbexp.interpret.messages import Reading, ToolCall, ToolSpec
from tbexp.interpret.typing_rules import complaint, whole_json

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

_THINK_MARK = re.compile(f"{THINK_OPEN}|{THINK_CLOSE}")
_MARK = re.compile(f"{THINK_OPEN}|{THINK_CLOSE}|{CALL_OPEN}")
_FORMATS = {"qwen3_xml": qwen_xml, "hermes": hermes}

Schemas = Mapping[str, Mapping[str, Any]]
BlockReader = Callable[[int, str], tuple[ToolCall, int]]  # (after the opening, id) -> the call and where its block ends


def read(output: str, *, format: str, tools: Sequence[ToolSpec], thinking_open: bool = False) -> Reading:
    """What one completion says.

    output: the decoded text without the template's end token. thinking_open: the generation prompt ended in `<think>`.
    Never raises for any output; a call that cannot be read carries `error`. Calls are named call_0, call_1, ...
    """
    block = _FORMATS[format].block_reader(output, {tool.name: tool.input_schema for tool in tools})
    return _walk(output, _MARK, block, thinking_open)


def _walk(output: str, marks: re.Pattern[str], block: BlockReader | None, thinking: bool) -> Reading:
    reasoning: list[str] = []
    visible: list[str] = []
    calls: list[ToolCall] = []
    place = 0
    if thinking and output.lstrip().startswith(THINK_OPEN):  # the model opened it once more
        place = output.index(THINK_OPEN) + len(THINK_OPEN)
    while True:
        if thinking:
            end = output.find(THINK_CLOSE, place)
            reasoning.append(output[place:] if end < 0 else output[place:end])
            if end < 0:
                break
            place, thinking = end + len(THINK_CLOSE), False
        mark = marks.search(output, place)
        visible.append(output[place : mark.start()] if mark else output[place:])
        if mark is None:
            break
        place = mark.end()
        if mark.group() == CALL_OPEN and block:
            call, place = block(place, f"call_{len(calls)}")
            calls.append(call)
        elif mark.group() == THINK_OPEN:
            thinking = True
        elif not calls and not reasoning:  # closed but never opened: what came before it was thought, not said
            reasoning, visible = visible, []
    return Reading(_joined(visible), tuple(calls), _joined(reasoning) if reasoning else None)


def read_chat_message(message: Mapping[str, Any], tools: Sequence[ToolSpec], *, format: str | None = None) -> Reading:
    """What the `message` of an OpenAI-compatible answer says; never raises for any JSON object.

    The server's own reading is taken where there is one: `reasoning_content` (or `reasoning`), `tool_calls`, whose ids
    are kept. `<think>` left inside the content is reasoning, not visible text. format: how the model writes calls, for
    servers without a tool parser; calls inside the content are then read as `read` reads them.
    """
    content = _text(message.get("content")) or _text(message.get("refusal"))
    given = message.get("tool_calls")
    given = given if isinstance(given, list) else []
    if format and not given:
        reading = read(content, format=format, tools=tools)
    else:
        reading = _walk(content, _THINK_MARK, None, False)
    thought = _text(message.get("reasoning_content")) or _text(message.get("reasoning"))
    reasoning = _joined([thought, reading.reasoning or ""]) if thought else reading.reasoning
    calls = tuple(_chat_call(call, f"call_{i}") for i, call in enumerate(given)) or reading.calls
    return Reading(reading.text, calls, reasoning)


def _text(content: Any) -> str:
    if isinstance(content, list):
        parts = (part.get("text") if isinstance(part, Mapping) else part for part in content)
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _chat_call(call: Any, identity: str) -> ToolCall:
    call = call if isinstance(call, Mapping) else {}
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    identity = call["id"] if isinstance(call.get("id"), str) and call["id"] else identity
    name, arguments = function.get("name"), function.get("arguments")
    name = name if isinstance(name, str) else ""
    if arguments is None or arguments == "":  # how servers write a call without arguments
        arguments = {}
    if isinstance(arguments, str):
        try:
            arguments = whole_json(arguments.strip())
        except ValueError as problem:
            return ToolCall(name, {}, identity, complaint(name, f"arguments are not JSON: {problem}"))
    return hermes.call_from({"name": name, "arguments": arguments}, identity)


def _joined(pieces: Sequence[str]) -> str:
    return "\n".join(stripped for piece in pieces if (stripped := piece.strip()))


def render_call(call: ToolCall, *, format: str, tools: Sequence[ToolSpec] = ()) -> str:
    """The text that `read` reads back as this call, given the same tools.

    Without the tool among `tools` a text argument is written as it stands and any other as JSON. ValueError where the
    format has no such text: a name with `>` in it, a value that its schema does not admit, a text that contains the
    format's own closing sequence.
    """
    schemas = {tool.name: tool.input_schema for tool in tools}
    return f"{CALL_OPEN}{_FORMATS[format].written(call, schemas)}{CALL_CLOSE}"
