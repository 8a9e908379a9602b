from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbexp.selection import posterior
from tbexp.selection.adaptive import StoppingRule, compare_with_full, decided

TASKS = 20_000


def rates(population: str, rng: np.random.Generator) -> np.ndarray:
    if population == "u-shaped":
        return rng.beta(0.5, 0.5, TASKS)
    if population == "uniform":
        return rng.random(TASKS)
    return np.where(rng.random(TASKS) < 0.6, rng.beta(0.3, 20, TASKS), rng.random(TASKS))


@pytest.mark.parametrize(
    ("population", "most_attempts"), [("u-shaped", 0.75), ("uniform", 0.75), ("hopeless-heavy", 0.83)]
)
@pytest.mark.parametrize("budget", [8, 16])
def test_fewer_attempts_give_nearly_all_of_the_full_decisions(
    population: str, most_attempts: float, budget: int
) -> None:
    rng = np.random.default_rng(budget)
    outcomes = rng.random((TASKS, budget)) < rates(population, rng)[:, None]
    found = compare_with_full(outcomes, StoppingRule.of(budget))
    assert found.attempts_share <= most_attempts
    assert found.equal_share >= 0.97


def test_the_band_at_the_stop_is_the_decision_of_the_rule() -> None:
    rule = StoppingRule.of(8)
    for n in range(3, 9):
        k = np.arange(n + 1)
        stopped = rule.decided(k, np.full(n + 1, n))
        kept_by_band = np.isin(posterior(np.full(n + 1, n), k).band, [1, 2, 3])
        assert (rule.kept(k, np.full(n + 1, n)) == kept_by_band)[stopped].all()


@settings(max_examples=30)
@given(st.integers(1, 24), st.floats(0.5, 1.0), st.integers(0, 5))
def test_it_never_needs_more_than_the_budget_and_level_one_is_never_wrong(budget: int, level: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    outcomes = rng.random((300, budget)) < rng.random((300, 1))
    found = compare_with_full(outcomes, StoppingRule.of(budget, level=level))
    assert 0.0 < found.attempts_share <= 1.0
    certain = compare_with_full(outcomes, StoppingRule.of(budget, level=1.0))
    assert certain.equal_share == 1.0
    assert certain.attempts_share >= found.attempts_share


@settings(max_examples=20)
@given(st.integers(1, 20))
def test_the_chance_to_be_kept_is_a_martingale(budget: int) -> None:
    table = StoppingRule.of(budget).keep_probability
    for n in range(budget):
        for k in range(n + 1):
            p = (k + 0.5) / (n + 1)
            assert table[n, k] == pytest.approx(p * table[n + 1, k + 1] + (1 - p) * table[n + 1, k], abs=1e-9)


@pytest.mark.parametrize(
    ("k", "n", "level", "done"),
    [
        (1, 3, 1.0, True),  # with one pass and one failure a budget of 8 cannot leave the kept bands
        (0, 3, 0.93, False),
        (0, 7, 0.93, True),
        (0, 7, 0.95, False),
        (1, 2, 1.0, False),  # too few attempts
        (0, 8, 1.0, True),
    ],
)
def test_single_tasks(k: int, n: int, level: float, done: bool) -> None:
    assert decided(k, n, 8, level=level) is done
