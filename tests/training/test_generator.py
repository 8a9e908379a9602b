from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")

from tbexp.config.schema import Sampling
from tbexp.errors import WorldError
from tbexp.policy.policy import Usage
from tbexp.training.agent_loop import Generator, end_tokens

pytestmark = pytest.mark.train


def generated(tokens: list[int], max_tokens: int) -> Any:
    async def ask(**_: Any) -> Any:
        # verl's vLLM server calls every end `completed`
        return SimpleNamespace(
            token_ids=tokens, log_probs=[0.0] * len(tokens), stop_reason="completed", extra_fields={}
        )

    generator = Generator(ask, frozenset({2}))
    return asyncio.run(generator([5], max_tokens=max_tokens, session="a", seed=1, sampling=Sampling()))


@pytest.mark.parametrize(
    ("tokens", "finish"), [([7, 2], "stop"), ([7, 7, 2], "stop"), ([7, 7, 7], "length"), ([7], "length"), ([2], "stop")]
)
def test_a_completion_has_stopped_when_its_last_token_ends_it(tokens: list[int], finish: str) -> None:
    assert generated(tokens, 3).finish == finish


def test_an_answer_without_tokens_is_the_worlds_failure() -> None:
    with pytest.raises(WorldError):
        generated([], 3)


@pytest.mark.parametrize(("own", "ends"), [(None, {2}), (0, {0, 2}), ([0, 3], {0, 2, 3})])
def test_the_models_own_end_tokens_count_too(own: Any, ends: set[int], tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({} if own is None else {"eos_token_id": own}))
    assert end_tokens(str(tmp_path), 2) == ends


@pytest.mark.parametrize("error", [None, WorldError("user_endpoint", "it is gone")])
def test_what_user_and_judge_spent_is_noted_of_an_attempt_that_ended_and_of_one_that_the_world_failed(
    error: WorldError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tbexp.training import episode_loop

    config = SimpleNamespace(model=SimpleNamespace(max_context=100), policy=SimpleNamespace(limits=None))
    talk = SimpleNamespace(tokens=[1, 2], mask=[0, 1], logprobs=[0.0, -1.0], prompt_length=1)

    async def opened(*_: Any) -> Any:
        return SimpleNamespace(config=config, world=None, tasks={"task": None}, renderer=None)

    async def run_attempt(*_: Any, **__: Any) -> Any:
        used = {"user": Usage(prompt_tokens=30, completion_tokens=4), "judge": Usage(prompt_tokens=7)}
        return SimpleNamespace(
            system_error=error, others=used, reward=1.0, turns=1, finish_reason="done", seconds={"total": 1.0}
        )

    monkeypatch.setattr(episode_loop, "opened", opened)
    monkeypatch.setattr(episode_loop, "run_attempt", run_attempt)
    monkeypatch.setattr(episode_loop, "TokenPolicy", lambda *_: SimpleNamespace(conversation=talk))
    loop = object.__new__(episode_loop.EpisodeLoop)
    loop.plan, loop.tokenizer, loop.session = {}, None, 0
    generator = Generator(SimpleNamespace(), frozenset())  # type: ignore[arg-type]
    playing = loop.play("task", seed=1, generate=generator, sampling=Sampling())
    if error is None:
        assert asyncio.run(playing).reward == 1.0
    else:
        with pytest.raises(WorldError):
            asyncio.run(playing)
    assert generator.others == {
        "user_prompt_tokens": 30,
        "user_completion_tokens": 4,
        "judge_prompt_tokens": 7,
        "judge_completion_tokens": 0,
    }
