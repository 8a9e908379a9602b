from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tbexp.attempts import AttemptRow, AttemptStore
from tbexp.errors import UserError
from tbexp.interpret import ToolSpec, read
from tbexp.interpret.rendering import chat_tool
from tbexp.serving.recordings import Recording, read_recordings, read_tools

RENT = ToolSpec(
    "rent", "Rents.", {"type": "object", "properties": {"days": {"type": "integer"}, "who": {"type": "string"}}}
)
CALL = "<tool_call>\n<function=rent>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"


def written(folder: Path, *rows: Any, name: str = "rows.jsonl") -> Path:
    file = folder / name
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return file


def recordings(file: Path, **more: Any) -> list[Recording]:
    return read_recordings([file], **{"model": "m", "format": "qwen3_xml", "tools": {}, **more})


def test_a_line_with_an_output_is_one_recording(tmp_path):
    row = {
        "id": "a",
        "model": "other",
        "format": "hermes",
        "output": "hi",
        "tools": [chat_tool(RENT)],
        "thinking_open": True,
    }
    first, second = recordings(written(tmp_path, row, {"output": ""}), tools={"": (RENT,)})
    assert first == Recording("a", "other", "hermes", "hi", (RENT,), True, True)
    assert second == Recording("rows.jsonl:2", "m", "qwen3_xml", "", (RENT,))


def test_all_lines_that_cannot_be_read_are_told_at_once(tmp_path):
    rows = ["no json", "[]", {"x": 1}, {"output": 7}, {"output": "", "format": "xml"}, {"output": "", "tools": "desk"}]
    with pytest.raises(UserError) as caught:
        recordings(written(tmp_path, *rows, {"output": "", "tools": [{"function": {}}]}))
    told = str(caught.value)
    for number, why in enumerate(
        ("Expecting", "JSON object", "neither", "a text", "no format", "named 'desk'", "a tool"), 1
    ):
        assert f"rows.jsonl:{number}: " in told and why in told
    with pytest.raises(UserError, match="no output of an agent"):
        recordings(written(tmp_path, {"messages": []}))


def test_outputs_of_an_attempt_store_are_found_with_their_tools(tmp_path):
    outputs = [{"output": CALL, "format": "qwen3_xml", "thinking_open": False}]
    outputs.append({"output": "hm</think>Done.", "format": "qwen3_xml", "thinking_open": True})
    with AttemptStore(tmp_path) as store:
        for attempt in range(2):
            row = AttemptRow(uid="t", attempt=attempt, passed=True, reward=1.0)
            store.append(
                row, {"uid": "t", "attempt": attempt, "messages": [], "outputs": outputs, "tools": [chat_tool(RENT)]}
            )
    assert len((tmp_path / "tools.jsonl").read_text().splitlines()) == 1
    found = recordings(tmp_path / "trajectories.jsonl")
    assert [each.id for each in found] == ["t#0/0", "t#0/1", "t#1/0", "t#1/1"]
    assert found[0].tools == (RENT,) and not found[0].rebuilt
    assert (found[1].output, found[1].thinking, found[1].thinking_open) == ("hm</think>Done.", True, True)


MESSAGES = [
    {"T": "Text", "role": "system", "content": "Rules."},
    {"T": "Text", "role": "user", "content": "Rent."},
    {"T": "Text", "role": "assistant", "content": "hm", "metadata": {"tag": "think"}},
    {"T": "Text", "role": "assistant", "content": "Wait.", "metadata": {"tag": "text"}},
    {
        "T": "ParallelToolCall",
        "tool_calls": [
            {"T": "ToolCall", "name": "rent", "arguments": {"days": 3, "who": "7"}, "id": "a", "metadata": {}},
            {"T": "ToolCall", "name": "rent", "arguments": {}, "id": "b"},
        ],
    },
    {"T": "ToolResponse", "name": "rent", "content": "ok", "id": "a"},
    {"T": "Text", "role": "assistant", "content": "passed on", "metadata": {"tag": "direct"}},
    {"T": "ToolCall", "name": "rent", "arguments": {}, "id": "c", "metadata": {"error": "Error: not read"}},
    {"T": "ToolResponse", "name": "rent", "content": "Error: not read", "id": "c"},
    {"T": "Text", "role": "assistant", "content": "Done. <DONE>", "metadata": {"tag": "text"}},
]


@pytest.mark.parametrize("format", ["qwen3_xml", "hermes"])
@pytest.mark.parametrize("opened", [False, True])
def test_turns_without_their_outputs_are_written_anew_and_read_back_as_recorded(tmp_path, format, opened):
    file = written(tmp_path, {"uid": "t", "messages": MESSAGES, "metadata": {"repetition": 2}, "tools": None})
    first, last = recordings(file, format=format, tools={"": (RENT,)}, thinking_open=opened)
    assert first.id == "t#2/0" and first.rebuilt and first.thinking and last.thinking is opened
    reading = read(first.output, format=format, tools=first.tools, thinking_open=opened)
    assert (reading.reasoning, reading.text) == ("hm", "Wait.")
    assert [dict(call.arguments) for call in reading.calls] == [{"days": 3, "who": "7"}, {}]
    again = read(last.output, format=format, tools=last.tools, thinking_open=opened)
    assert (again.text, again.reasoning or "") == ("Done. <DONE>", "")


def test_calls_without_known_tools_have_no_types_so_they_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"parity\.tools"):
        recordings(written(tmp_path, {"uid": "t", "messages": MESSAGES}))


def test_a_file_of_tools_is_a_list_or_lists_by_name(tmp_path):
    assert read_tools(written(tmp_path, [chat_tool(RENT)])) == {"": (RENT,)}
    assert read_tools(written(tmp_path, {"desk": [chat_tool(RENT)]})) == {"desk": (RENT,)}
    for wrong in ("{", "7", '{"desk": [7]}', '[{"function": {"name": "x", "parameters": 7}}]'):
        with pytest.raises(UserError, match=r"parity\.tools"):
            read_tools(written(tmp_path, wrong))
