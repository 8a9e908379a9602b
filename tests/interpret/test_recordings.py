"""The corpus of recorded outputs: what is in it, and that all of tbexp's ways to read an output agree on it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tbexp.config.schema import Sampling
from tbexp.interpret import TABLE, Message, Reading, Renderer, ToolSpec, read, rendering
from tbexp.interpret.typing_rules import UNDECLARED
from tbexp.policy import TokenPolicy
from tbexp.policy.tokens import Generated
from tbexp.serving.parity import our_reading
from tbexp.serving.recordings import Recording, read_recordings, read_tools

HERE = Path(__file__).parent / "recordings"
FILES = [HERE / f"{name}.jsonl" for name in ("rules", "tiny", "smollm2")]
REAL = ("tiny", "SmolLM2-135M-Instruct")


@pytest.fixture(scope="module")
def corpus() -> list[Recording]:
    return read_recordings(FILES, model="m", format="qwen3_xml", tools=read_tools(HERE / "tools.json"))


def test_the_corpus_has_300_outputs_and_half_of_them_are_of_real_models(corpus):
    real = [each for each in corpus if each.model in REAL]
    assert len(corpus) >= 300 and 2 * len(real) >= len(corpus)
    assert len({each.id for each in corpus}) == len(corpus)
    for model in REAL:
        made = [each.made for each in corpus if each.model == model]
        assert sum("temperature 1.5" in how for how in made) >= 10, "hot"
        assert sum(how.endswith("length") for how in made) >= 10, "cut off"
        assert any("5 earlier turns" in how or "message 2" in how for how in made), "after many turns"
    assert {each.format for each in real} == {"qwen3_xml", "hermes"}


def test_every_row_of_the_rule_table_and_every_malformed_kind_is_in_the_corpus(corpus):
    cases = Counter(each.id.split("/")[1] for each in corpus if each.id.startswith("table/"))
    wanted = {row.case: len(row.reads) + len(row.refuses) for row in TABLE}
    assert cases == wanted | {case: 1 for case, *_ in UNDECLARED}
    errors = {
        call["error"].partition("could not be read: ")[2].split(" at character")[0]
        for each in corpus
        for call in our_reading(each)["calls"]
        if call.get("error")
    }
    for why in (
        *("<tool_call> must be followed by <function=NAME>", "expected <parameter=KEY> or </function>"),
        *("a parameter has no name", "parameter plot is given twice", "</function> must be followed by </tool_call>"),
        *("it must be a JSON object", "name must be a text", "arguments must be a JSON object", "NaN is no JSON value"),
        *("there is more after the JSON object", "is out of range", "a lone surrogate", "is not closed"),
        "ended before",
    ):
        assert any(why in error for error in errors), why


def test_the_corpus_is_read_as_it_was_when_it_was_recorded():
    rows = [json.loads(line) for file in FILES for line in file.read_text(encoding="utf-8").splitlines()]
    corpus = read_recordings(FILES, model="m", format="qwen3_xml", tools=read_tools(HERE / "tools.json"))
    for row, recording in zip(rows, corpus, strict=True):
        for call in row["reading"]["calls"]:
            if call["error"] is None:
                del call["error"]
        assert our_reading(recording) == row["reading"], row["id"]


# -- training and evaluation


def renderers(byte_level: Any) -> dict[tuple[str, bool], Renderer]:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
    made = {}
    for format in ("qwen3_xml", "hermes"):
        for opened in (False, True):
            tokenizer = byte_level(special)
            tokenizer.chat_template = (
                "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
                "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n" + "<think>\n" * opened + "' }}{% endif %}"
            )
            made[format, opened] = Renderer(tokenizer, format=format)
    return made


def tokens_of(renderer: Renderer, output: str) -> list[int]:
    return [*renderer.encode(output), *renderer.end_ids]


async def read_in_evaluation(renderer: Renderer, recording: Recording) -> Reading:
    """By the policy that probe and evaluate make (pipeline.policies.local), its engine in place of the recording."""

    async def generate(ids: list[int], **_: Any) -> Generated:
        made = tokens_of(renderer, recording.output)
        return Generated(made, [-0.1] * len(made), "stop")

    policy = TokenPolicy(renderer, generate, Sampling(), 100_000)
    session = policy.open([Message("user", "x")], recording.tools, seed=1)
    return (await session.act([])).reading


async def read_in_training(renderer: Renderer, recording: Recording, monkeypatch: Any) -> Reading:
    """By verl's agent loop as training runs it: the rollout server is in place of the recording."""
    from verl.workers.rollout.replica import TokenOutput

    from tbexp.config.schema import Limits
    from tbexp.training import episode_loop
    from tbexp.training.agent_loop import Generator

    heard: list[Reading] = []

    async def ask(**_: Any) -> TokenOutput:
        made = tokens_of(renderer, recording.output)
        return TokenOutput(token_ids=made, log_probs=[-0.1] * len(made), stop_reason="stop", extra_fields={})

    class Config:
        class model:
            max_context = 100_000

        class policy:
            limits = Limits()

    async def opened(*_: Any) -> Any:
        return episode_loop.Place(Config, None, {"task": None}, renderer)  # type: ignore[arg-type]

    async def run_attempt(task: Any, *, policy: Any, **_: Any) -> Any:
        session = policy.open([Message("user", "x")], recording.tools, seed=1)
        heard.append((await session.act([])).reading)

        class Done:
            system_error, reward, turns, finish_reason, seconds, others = None, 0.0, 1, "done", {}, {}

        return Done

    monkeypatch.setattr(episode_loop, "opened", opened)
    monkeypatch.setattr(episode_loop, "run_attempt", run_attempt)
    loop = object.__new__(episode_loop.EpisodeLoop)
    loop.plan, loop.tokenizer, loop.session = {}, None, 0
    played = await loop.play("task", seed=1, generate=Generator(ask, renderer.end_ids), sampling=Sampling())
    assert sum(played.mask) == len(tokens_of(renderer, recording.output))
    return heard[0]


@pytest.mark.train
def test_training_and_evaluation_read_every_recording_alike(corpus, byte_level, monkeypatch):
    pytest.importorskip("verl")
    made = renderers(byte_level)

    async def both() -> None:
        for each in corpus:
            renderer = made[each.format, each.thinking_open]
            wanted = read(each.output, format=each.format, tools=each.tools, thinking_open=each.thinking_open)
            if renderer.decode(renderer.encode(each.output)) != each.output:  # no tokenizer writes a lone surrogate
                continue
            evaluated = await read_in_evaluation(renderer, each)
            trained = await read_in_training(renderer, each, monkeypatch)
            assert evaluated == trained == wanted, each.id

    asyncio.run(both())


@pytest.mark.train
def test_training_and_evaluation_read_with_the_same_code_object():
    pytest.importorskip("verl")
    from tbexp.pipeline import policies
    from tbexp.training import episode_loop

    assert episode_loop.TokenPolicy is policies.TokenPolicy is TokenPolicy
    assert episode_loop.Renderer is rendering.Renderer
    assert rendering.read.__code__ is read.__code__
    names = rendering.TokenConversation.produced.__code__.co_names
    assert "read" in names and rendering.TokenConversation.produced.__globals__["read"] is read


def test_a_recording_without_tools_is_read_with_none():
    assert our_reading(Recording("r", "m", "hermes", "hi", (ToolSpec("a", ""),)))["calls"] == []
