from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbexp.errors import UserError
from tbexp.interpret import Message, Renderer, RenderMismatch, ToolCall, ToolSpec, render_call

pytest.importorskip("transformers")

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]

PLAIN = """
{%- if tools %}{{ '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
{{- '# Tools\\n' }}{% for t in tools %}{{ t | tojson }}{{ '\\n' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'system' and loop.first and tools %}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- elif m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}
{%- if EMPTY_THINK and loop.last and not add_generation_prompt %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{{- m.content }}
{%- for c in m.tool_calls %}{{ '<tool_call>\\n<function=' + c.function.name + '>\\n' }}
{%- for k, v in c.function.arguments | items %}{{ '<parameter=' + k + '>\\n' ~ v ~ '\\n</parameter>\\n' }}{% endfor %}
{{- '</function>\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' + OPENING }}{% endif %}"""

ONE_SYSTEM = """
{%- for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('one system message') }}
{%- endif %}{% endfor -%}"""
TOOL_NEEDS_CALL = """
{%- for m in messages %}
{%- if m.role == 'tool' and (loop.first or messages[loop.index0 - 1].role not in ('tool', 'assistant')) %}
{{- raise_exception('tool first') }}{% endif %}{% endfor -%}"""
DROPS_SYSTEMS = """
{%- set late = messages[1:] | selectattr('role', 'equalto', 'system') | map(attribute='content') | list %}
{%- set messages = messages | rejectattr('content', 'in', late) | list -%}"""
FORGETS = """
{%- if messages | length > 2 %}{% set messages = messages | rejectattr('role', 'equalto', 'assistant') | list %}
{%- endif -%}"""


def shaped(before: str = "", opening: str = "", empty_think: bool = False) -> str:
    return f"{{% set OPENING = '{opening}' %}}{{% set EMPTY_THINK = {str(empty_think).lower()} %}}" + before + PLAIN


TEMPLATES = {
    "plain": shaped(),
    "one system message": shaped(ONE_SYSTEM),
    "drops later system messages": shaped(DROPS_SYSTEMS),
    "tool answers only after calls": shaped(TOOL_NEEDS_CALL),
    "empty thoughts in the last turn": shaped(empty_think=True),
    "thinking opened": shaped(opening="<think>\\n"),
    "thinking closed": shaped(opening="<think>\\n\\n</think>\\n\\n"),
}


@pytest.fixture(scope="module")
def tokenizer(byte_level):
    return byte_level(SPECIAL)


def renderer(tokenizer, template: str) -> Renderer:
    tokenizer.chat_template = template
    return Renderer(tokenizer, format="qwen3_xml")


TOOLS = [ToolSpec("rent", "Rent a machine", {"type": "object", "properties": {"days": {"type": "integer"}}})]
START = [Message("system", "You rent machines."), Message("system", "Be brief."), Message("user", "A digger, please.")]
CALL = ToolCall("rent", {"days": 3}, "call_0")


def answers(*texts: str) -> list[Message]:
    return [Message("tool", text, name="rent", call_id=f"call_{i}") for i, text in enumerate(texts)]


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_turn_begins_with_all_tokens_of_the_turn_before_plus_what_was_produced(tokenizer, name):
    r = renderer(tokenizer, TEMPLATES[name])
    conversation = r.open(START, TOOLS)
    assert "Be brief." in r.decode(conversation.tokens) and '"rent"' in r.decode(conversation.tokens)
    assert conversation.prompt_length == len(conversation.tokens)
    steps = [
        (f"{render_call(CALL, format='qwen3_xml')}<|im_end|>", answers("ok", "ok too")),
        ("Which one?<|im_end|>", [Message("user", "The big one.")]),
        (f"{render_call(CALL, format='qwen3_xml')}<|im_end|>", [*answers("done"), Message("assistant", "Booked.")]),
        ("cut off in the mid", [Message("user", "What?")]),
        ("", [Message("user", "Hello?")]),
    ]
    for output, new in steps:
        before = list(conversation.tokens)
        ids = r.encode(output)
        conversation.produced(ids, [-0.5] * len(ids))
        conversation.add(new)
        assert conversation.tokens[: len(before) + len(ids)] == before + ids
        rest = r.decode(conversation.tokens[len(before) + len(ids) :])
        assert rest.startswith("\n<|im_start|>" if output.endswith("<|im_end|>") else "<|im_end|>\n<|im_start|>")
        assert all(m.content in rest for m in new) and rest.count("<|im_start|>assistant\n") >= 1
        assert len(conversation.tokens) == len(conversation.mask) == len(conversation.logprobs)
        assert conversation.mask[len(before) :] == [1] * len(ids) + [0] * (
            len(conversation.tokens) - len(before) - len(ids)
        )
        assert all((p == 0.0) == (m == 0) for p, m in zip(conversation.logprobs, conversation.mask, strict=True))


def test_the_incremental_tokens_are_those_of_the_whole_conversation_where_the_template_forgets_nothing(tokenizer):
    r = renderer(tokenizer, TEMPLATES["plain"])
    messages = [*START]
    conversation = r.open(messages, TOOLS)
    for text, calls, new in (
        ("", (CALL,), answers("a", "b")),
        ("So?", (), [Message("user", "yes")]),
        ("", (CALL,), answers("c")),
    ):
        output = text + "".join(render_call(call, format="qwen3_xml") for call in calls)
        reading = conversation.produced(r.encode(output + "<|im_end|>"), None)
        assert (reading.text, reading.calls) == (text, calls)
        conversation.add(new)
        messages += [reading.message(), *new]
        assert conversation.tokens == r.open(messages, TOOLS).tokens


def test_a_pre_opened_thought_is_read_as_reasoning_in_every_turn(tokenizer):
    conversation = renderer(tokenizer, TEMPLATES["thinking opened"]).open(START, TOOLS)
    encode = conversation.renderer.encode
    for _ in range(2):
        reading = conversation.produced(encode("hm</think>\n\nHello<|im_end|>"), None)
        assert (reading.reasoning, reading.text) == ("hm", "Hello")
        conversation.add([Message("user", "and?")])
    closed = renderer(tokenizer, TEMPLATES["thinking closed"]).open(START, TOOLS)
    assert closed.produced(encode("Hello<|im_end|>"), None).text == "Hello"


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("end", ["<|im_end|>", ""], ids=["closed", "cut off"])
def test_after_a_turn_to_which_nobody_answered_the_next_one_opens(tokenizer, name, end):
    talk = renderer(tokenizer, TEMPLATES[name]).open(START, TOOLS)
    opening = talk.renderer.decode(talk.tokens).split("A digger, please.")[1]
    talk.produced(talk.renderer.encode(f"hm{end}"), None)
    before = len(talk.tokens)
    talk.add([])
    closing = "" if end else "<|im_end|>"
    assert talk.renderer.decode(talk.tokens[before:]) == closing + opening.removeprefix("<|im_end|>")
    assert sum(talk.mask[before:]) == 0


def test_a_turn_that_ends_in_another_stop_token_is_closed_as_the_template_would(tokenizer):
    r = renderer(tokenizer, TEMPLATES["plain"])
    conversation = r.open(START, ())
    assert conversation.produced(r.encode("Hello<|endoftext|>"), None).text == "Hello"
    conversation.add([Message("user", "hi")])
    assert "Hello<|endoftext|><|im_end|>\n<|im_start|>user\nhi" in r.decode(conversation.tokens)


def test_the_cached_prefix_gives_the_tokens_of_a_fresh_rendering(tokenizer):
    warm = renderer(tokenizer, TEMPLATES["plain"])
    for query in ("A digger, please.", "A saw", "", "system", "You rent machines.", "<|im_end|>\n<|im_start|>x"):
        messages = [*START[:2], Message("user", query)]
        assert warm.open(messages, TOOLS).tokens == renderer(tokenizer, TEMPLATES["plain"]).open(messages, TOOLS).tokens
    assert warm._prefixes


CONTENT = st.text(max_size=20) | st.sampled_from(["<|im_end|>", "<think>", "<tool_call>", " a ", "\n\n", "QZ7"])


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 499), max_size=12), st.lists(CONTENT, min_size=1, max_size=3)), max_size=4
    )
)
def test_whatever_tokens_are_produced_the_next_turn_extends_them(tokenizer, turns):
    tokenizer.chat_template = TEMPLATES["plain"]
    conversation = Renderer(tokenizer, format="qwen3_xml").open(START, TOOLS)
    for ids, texts in turns:
        before = list(conversation.tokens)
        conversation.produced(ids, None)
        conversation.add(answers(*texts))
        assert conversation.tokens[: len(before) + len(ids)] == before + ids
        assert conversation.renderer.decode(conversation.tokens).endswith("<|im_start|>assistant\n")


def test_a_step_that_does_not_extend_names_the_turn_and_the_token(tokenizer):
    forgets = shaped(FORGETS)
    conversation = renderer(tokenizer, forgets).open([Message("user", "hi")], ())
    conversation.produced([9, 10], None)
    with pytest.raises(RenderMismatch, match=f"turn 1: token {len(conversation.tokens) + 1} should be") as caught:
        conversation.add([Message("user", "x")])
    assert caught.value.turn == 1


def test_tokens_that_merge_across_the_end_of_the_turn_are_a_mismatch(tokenizer):
    glued = "{% for m in messages %}{{ 'ays' + m.role + m.content + ' d' }}{% endfor %}"
    sticky = renderer(tokenizer, glued + "{% if add_generation_prompt %}ays assistant{% endif %}")
    conversation = sticky.open([Message("user", "hi")], ())
    conversation.produced([9, 10], None)
    with pytest.raises(RenderMismatch, match="turn 1: token"):
        conversation.add([Message("user", "x")])


def test_a_template_without_tools_is_refused_when_there_are_tools(tokenizer):
    r = renderer(tokenizer, "{% for m in messages %}{{ '<|im_start|>' + m.content + '<|im_end|>' }}{% endfor %}")
    assert r.open(START, ()).tokens
    with pytest.raises(UserError, match="does not show tools"):
        r.open(START, TOOLS)


def test_a_template_that_refuses_the_messages_says_so(tokenizer):
    r = renderer(tokenizer, shaped(TOOL_NEEDS_CALL))
    with pytest.raises(UserError, match=r"refuses the messages \(tool\): tool first"):
        r.open(answers("x"), ())


def test_logprobs_must_be_as_many_as_tokens(tokenizer):
    with pytest.raises(ValueError, match="2 tokens but 1 logprobs"):
        renderer(tokenizer, TEMPLATES["plain"]).open(START, ()).produced([1, 2], [0.1])
