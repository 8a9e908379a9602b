"""The forecast of a training against a training that is simulated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbexp.selection.happened import Pool, compare, generated, metrics, summary

SIZE, WANTED, ROUNDS = 8, 8, 4


def play(rates: np.ndarray, updates: int, rng: np.random.Generator, gain: float = 0.0) -> dict[int, dict[str, float]]:
    """Metrics of updates that draw tasks evenly, while the policy's log-odds rise by `gain` with each."""
    steps: dict[int, dict[str, float]] = {0: {"train/validation_pass_rate": 0.5}}
    odds = np.log(rates / (1 - rates))
    for step in range(1, updates + 1):
        now = 1 / (1 + np.exp(-(odds + gain * step)))
        mixed, passes, groups = 0, 0, 0
        while mixed < WANTED and groups < WANTED * ROUNDS:
            k = rng.binomial(SIZE, rng.choice(now))
            mixed, passes, groups = mixed + (0 < k < SIZE), passes + k, groups + 1
        steps[step] = {
            "train/groups/generated": float(groups),
            "train/groups/mixed": float(mixed),
            "train/reward_mean": passes / groups / SIZE,
        }
    return steps


def pool(rates: np.ndarray, rng: np.random.Generator, n: int = 8) -> Pool:
    k = rng.binomial(n, rates)
    return Pool.of(k + 0.5, n - k + 0.5, group_size=SIZE, groups_per_update=WANTED, refill_rounds=ROUNDS)


def test_a_policy_that_does_not_change_does_what_was_forecast() -> None:
    rng = np.random.default_rng(1)
    rates = rng.beta(0.5, 0.5, 3000)
    found = summary(compare(pool(rates, rng), play(rates, 400, rng)))
    assert found.mixed_rate == pytest.approx(found.mixed_rate_untrained, abs=0.02)
    assert found.mixed_rate_at_reward == pytest.approx(found.mixed_rate_untrained, abs=0.03)
    assert found.thrown_away == pytest.approx(found.thrown_away_untrained, rel=0.1)


def test_of_a_policy_that_learns_only_the_forecast_at_its_reward_stays_right() -> None:
    rng = np.random.default_rng(2)
    rates = rng.beta(0.5, 0.5, 3000)
    updates = compare(pool(rates, rng), play(rates, 200, rng, gain=0.015))
    late = summary(updates[-50:])
    assert late.mixed_rate is not None and late.mixed_rate_at_reward is not None
    assert late.mixed_rate < late.mixed_rate_untrained - 0.15
    assert late.mixed_rate_at_reward == pytest.approx(late.mixed_rate, abs=0.05)


@pytest.mark.parametrize(
    ("rate", "wanted", "most"), [(0.9, 4, 16), (0.5, 8, 32), (0.1, 8, 32), (0.3, 1, 3), (1.0, 5, 5)]
)
def test_the_number_of_groups_is_the_mean_of_a_bounded_negative_binomial(rate: float, wanted: int, most: int) -> None:
    rng = np.random.default_rng(3)
    draws = np.minimum(rng.negative_binomial(wanted, rate, 200_000) + wanted, most) if rate < 1 else np.array([wanted])
    assert generated(rate, wanted, most) == pytest.approx(draws.mean(), rel=0.01)
    assert generated(0.0, wanted, most) == most


@settings(max_examples=40)
@given(st.lists(st.integers(0, 8), min_size=1, max_size=20), st.floats(0.02, 0.98))
def test_posteriors_are_moved_to_a_mean_and_keep_their_order(passes: list[int], mean: float) -> None:
    alpha = np.array(sorted(set(passes))) + 0.5
    one = Pool.of(alpha, 9.0 - alpha, group_size=8, groups_per_update=2, refill_rounds=4)
    rates = one.rates_at(mean)
    assert float(one.weights @ rates.mean(axis=1)) == pytest.approx(mean, abs=1e-6)
    assert (np.diff(rates, axis=0) >= 0).all() and (np.diff(rates, axis=1) >= 0).all()
    own = float(one.weights @ (alpha / 9.0))  # nothing is moved: the closed form and the points agree
    assert one.expected(own).mixed_rate == pytest.approx(one.expected().mixed_rate, abs=2e-3)


def test_what_is_not_recorded_is_none_and_failed_groups_are_no_verdict() -> None:
    one = Pool.of([4.5], [4.5], group_size=8, groups_per_update=2, refill_rounds=4)
    (update,) = compare(one, {0: {"x": 1.0}, 3: {"train/mixed_group_rate": 0.5}})
    assert (update.step, update.mixed_rate, update.thrown_away, update.at_reward) == (3, None, None, None)
    assert set(metrics(update)) == {"train/forecast/mixed_group_rate", "train/forecast/thrown_away_attempts"}
    row = {"train/groups/generated": 5.0, "train/groups/mixed": 2.0, "train/refilled/system_error_groups": 1.0}
    (update,) = compare(one, {1: row | {"train/reward_mean": 0.5}})
    assert update.mixed_rate == 0.5 and update.thrown_away == 24
    assert update.at_reward is not None and update.at_reward.mixed_rate == pytest.approx(
        update.untrained.mixed_rate, abs=2e-3
    )
    assert len(metrics(update)) == 4
