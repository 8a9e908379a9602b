"""verl's own parsers, asked in a process of their own."""

from __future__ import annotations

import sys

import pytest

from tbexp.interpret import ToolSpec
from tbexp.serving.parity import ask, compare
from tbexp.serving.recordings import Recording

RENT = ToolSpec("rent", "Rents.", {"type": "object", "properties": {"days": {"type": "integer"}}})
CALL = '<tool_call>\n{"name": "rent", "arguments": {"days": 3}}\n</tool_call>'


def recording(output: str, id: str = "r") -> Recording:
    return Recording(id, "m", "hermes", output, (RENT,))


@pytest.mark.train
def test_verls_parsers_read_recordings_in_a_process_of_their_own():
    pytest.importorskip("verl")
    odd = ToolSpec("odd", "", {"type": "object", "properties": {"x": {"anyOf": [{"type": "integer"}]}}})
    some = [
        recording(CALL),
        recording("no call"),
        Recording("o", "m", "hermes", '<tool_call>{"name": "odd", "arguments": {"x": 1}}</tool_call>', (RENT, odd)),
    ]
    version, reads, readings = ask("verl", some, python=sys.executable, tool_parser="hermes")
    assert version and reads == ["calls"]
    assert readings[0]["calls"] == [{"name": "rent", "arguments": '{"days": 3}'}] and readings[1]["calls"] == []
    assert "takes no tool" in readings[2]["problem"]
    (row,), differences = compare(some, "verl", readings, reads)
    assert (row.agree, row.differ, sum(row.not_compared.values())) == (2, 0, 1) and not differences
