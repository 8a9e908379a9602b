"""Outputs that no model would write: none raises, and none is read as more than it holds."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tbexp.interpret import ToolSpec, read

PROPERTIES = {"x": {"type": "integer"}, "y": {"anyOf": [{"type": "string"}, {"type": "array"}]}}
SPEC = ToolSpec("rent", "", {"type": "object", "properties": PROPERTIES})
# One byte of the fuzzer's is one of these: marks far more often than chance, else a character.
PIECES = [
    *("<tool_call>", "</tool_call>", "<function=rent>", "<function=", "</function>", "<parameter=x>", "<parameter=y>"),
    *("</parameter>", "<think>", "</think>", "\n", *'{}"[]\\7:,', "null", "true", '"name": "rent"', '"arguments": {'),
    *('{"name": "rent", "arguments": {}}', "\ud800", "\u0663", "1e999", "<", ">", "/", " ", "NaN"),
    *(f"<tool_call>\n<function=rent>\n<parameter=x>\n{n}\n</parameter>\n</function>\n</tool_call>" for n in ("7", "x")),
]
BYTES = [PIECES[byte % len(PIECES)] if byte < 200 else chr(byte) for byte in range(256)]
FUZZED = 20_000 * int(os.environ.get("TBEXP_FUZZ", "1"))  # TBEXP_FUZZ: how many times more than by default


@settings(
    max_examples=FUZZED,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
@given(st.binary(max_size=40))
def test_any_output_is_read_without_an_exception(data):
    """At least 20,000 outputs. Drawing bytes costs Hypothesis a tenth of drawing texts; the first one sets the way."""
    how, output = (data or b"\0")[0], "".join([BYTES[byte] for byte in data[1:]])
    format = "hermes" if how & 1 else "qwen3_xml"
    reading = read(output, format=format, tools=[SPEC] if how & 2 else [], thinking_open=bool(how & 4))
    assert [call.id for call in reading.calls] == [f"call_{i}" for i in range(len(reading.calls))]
    assert all(not call.arguments for call in reading.calls if call.error)
    assert len(reading.text) + len(reading.reasoning or "") <= 2 * len(output)
