from __future__ import annotations

import math

import numpy as np
import pytest

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tbexp.policy.sampling import Draw, draw_tokens, uniforms  # noqa: E402

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -30.0])


def drawn(count: int, **how: float) -> list[int]:
    draws = [Draw(seed=5, number=i, **{"temperature": 1.0, "top_p": 1.0, "top_k": -1, **how}) for i in range(count)]  # type: ignore[arg-type]
    return draw_tokens(LOGITS.expand(count, -1), draws)[0]


def test_numbers_are_uniform_and_those_of_neighbouring_seeds_and_positions_are_unrelated() -> None:
    grid = uniforms(np.repeat(np.arange(300), 300), np.tile(np.arange(300), 300)).reshape(300, 300)
    assert grid.min() >= 0.0 and grid.max() < 1.0
    assert abs(grid.mean() - 0.5) < 0.005 and abs(grid.var() - 1 / 12) < 0.002
    for a, b in ((grid[:, :-1], grid[:, 1:]), (grid[:-1], grid[1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.015
    assert len(np.unique(grid)) == grid.size


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_the_distribution_says(temperature: float) -> None:
    count = 20_000
    shares = np.bincount(drawn(count, temperature=temperature), minlength=5) / count
    assert shares == pytest.approx((LOGITS / temperature).softmax(-1).numpy(), abs=0.015)


@pytest.mark.parametrize(
    ("how", "allowed"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.7}, {0, 1}),
        ({"top_p": 1e-9}, {0}),
        ({"top_k": 2, "top_p": 0.7}, {0}),
        ({"temperature": 0.0}, {0}),
    ],
)
def test_filters_cut_tokens_off(how: dict[str, float], allowed: set[int]) -> None:
    assert set(drawn(500, **how)) == allowed


def test_each_row_has_its_own_filters() -> None:
    rows = [Draw(3, 0, 0.0, 1.0, -1), Draw(3, 1, 1.0, 1.0, 1), Draw(3, 2, 1.5, 0.9, 3), Draw(3, 3, 1.0, 1.0, -1)]
    together = draw_tokens(LOGITS.expand(4, -1), rows)
    apart = [draw_tokens(LOGITS[None], [row]) for row in rows]
    assert together[0] == [tokens[0] for tokens, _ in apart]
    assert together[1] == pytest.approx([logprobs[0] for _, logprobs in apart])


def test_the_logprob_is_the_one_before_the_filters() -> None:
    tokens, logprobs = draw_tokens(LOGITS[None], [Draw(0, 0, 2.0, 1.0, 1)])
    assert tokens == [0]
    assert logprobs[0] == pytest.approx(float((LOGITS / 2).double().log_softmax(-1)[0]), abs=1e-12)
    assert logprobs[0] < math.log(0.9)


def test_a_token_of_no_probability_is_never_drawn() -> None:
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf]).expand(4000, -1)
    assert set(draw_tokens(logits, [Draw(i, 0, 1.0, 1.0, -1) for i in range(4000)])[0]) == {1, 3}
