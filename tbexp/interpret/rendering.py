"""A conversation as tokens that only ever grow: the prompt, what the policy produced, what others said since.

Decided here: how new messages are appended so that the tokens of a turn begin with all tokens of the turn before plus
what the model produced. Rendering the whole conversation anew would not give that (templates drop reasoning of
earlier turns, and decoded text need not encode back to the same tokens). So the template renders only the new
messages, behind a fixed dummy conversation that ends in an assistant turn, and what follows that turn is the
difference. What users, tools and earlier turns of the agent say never becomes a special token, whatever it spells
(spelling.py); system messages and tools are the experimenter's own and may. Left to others: producing tokens (policy),
and what the text means (reading.py).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from tbexp.errors import UserError
from tbexp.interpret.messages import Message, Reading, ToolCall, ToolSpec
from tbexp.interpret.reading import THINK_OPEN, read
from tbexp.interpret.spelling import Spelling

_SENTINEL = "QZ7dummyQZ7"  # a text that neither templates nor conversations contain
_PROBE = 'He said: a 12.5 m digger,\n\t{"k": ["x y", null]}'
_PREFIXES_KEPT = 32  # system prompts with their tools; a dataset has one per scenario


class RenderMismatch(Exception):
    """Rendered tokens do not continue the tokens that are already there.

    turn: how many completions the conversation has. position: index of the first token that differs.
    """

    def __init__(self, turn: int, position: int, expected: str, got: str):
        self.turn, self.position, self.expected, self.got = turn, position, expected, got
        super().__init__(f"turn {turn}: token {position} should be {expected} but is {got}")

    def __reduce__(self) -> tuple[type[RenderMismatch], tuple[int, int, str, str]]:
        return type(self), (self.turn, self.position, self.expected, self.got)


class Renderer:
    """Renders conversations with one tokenizer's chat template; shared by all episodes of a process.

    tokenizer: a fast transformers tokenizer that has a chat template; UserError when it loses text. template_options:
    more arguments of the template, such as `enable_thinking`.
    """

    def __init__(self, tokenizer: Any, *, format: str, template_options: Mapping[str, Any] | None = None):
        self.tokenizer = tokenizer
        self.format = format
        self._options = dict(template_options or {})
        self._prefixes: OrderedDict[str, list[int]] = OrderedDict()
        self._dummies: dict[str, list[int]] = {}
        self._merges_systems: dict[bool, bool] = {}
        self._shows_tools = False
        special = sorted((t for t in tokenizer.get_added_vocab() if t), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special))) if special else None
        self._spelling = Spelling(tokenizer)
        back = self.decode(self.encode(_PROBE))
        if back.strip() != _PROBE:  # as happens when transformers takes the tokenizer for one of another class
            raise UserError(f"{type(tokenizer).__name__} does not give back the text that it encodes: {back[:60]!r}")
        self.end_text, self.end_ids = self._end_of_turn()
        self._ends = {tuple(self.end_ids)}
        if tokenizer.eos_token_id is not None:
            self._ends.add((tokenizer.eos_token_id,))
        if tokenizer.pad_token_id is not None:  # base models of the Qwen family stop with it
            self._ends.add((tokenizer.pad_token_id,))

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> TokenConversation:
        """The conversation up to the first completion: all messages and the generation prompt, tools included.

        UserError when the template refuses the messages or does not show the tools.
        """
        tools = tuple(tools)
        text = self._template(self._lead(messages, bool(tools)), tools)
        if tools and not self._shows_tools:
            if _SENTINEL not in self._template([Message("user", "x")], (ToolSpec(_SENTINEL, "x"),)):
                raise UserError("the chat template does not show tools, so the agent would have none")
            self._shows_tools = True
        return TokenConversation(self, tools, self._encode_opening(text, messages), text.rstrip().endswith(THINK_OPEN))

    def encode(self, text: str) -> list[int]:
        """The tokens of a text that already carries its special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones included, exactly as they spell it."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def without_end(self, ids: Sequence[int]) -> tuple[Sequence[int], bool]:
        """The tokens without the end token they may close with, and whether they close as the template would."""
        for end in self._ends:
            if end and tuple(ids[-len(end) :]) == end:
                return ids[: -len(end)], end == tuple(self.end_ids)
        return ids, False

    def step(self, messages: Sequence[Message], turn: int, length: int) -> tuple[list[int], bool]:
        """The tokens that follow the end token of an assistant turn, and whether they leave `<think>` open.

        Without messages they are those that open the assistant's next turn.
        """
        answered = [m for m in messages if m.role == "tool"]
        if messages and messages[0].role == "tool":
            calls = tuple(
                ToolCall(m.name or "tool", {"x": _SENTINEL}, m.call_id or f"call_{i}") for i, m in enumerate(answered)
            )
            before = Message("assistant", "", calls)
        else:
            before = Message("assistant", _SENTINEL)
        text = self._template([Message("user", "x"), before, *messages], ())
        cut = text.find(self.end_text, _after_sentinels(text, max(1, len(before.calls)))) if _SENTINEL in text else -1
        if cut < 0:
            raise RenderMismatch(turn, length, f"the end token {self.end_text!r} of the assistant's turn", "missing")
        cut += len(self.end_text)
        start = self._dummy(text[:cut])
        whole = self._spelling.encode(text)
        if whole[: len(start)] != start:
            at = next(
                (i for i, (a, b) in enumerate(zip(start, whole, strict=False)) if a != b), min(len(start), len(whole))
            )
            wanted, got = (self.decode(ids[at : at + 1]) if at < len(ids) else "nothing" for ids in (start, whole))
            raise RenderMismatch(turn, length - len(start) + at, repr(wanted), repr(got))
        return whole[len(start) :], text.rstrip().endswith(THINK_OPEN)

    def _dummy(self, text: str) -> list[int]:
        ids = self._dummies.get(text)
        if ids is None:
            if len(self._dummies) > 4096:  # tool names and call ids vary; what is dropped is encoded again
                self._dummies.clear()
            ids = self._dummies[text] = self._spelling.encode(text)
        return ids

    def _end_of_turn(self) -> tuple[str, list[int]]:
        """The token (or text) with which the template closes an assistant's turn."""
        text = self._template([Message("user", "x"), Message("assistant", _SENTINEL)], (), prompt=False)
        closing = text.partition(_SENTINEL)[2]
        first = self._special.match(closing) if self._special else None
        end = first.group() if first else closing.strip() or str(self.tokenizer.eos_token or "")
        if not end:
            raise UserError("the chat template closes an assistant's turn with no token, so turns cannot be told apart")
        return end, self.encode(end)

    def _encode_opening(self, text: str, messages: Sequence[Message]) -> list[int]:
        for prefix, ids in reversed(self._prefixes.items()):
            if text.startswith(prefix):
                self._prefixes.move_to_end(prefix)
                return ids + self._spelling.encode(text[len(prefix) :])
        whole = self._spelling.encode(text)
        first = next((m.content for m in messages if m.role != "system" and m.content.strip()), None)
        place = text.rfind(self._spelling.cover(first.strip())) if first else -1
        cut = (
            max((m.start() for m in self._special.finditer(text, 0, place)), default=0)
            if place > 0 and self._special
            else 0
        )
        if cut:
            ids = self._spelling.encode(text[:cut])
            if ids + self._spelling.encode(text[cut:]) == whole:  # special tokens are cut out before anything is merged
                self._prefixes[text[:cut]] = ids
                if len(self._prefixes) > _PREFIXES_KEPT:
                    self._prefixes.popitem(last=False)
        return whole

    @property
    def joins_systems(self) -> bool:
        """Whether several leading system messages become one, since the template takes only one."""
        return self._must_merge(False)

    def _lead(self, messages: Sequence[Message], with_tools: bool) -> Sequence[Message]:
        """The messages, the leading system ones joined by a blank line where the template takes only one."""
        count = next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))
        if count < 2 or not self._must_merge(with_tools):
            return messages
        return [Message("system", "\n\n".join(m.content for m in messages[:count])), *messages[count:]]

    def _must_merge(self, with_tools: bool) -> bool:
        if with_tools not in self._merges_systems:
            parts = [_SENTINEL + "a", _SENTINEL + "b"]
            tools = (ToolSpec("x", "x"),) if with_tools else ()
            try:
                text = self._template([*(Message("system", part) for part in parts), Message("user", "x")], tools)
            except UserError:
                text = ""
            self._merges_systems[with_tools] = not all(part in text for part in parts)
        return self._merges_systems[with_tools]

    def _covered(self, message: Message) -> dict[str, Any]:
        """A message as the template takes it, where nothing that others wrote spells a special token."""
        chat = chat_message(message)
        if message.role == "system":
            return chat
        return {key: value if key == "role" else self._spelling.cover_all(value) for key, value in chat.items()}

    def _template(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, prompt: bool = True) -> str:
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    [self._covered(m) for m in messages],
                    tools=[chat_tool(t) for t in tools] or None,
                    add_generation_prompt=prompt,
                    tokenize=False,
                    **self._options,
                )
            )
        except Exception as problem:  # whatever a template raises, it is the template that refuses
            roles = ", ".join(m.role for m in messages)
            raise UserError(f"the chat template refuses the messages ({roles}): {problem}") from problem


class TokenConversation:
    """One episode's tokens. `mask` is 1 where the policy produced the token; `logprobs` is 0.0 elsewhere."""

    def __init__(self, renderer: Renderer, tools: tuple[ToolSpec, ...], prompt: list[int], thinking_open: bool):
        self.renderer = renderer
        self.tools = tools
        self.tokens = prompt
        self.mask = [0] * len(prompt)
        self.logprobs = [0.0] * len(prompt)
        self.prompt_length = len(prompt)
        self.turn = 0
        self.thinking_open = thinking_open
        self.said = ""  # the last output, without its end token
        self._closed = False  # whether the assistant's turn ends in the template's end token

    def produced(self, ids: Sequence[int], logprobs: Sequence[float] | None) -> Reading:
        """Append what the model produced, end token included if it produced one, and read it."""
        if logprobs is not None and len(logprobs) != len(ids):
            raise ValueError(f"{len(ids)} tokens but {len(logprobs)} logprobs")
        self.tokens.extend(ids)
        self.mask.extend([1] * len(ids))
        self.logprobs.extend([0.0] * len(ids) if logprobs is None else logprobs)
        self.turn += 1
        said, self._closed = self.renderer.without_end(ids)
        self.said = self.renderer.decode(said) if len(said) else ""
        return read(self.said, format=self.renderer.format, tools=self.tools, thinking_open=self.thinking_open)

    def add(self, messages: Sequence[Message]) -> None:
        """Append tool answers and user messages, and the generation prompt; close the assistant's turn if open."""
        closing = [] if self._closed else self.renderer.end_ids
        ids, self.thinking_open = self.renderer.step(messages, self.turn, len(self.tokens) + len(closing))
        added = [*closing, *ids]
        self.tokens.extend(added)
        self.mask.extend([0] * len(added))
        self.logprobs.extend([0.0] * len(added))
        if not self.turn:
            self.prompt_length = len(self.tokens)
        self._closed = False


def chat_message(message: Message) -> dict[str, Any]:
    """A message in the shape that chat templates take."""
    chat: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        chat["reasoning_content"] = message.reasoning
    if message.calls:
        chat["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
            for c in message.calls
        ]
    if message.role == "tool":
        chat |= {"name": message.name, "tool_call_id": message.call_id}
    return chat


def chat_tool(tool: ToolSpec) -> dict[str, Any]:
    """A tool in the shape that chat templates and OpenAI-compatible endpoints take."""
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
    }


def _after_sentinels(text: str, count: int) -> int:
    place = 0
    for _ in range(count):
        found = text.find(_SENTINEL, place)
        if found < 0:
            break
        place = found + len(_SENTINEL)
    return place
