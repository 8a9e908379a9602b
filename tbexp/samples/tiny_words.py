"""The tiny base policy's tokenizer and chat template.

Decided here: what is one token. Every word, identifier and amount of the domain is one, wherever it stands, so that
copying a value from the conversation into a call is a single step of attention. What always comes together is one too:
the lines of the system messages, and what surrounds the values of a call. A prompt then takes a fifth of the tokens,
which training pays for with every attempt, and each decision (which tool, which value) is one draw. Any other text is
spelled in bytes, without loss.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from tbexp.interpret.messages import Message
from tbexp.interpret.reading import render_call
from tbexp.interpret.rendering import chat_message, chat_tool
from tbexp.samples.conversations import demonstrations
from tbexp.samples.situation import AMOUNTS, CUSTOMERS, INVOICES, MACHINES, RENTALS, TICKETS
from tbexp.samples.speech import POLICY, SYSTEM
from tbexp.samples.tools import TOOLS

END, START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
ROLES = ("system", "user", "assistant", "tool")
IDENTIFIER = r"[A-Z]{1,2}-?\d+|\d+| (?=[A-Z]{1,2}-?\d)"  # or the blank before one, where no word takes it
# A word takes the blank before it, and the one behind it if an identifier follows.
WORD = r" ?[A-Za-z_']+(?: (?=[A-Z]{0,2}-?\d))?"
DEMONSTRATIONS = 2000  # how many are searched for words

TEMPLATE = (
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
    "{%- if loop.first and tools %}"
    "{%- for t in tools %}{%- set f = t.function %}{{- '\n' + f.name }}("
    "{%- for name, p in (f.parameters.properties or {}).items() %}{{- name }}"
    "{%- if p.enum %}:{{- p.enum | join('|') }}{%- elif p.type and p.type != 'string' %}:{{- p.type }}{%- endif %}"
    "{%- if not loop.last %},{%- endif %}{%- endfor %}){%- endfor %}"
    "{%- endif %}"
    "{%- if m.tool_calls %}{%- for c in m.tool_calls %}"
    "{{- '<tool_call>\n<function=' + c.function.name + '>\n' }}"
    "{%- for name, value in c.function.arguments.items() %}"
    "{{- '<parameter=' + name + '>\n' }}{{- value if value is string else value | tojson }}{{- '\n</parameter>\n' }}"
    "{%- endfor %}"
    "{{- '</function>\n</tool_call>' }}{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


def make_tokenizer() -> Any:
    """A fast tokenizer with the chat template, the same in every build."""
    plain = tokenizer_of(())
    opening = [chat_message(Message("system", text)) for text in (SYSTEM, POLICY)]
    prompt = plain.apply_chat_template(opening, tools=[chat_tool(tool) for tool in TOOLS], tokenize=False)
    blocks = re.split(r"<\|im_start\|>\w+\n|<\|im_end\|>\n?", prompt)
    return tokenizer_of(line for block in blocks for line in re.findall(r"[^\n]+\n?", block))


def tokenizer_of(lines: Iterable[str]) -> Any:
    """The tokenizer for which each of these lines is one token."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    whole = [*lines, *fragments()]
    longest_first = sorted(whole, key=lambda text: (-len(text), text))
    pieces = "|".join([*map(re.escape, longest_first), IDENTIFIER, WORD, r"\s+|."])
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {piece for text in (*whole, *corpus()) for piece, _ in split.pre_tokenize_str(text)}
    # A word costs less than any spelling of it, so it is always taken whole.
    vocabulary = [(end, 0.0) for end in (END, START, TURN_END)] + [(byte, -100.0) for byte in alphabet]
    vocabulary += [(word, -1.0) for word in sorted(words - set(alphabet))]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=None, byte_fallback=False))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(end, special=True, normalized=False) for end in (END, START, TURN_END)])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END,
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


def fragments() -> list[str]:
    """What surrounds the values of a call, and the names of the roles."""
    close = "\n</parameter>\n"
    found = [f"{role}\n" for role in ROLES] + [close + "</function>\n</tool_call>", " <DONE>"]
    for tool in TOOLS:
        first, *others = tool.input_schema["properties"]
        found.append(f"<tool_call>\n<function={tool.name}>\n<parameter={first}>\n")
        found += [f"{close}<parameter={name}>\n" for name in others]
    return list(dict.fromkeys(found))


@cache
def corpus() -> tuple[str, ...]:
    """Texts that contain every word of the domain: what is said in demonstrations, all identifiers and amounts."""
    ranges = (CUSTOMERS, MACHINES, RENTALS, INVOICES, TICKETS, AMOUNTS, range(100))
    texts = [str(value) for each in ranges for value in each] + [*ROLES, "true", "false", "null"]
    texts += [f"{kind}-{number}" for kind in ("AP", "TK", "DM") for number in range(3)]
    for shown in itertools.islice(demonstrations(0, 0.5), DEMONSTRATIONS):
        for message in shown.messages:
            texts.append(message.content)
            texts += [render_call(call, format="qwen3_xml", tools=shown.tools) for call in message.calls]
    return tuple(dict.fromkeys(texts))
