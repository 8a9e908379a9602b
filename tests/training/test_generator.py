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
