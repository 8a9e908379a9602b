from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbexp.interpret import TABLE, Reading, ToolCall, ToolSpec, read, read_chat_message, render_call, table_markdown
from tbexp.interpret.typing_rules import UNDECLARED, Unreadable, admitted, take, write

FUZZ = int(os.environ.get("TBEXP_FUZZ", "1"))  # how many times more examples than by default


def tool(properties: dict[str, Any], **more: Any) -> ToolSpec:
    return ToolSpec("rent", "", {"type": "object", "properties": properties, **more})


def xml(**arguments: str) -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function=rent>\n{body}</function>\n</tool_call>"


def one(output: str, *tools: ToolSpec, format: str = "qwen3_xml") -> ToolCall:
    reading = read(output, format=format, tools=tools)
    assert len(reading.calls) == 1, reading
    return reading.calls[0]


READS = [(row, text, value) for row in TABLE for text, value in row.reads]
REFUSES = [(row, text) for row in TABLE for text in row.refuses]


@pytest.mark.parametrize(("row", "text", "value"), READS, ids=[f"{r.case}: {t[:20]}" for r, t, _ in READS])
def test_an_argument_is_read_as_its_row_of_the_table_says(row, text, value):
    schema = dict(row.schema)
    spec = tool({"x": schema}, **({"$defs": schema.pop("$defs")} if "$defs" in schema else {}))
    call = one(xml(x=text), spec)
    assert call.error is None
    assert call.arguments == {"x": value} and type(call.arguments["x"]) is type(value)


@pytest.mark.parametrize(("row", "text"), REFUSES, ids=[f"{r.case}: {t[:20]}" for r, t in REFUSES])
def test_an_argument_that_its_row_refuses_becomes_an_error_for_the_agent(row, text):
    schema = dict(row.schema)
    spec = tool({"x": schema}, **({"$defs": schema.pop("$defs")} if "$defs" in schema else {}))
    call = one(xml(x=text), spec)
    assert call.error and "parameter x must be" in call.error and len(call.error) < 400
    assert call.name == "rent" and call.arguments == {}


@pytest.mark.parametrize(("case", "schema", "rule", "text", "value"), UNDECLARED, ids=[u[0] for u in UNDECLARED])
def test_what_the_schema_does_not_declare_is_passed_on(case, schema, rule, text, value):
    tools = [] if schema is None else [ToolSpec("rent", "", schema)]
    assert one(xml(x=text), *tools).arguments == {"x": value}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer", "nullable": True}, {"integer", "null"}),
        ({"$ref": "#/nowhere"}, None),
        ({"$ref": "#/properties/x"}, None),
        ({"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}, {"integer", "null"}),
        ({"allOf": [{"$ref": "#/$defs/n"}], "default": 3}, {"integer"}),
        ({"type": "number", "enum": [1, 2.5]}, {"integer", "number"}),
        ({"type": "string", "enum": [1]}, None),
        ({"type": "cheese"}, None),
        ({"items": {}}, {"array"}),
        (True, None),
    ],
)
def test_a_schema_is_reduced_to_the_types_it_admits(schema, types):
    root = {"properties": {"x": {"$ref": "#/properties/x"}}, "$defs": {"n": {"type": "integer"}}}
    everything = {"null", "boolean", "integer", "number", "array", "object", "string"}
    assert admitted(schema, root) == (types or everything)


@pytest.mark.parametrize(
    ("output", "opened", "reading"),
    [
        ("hello", False, Reading("hello")),
        ("", False, Reading()),
        ("<think>a</think>b", False, Reading("b", (), "a")),
        ("<think>\n\n</think>\n\nb", False, Reading("b", (), "")),
        ("a</think>b", True, Reading("b", (), "a")),
        ("<think>a</think>b", True, Reading("b", (), "a")),
        ("a, cut", True, Reading("", (), "a, cut")),
        ("<think>a, cut", False, Reading("", (), "a, cut")),
        ("a</think>b", False, Reading("b", (), "a")),
        ("b<think>a</think>c", False, Reading("b\nc", (), "a")),
        ("a<tool_call></think>b", True, Reading("b", (), "a<tool_call>")),
        ("the </function> tag", False, Reading("the </function> tag")),
        ("<function=rent>\n</function>", False, Reading("<function=rent>\n</function>")),
    ],
)
def test_reasoning_is_told_from_visible_text(output, opened, reading):
    for format in ("qwen3_xml", "hermes"):
        assert read(output, format=format, tools=(), thinking_open=opened) == reading


def test_text_around_calls_is_kept_and_calls_keep_their_order():
    output = f"<think>t</think>\n\nFirst.\n{xml(x='1')}\nThen.\n{xml()}{xml(y='2')}\nDone."
    reading = read(output, format="qwen3_xml", tools=())
    assert reading.text == "First.\nThen.\nDone." and reading.reasoning == "t"
    assert [(c.id, dict(c.arguments)) for c in reading.calls] == [
        ("call_0", {"x": 1}),
        ("call_1", {}),
        ("call_2", {"y": 2}),
    ]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("", "must be followed by <function=NAME>"),
        ('{"name": "rent"}', "must be followed by <function=NAME>"),
        ("<function=>\n</function>", "must be followed by <function=NAME>"),
        ("<function=rent>\nhello\n</function>", "expected <parameter=KEY> or </function>"),
        ("<function=rent>\n<parameter=x>\n1\n</function>", "parameter x is not closed"),
        ("<function=rent>\n<parameter=x>\n1\n</parameter>\n", "parameter x is not closed"),
        ("<function=rent>\n<parameter=x>1</parameter><parameter=x>2</parameter></function>", "given twice"),
        ("<function=rent>\n<parameter=>1</parameter></function>", "has no name"),
        ("<function=rent>\n</function>\nhello", "must be followed by </tool_call>"),
    ],
)
def test_a_malformed_xml_call_is_an_error_and_the_next_call_is_still_read(body, why):
    reading = read(f"<tool_call>\n{body}\n</tool_call>\n{xml(x='1')}", format="qwen3_xml", tools=())
    assert why in (reading.calls[0].error or "") and reading.calls[0].arguments == {}
    assert reading.calls[1] == ToolCall("rent", {"x": 1}, "call_1")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("", "Expecting value"),
        ("[1]", "must be a JSON object"),
        ('{"arguments": {}}', "name must be a text"),
        ('{"name": "rent"}', "arguments must be a JSON object"),
        ('{"name": "rent", "arguments": "{}"}', "arguments must be a JSON object"),
        ('{"name": "rent", "arguments": {"x": NaN}}', "NaN"),
        ("{'name': 'rent', 'arguments': {}}", "Expecting property name"),
        ('{"name": "rent", "arguments": {}', "Expecting ',' delimiter"),
        ('{"name": "rent", "arguments": {}}}', "there is more"),
    ],
)
def test_a_malformed_hermes_call_is_an_error_and_the_next_call_is_still_read(body, why):
    good = '<tool_call>\n{"name": "rent", "arguments": {"x": 1}}\n</tool_call>'
    reading = read(f"<tool_call>\n{body}\n</tool_call>\n{good}", format="hermes", tools=())
    assert why in (reading.calls[0].error or "")
    assert reading.calls[1] == ToolCall("rent", {"x": 1}, "call_1")


@pytest.mark.parametrize("cut", range(12, len(xml(x="1")) - len("\n</tool_call>")))
def test_a_call_that_was_cut_off_is_an_error(cut):
    call = one(xml(x="1")[:cut])
    assert call.error is None if cut >= xml(x="1").index("</function>") + 11 else "output ended" in (call.error or "")


@pytest.mark.parametrize(
    "value",
    [
        "a</parameter>b",
        "</tool_call>",
        "<parameter=y>\n1",
        "\n\nx\n",
        "</function>",
        "<tool_call>",
        "<think>",
        "x</think>",
    ],
)
def test_a_value_may_contain_what_looks_like_a_tag(value):
    spec = tool({"x": {"type": "string"}})
    call = ToolCall("rent", {"x": value}, "call_0")
    assert one(render_call(call, format="qwen3_xml", tools=[spec]), spec) == call


@pytest.mark.parametrize(
    "value",
    [
        "1\n</parameter>\n<parameter=y>\n2",
        "</function></tool_call>",
        "</parameter></function>",
        "</parameter> </tool_call>",
    ],
)
def test_a_value_that_the_xml_format_cannot_hold_is_refused_when_written_not_garbled(value):
    with pytest.raises(ValueError, match="ends a parameter"):
        render_call(ToolCall("rent", {"x": value}, "call_0"), format="qwen3_xml")


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
)
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3), max_leaves=8
)
TRICKY = st.sampled_from(
    ["7", '"7"', '"\\"7\\""', "null", "None", "True", "[1]", "{", " 7", "\n", "1e5", "-0", "</parameter>", "\\u0041"]
)
BY_TYPE = {
    "null": st.none(),
    "boolean": st.booleans(),
    "integer": st.integers(),
    "number": st.floats(allow_nan=False, allow_infinity=False) | st.integers(),
    "array": st.lists(VALUES, max_size=3),
    "object": st.dictionaries(st.text(max_size=5), VALUES, max_size=3),
    "string": st.text(max_size=12) | TRICKY,
}
NAME = st.from_regex(r"[a-z_][a-z0-9_.-]{0,8}", fullmatch=True)


@st.composite
def typed_argument(draw: st.DrawFn) -> tuple[dict[str, Any], Any]:
    types = draw(st.lists(st.sampled_from(sorted(BY_TYPE)), min_size=1, max_size=4, unique=True))
    value = draw(st.sampled_from(types).flatmap(BY_TYPE.__getitem__))
    shape = draw(st.sampled_from(["type", "anyOf", "oneOf", "enum", "none", "ref"]))
    parts = [{"type": name} for name in types]
    schemas: dict[str, dict[str, Any]] = {
        "type": {"type": types if len(types) > 1 else types[0]},
        "anyOf": {"anyOf": parts},
        "oneOf": {"oneOf": parts},
        "enum": {"enum": [value, *(draw(BY_TYPE[name]) for name in types)]},
        "none": {},
        "ref": {"$ref": "#/$defs/t"},
    }
    return schemas[shape], value if shape != "ref" else draw(BY_TYPE["integer"])


@settings(max_examples=400 * FUZZ)
@given(st.dictionaries(NAME, typed_argument(), max_size=4), NAME)
def test_a_rendered_xml_call_reads_back_as_the_call(arguments, name):
    schema = {
        "properties": {key: schema for key, (schema, _) in arguments.items()},
        "$defs": {"t": {"type": "integer"}},
    }
    spec = ToolSpec(name, "", schema)
    call = ToolCall(name, {key: value for key, (_, value) in arguments.items()}, "call_0")
    back = one(render_call(call, format="qwen3_xml", tools=[spec]), spec)
    assert back == call
    assert json.loads(json.dumps(back.arguments)) == call.arguments


@settings(max_examples=200 * FUZZ)
@given(st.dictionaries(st.text(max_size=6), VALUES, max_size=4), st.text(min_size=1))
def test_a_rendered_hermes_call_reads_back_as_the_call(arguments, name):
    call = ToolCall(name, arguments, "call_0")
    assert one(render_call(call, format="hermes"), format="hermes") == call


@settings(max_examples=300 * FUZZ)
@given(
    st.sampled_from(sorted(BY_TYPE)).flatmap(BY_TYPE.__getitem__), st.sets(st.sampled_from(sorted(BY_TYPE)), min_size=1)
)
def test_writing_a_value_is_the_inverse_of_taking_it_or_refused(value, types):
    try:
        text = write(value, frozenset(types))
    except ValueError:
        return
    assert take(text, frozenset(types)) == value


FLOODS = [
    "<tool_call>",
    "<tool_call></tool_call>",
    "<tool_call><function=f><parameter=a>",
    "<tool_call><function=f><parameter=a></tool_call>",
    "<tool_call><function=f><parameter=a></function></tool_call>",
    "<tool_call><function=f></function>",
    "<think>",
    "</think>",
    "<think></think>",
    "</parameter>   ",
    '<tool_call>{"a": "\\u0041"}</tool_call>',
    '<tool_call>["</tool_call>","',
    '<tool_call>{"</tool_call>',
    "<tool_call>[[[[",
    " ",
]


@pytest.mark.parametrize("unit", FLOODS)
@pytest.mark.parametrize("format", ["qwen3_xml", "hermes"])
def test_floods_of_marks_are_read_to_their_end(unit, format):
    for prefix in ("", "<tool_call>", "<tool_call><function=f><parameter=a>"):
        read(prefix + unit * (100_000 // len(unit)), format=format, tools=())


@pytest.mark.parametrize("format", ["qwen3_xml", "hermes"])
def test_a_megabyte_of_openings_is_read_to_its_end(format):
    reading = read("<tool_call>" * (1_000_000 // len("<tool_call>")), format=format, tools=())
    assert len(reading.calls) == 1 and "output ended" in (reading.calls[0].error or "")


@pytest.mark.parametrize("unit", FLOODS)
@pytest.mark.parametrize("format", ["qwen3_xml", "hermes"])
def test_four_times_the_output_takes_about_four_times_the_work(unit, format):
    """Processor time, the least of several goes: 4 for linear work, 16 for quadratic."""

    def seconds(size: int) -> float:
        output, best = unit * (size // len(unit)), float("inf")
        for _ in range(3):
            start = time.process_time()
            read(output, format=format, tools=())
            best = min(best, time.process_time() - start)
        return best

    ratios = []
    for _ in range(3):  # a machine under load spoils one measurement, not three
        ratios.append(seconds(160_000) / max(seconds(40_000), 1e-4))
        if ratios[-1] < 9:
            return
    pytest.fail(f"four times the output took {ratios} times the work")


def test_the_table_can_be_shown_whole():
    text = table_markdown()
    assert all(row.case in text and row.rule in text for row in TABLE)
    assert {len(line.replace("\\|", "").strip("|").split("|")) for line in text.splitlines()} == {5}


def test_the_documentation_shows_the_table_as_it_is():
    assert table_markdown() in (Path(__file__).parents[2] / "docs" / "interpretation.md").read_text(encoding="utf-8")


def test_a_value_that_is_not_admitted_is_not_read():
    with pytest.raises(Unreadable, match="none of these types"):
        take("x", frozenset({"null", "integer"}))


def chat_call(arguments: Any, name: Any = "rent", **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}, **more}]}


@pytest.mark.parametrize(
    ("message", "reading"),
    [
        ({"content": "hi"}, Reading("hi")),
        ({"content": None}, Reading()),
        ({}, Reading()),
        ({"content": [{"type": "text", "text": "a"}, {"type": "image_url"}, "b"]}, Reading("ab")),
        ({"content": "hi", "reasoning_content": "hm"}, Reading("hi", (), "hm")),
        ({"content": "hi", "reasoning": "hm"}, Reading("hi", (), "hm")),
        ({"content": "<think>hm</think>hi"}, Reading("hi", (), "hm")),
        ({"content": "hm</think>hi"}, Reading("hi", (), "hm")),
        ({"content": "see <tool_call>"}, Reading("see <tool_call>")),
        ({"content": None, "refusal": "no"}, Reading("no")),
        ({"content": "so", **chat_call('{"x": 1}', id="a7")}, Reading("so", (ToolCall("rent", {"x": 1}, "a7"),))),
        (chat_call({"x": 1}), Reading("", (ToolCall("rent", {"x": 1}, "call_0"),))),
        (chat_call(""), Reading("", (ToolCall("rent", {}, "call_0"),))),
        ({"content": "x", "tool_calls": None}, Reading("x")),
    ],
)
def test_the_message_of_a_chat_endpoint_is_read(message, reading):
    assert read_chat_message(message, ()) == reading


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (chat_call("[1]"), "arguments must be a JSON object"),
        (chat_call("null"), "arguments must be a JSON object"),
        (chat_call('{"x": 1'), "arguments are not JSON"),
        (chat_call('{"x": NaN}'), "NaN is no JSON value"),
        (chat_call("{}", name=None), "name must be a text"),
        ({"tool_calls": [7]}, "name must be a text"),
    ],
)
def test_a_call_of_a_chat_endpoint_that_cannot_be_read_is_an_error_for_the_agent(message, why):
    (call,) = read_chat_message(message, ()).calls
    assert why in (call.error or "") and call.arguments == {}


def test_calls_left_in_the_content_by_a_server_without_a_tool_parser_are_read():
    content = f"<think>t</think>On it.{xml(x='7')}"
    spec = tool({"x": {"type": "string"}})
    reading = read_chat_message({"content": content}, [spec], format="qwen3_xml")
    assert reading == read(content, format="qwen3_xml", tools=[spec])
    assert reading.calls == (ToolCall("rent", {"x": "7"}, "call_0"),)


@settings(max_examples=100 * FUZZ)
@given(
    st.dictionaries(
        st.sampled_from(["content", "tool_calls", "reasoning", "refusal"]), VALUES | st.just(chat_call("{}"))
    )
)
def test_any_json_object_is_read_as_a_chat_message_without_an_exception(message):
    assert isinstance(read_chat_message(message, ()), Reading)
