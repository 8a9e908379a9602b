"""Whether a model's own chat template and tbexp agree on how a call is written.

`round_trip` renders calls with the template, as if the model had made them, and reads the text back. It finds a wrong
`model.format`, a template that drops arguments or writes their types otherwise, and one that tbexp cannot follow turn
by turn, before anything is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tbexp.errors import Problem, UserError
from tbexp.interpret.messages import Message, ToolCall, ToolSpec
from tbexp.interpret.reading import THINK_OPEN, read, render_call
from tbexp.interpret.rendering import Renderer, RenderMismatch, chat_message, chat_tool

_SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "whole": {"type": "integer"},
        "share": {"type": "number"},
        "sure": {"type": "boolean"},
        "names": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object"},
        "perhaps": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    },
}
TOOLS = (ToolSpec("book_machine", "Books a machine.", _SCHEMA), ToolSpec("list_machines", "Lists machines."))
CALLS = (
    ToolCall("book_machine", {"text": "Größe 7, <b>“now”</b>\nand then", "whole": 12, "share": 2.5}, "call_0"),
    ToolCall("book_machine", {"sure": True, "names": ["a", "7"], "more": {"k": [1, None]}, "perhaps": None}, "call_0"),
    ToolCall("book_machine", {"text": "123", "sure": False, "names": [], "more": {}, "perhaps": 7}, "call_0"),
    ToolCall("list_machines", {}, "call_0"),
)


def round_trip(folder: Path | str, *, format: str) -> list[Problem]:
    """What is wrong between the template of this folder's tokenizer and `format`; empty when all calls come back.

    Loads the tokenizer with transformers (no weights). UserError: the folder has no tokenizer, or it has no template.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
    except (OSError, ValueError) as problem:
        raise UserError(
            Problem(f"{folder} has no tokenizer: {problem}", "model.path", "a Hugging Face folder")
        ) from None
    if not tokenizer.chat_template:
        raise UserError(
            Problem(f"{folder}: the tokenizer has no chat template", "model.path", "add chat_template.jinja")
        )
    return round_trip_of(tokenizer, format=format)


def round_trip_of(tokenizer: Any, *, format: str) -> list[Problem]:
    """The same for a tokenizer that is loaded."""
    try:
        renderer = Renderer(tokenizer, format=format)
        conversation = renderer.open([Message("system", "You rent machines."), Message("user", "Hello.")], TOOLS)
        problems = [found for call in CALLS for found in _written_by_template(renderer, call, format)]
        for call in CALLS:  # what training does with it: the call's tokens are read, its answer appended
            text = render_call(call, format=format, tools=TOOLS)
            reading = conversation.produced(renderer.encode(_closed(conversation.thinking_open) + text), None)
            if [(c.name, c.arguments) for c in reading.calls] != [(call.name, call.arguments)]:
                problems.append(_problem(f"the tokens of a call of {call.name} do not come back as this call"))
            conversation.add([Message("tool", "done", name=call.name, call_id="call_0")])
    except RenderMismatch as problem:
        return [_problem(f"the template cannot be followed turn by turn: {problem}")]
    except UserError as error:
        return [_problem(each.what) for each in error.problems]
    return list(dict.fromkeys(problems))


def _written_by_template(renderer: Renderer, call: ToolCall, format: str) -> Sequence[Problem]:
    talk = [Message("user", "Hello."), Message("assistant", "", (call,)), Message("tool", "done", call_id="call_0")]
    text = str(
        renderer.tokenizer.apply_chat_template(
            [chat_message(message) for message in talk], tools=[chat_tool(tool) for tool in TOOLS], tokenize=False
        )
    )
    said = text.rpartition("Hello.")[2].partition(renderer.end_text)[2].partition(renderer.end_text)[0]
    reading = read(said, format=format, tools=TOOLS)
    if len(reading.calls) != 1:
        return [_problem(f"a call as the chat template writes it is read as {len(reading.calls)} calls in {format}")]
    back = reading.calls[0]
    if back.error is not None:
        return [_problem(f"a call as the chat template writes it cannot be read in {format}: {back.error}")]
    if back.name != call.name or dict(back.arguments) != dict(call.arguments):
        wrong = [key for key in call.arguments if back.arguments.get(key) != call.arguments[key]]
        shown = ", ".join(f"{key} {call.arguments[key]!r} as {back.arguments.get(key)!r}" for key in wrong)
        return [_problem(f"a call as the chat template writes it is read with {shown or 'other arguments'}")]
    return []


def _closed(thinking_open: bool) -> str:
    return THINK_OPEN.replace("<", "</") + "\n\n" if thinking_open else ""


def _problem(what: str) -> Problem:
    return Problem(what, "model.format", "set model.format to how the model writes calls, or mend its chat template")
