from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tbexp.config.schema import Sampling
from tbexp.interpret.messages import Message, Reading
from tbexp.policy import Generated, OutOfContext, ScriptedPolicy, TokenPolicy, Usage
from tbexp.policy.tokens import turn_seed

END = 1


class Words:
    """A stand-in for a renderer: a token is a word of a message, and a turn ends with the token 1."""

    format = "qwen3_xml"
    tools = ()

    def open(self, messages: Sequence[Message], tools: Any) -> Talk:
        return Talk([len(word) + 10 for m in messages for word in m.content.split()])

    def encode(self, text: str) -> list[int]:
        return [len(word) + 10 for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


class Talk:
    thinking_open, said = False, ""

    def __init__(self, tokens: list[int]):
        self.tokens, self.turn, self.logprobs = tokens, 0, [0.0] * len(tokens)

    def produced(self, ids: Sequence[int], logprobs: Sequence[float] | None) -> Reading:
        self.tokens.extend(ids)
        self.logprobs.extend(logprobs or [0.0] * len(ids))
        self.turn += 1
        return Reading(text=f"turn {self.turn}", reasoning="a b c" if self.turn == 2 else None)

    def add(self, messages: Sequence[Message]) -> None:
        new = [len(word) + 10 for m in messages for word in m.content.split()]
        self.tokens.extend(new)
        self.logprobs.extend([0.0] * len(new))


class Recorder:
    """Says four tokens, fewer when it may not."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    async def __call__(self, ids: list[int], **options: Any) -> Generated:
        self.calls.append({"ids": list(ids), **options})
        made = [50, 51, 52, END][: options["max_tokens"]]
        return Generated(made, [-0.5] * len(made), "stop" if made[-1] == END else "length")


def policy(generate: Any, max_context: int = 100, **options: Any) -> TokenPolicy:
    return TokenPolicy(Words(), generate, Sampling(max_tokens=10), max_context, **options)  # type: ignore[arg-type]


def test_a_turn_continues_the_tokens_of_the_turn_before_and_tells_what_it_cost() -> None:
    generate = Recorder()

    async def talk() -> list[Any]:
        session = policy(generate).open([Message("user", "one two three")], (), seed=9)
        return [await session.act([]), await session.act([Message("tool", "four five")])]

    first, second = asyncio.run(talk())
    assert generate.calls[1]["ids"] == [*generate.calls[0]["ids"], 50, 51, 52, END, 14, 14]
    assert first.usage == Usage(3, 0, 4, 0)
    assert second.usage == Usage(9, 7, 4, 3)
    assert (first.finish, first.raw, second.reading.text) == ("stop", "50 51 52 1", "turn 2")


def test_turns_share_a_session_and_draw_with_seeds_of_their_own() -> None:
    generate, released = Recorder(), []

    async def talk() -> None:
        use = policy(generate, release=released.append)
        for seed in (1, 1, 2):
            session = use.open([Message("user", "hi")], (), seed=seed)
            await session.act([])
            await session.act([Message("user", "more")])
            await session.close()

    asyncio.run(talk())
    seeds, sessions = [c["seed"] for c in generate.calls], [c["session"] for c in generate.calls]
    assert seeds[:2] == seeds[2:4] and len(set(seeds)) == 4 and all(0 <= s < 2**31 for s in seeds)
    assert len(set(sessions)) == 3 and sessions[::2] == sessions[1::2] == released


def test_a_completion_ends_where_the_context_does_and_the_next_turn_is_out_of_it() -> None:
    generate = Recorder()

    async def talk() -> Any:
        use = policy(generate, max_context=5)
        session = use.open([Message("user", "one two three")], (), seed=0)
        cut = await session.act([])
        with pytest.raises(OutOfContext, match="7 tokens"):
            await session.act([Message("user", "and more")])
        assert use.conversation is session.conversation
        return cut, len(session.conversation.tokens)

    cut, length = asyncio.run(talk())
    assert (cut.finish, cut.usage.completion_tokens, length) == ("length", 2, 7)
    assert len(generate.calls) == 1


def test_the_seed_of_a_turn_is_fixed_for_ever() -> None:
    assert [turn_seed(7, turn) for turn in range(3)] == SEEDS


SEEDS = [859186594, 2074974806, 717690303]  # stored attempts depend on them


def test_a_scripted_policy_says_its_script_and_then_nothing() -> None:
    readings = [Reading("a"), Reading("b")]

    async def talk(use: ScriptedPolicy) -> list[str]:
        session = use.open([Message("user", "x")], (), seed=0)
        said = [(await session.act([])).reading.text for _ in range(3)]
        await use.close()
        return said

    assert asyncio.run(talk(ScriptedPolicy(readings))) == ["a", "b", ""]
    chosen = ScriptedPolicy(lambda messages, seed: readings if messages[0].content == "x" else [])
    assert asyncio.run(talk(chosen)) == ["a", "b", ""]
