from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbexp.evaluation import mcnemar_exact, paired_difference, pass_at_k, pass_power_k, plug_in_pass_power_k
from tbexp.evaluation.intervals import Resampling, share_interval, task_rate_lower_bound


@pytest.mark.parametrize(("n", "c"), [(n, c) for n in range(1, 7) for c in range(n + 1)])
def test_pass_at_k_and_pass_power_k_count_the_draws_of_k_attempts(n: int, c: int) -> None:
    outcomes = [i < c for i in range(n)]
    for k in range(1, n + 1):
        draws = list(combinations(outcomes, k))
        assert pass_at_k([n], [c], [k])[0, 0] == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-12)
        assert pass_power_k([n], [c], [k])[0, 0] == pytest.approx(sum(map(all, draws)) / len(draws), abs=1e-12)
        assert plug_in_pass_power_k([n], [c], [k])[0, 0] == pytest.approx((c / n) ** k)


@settings(max_examples=50)
@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_pass_at_k_rises_and_pass_power_k_falls_with_k(pair: tuple[int, int]) -> None:
    n, c = pair
    ks = range(1, n + 1)
    at, power = pass_at_k([n], [c], ks)[0], pass_power_k([n], [c], ks)[0]
    assert (np.diff(at) >= -1e-12).all() and (np.diff(power) <= 1e-12).all()
    assert at[0] == pytest.approx(c / n) and power[0] == pytest.approx(c / n)
    assert (at[-1], power[-1]) == (float(c > 0), float(c == n))
    middle = n // 2 + 1
    assert at[middle - 1] == pytest.approx(1 - math.comb(n - c, middle) / math.comb(n, middle), abs=1e-9)


def test_k_beyond_the_attempts_is_unknown() -> None:
    assert np.isnan(pass_at_k([3], [1], [4])[0, 0]) and np.isnan(pass_at_k([0], [0], [1])[0, 0])


@pytest.mark.parametrize(
    ("gained", "lost", "p"), [(0, 0, 1.0), (5, 0, 0.0625), (1, 1, 1.0), (8, 2, 0.109375), (2, 8, 0.109375)]
)
def test_mcnemar_is_the_two_sided_binomial_test_of_the_changed_tasks(gained: int, lost: int, p: float) -> None:
    assert mcnemar_exact(gained, lost) == pytest.approx(p)


def test_the_grouped_bootstrap_agrees_with_resampling_tasks_one_by_one() -> None:
    rng = np.random.default_rng(3)
    passed = rng.integers(0, 5, 60)
    resampling = Resampling.of(np.stack([np.full(60, 4), passed], axis=1), samples=20_000, seed=1)
    values = resampling.columns[:, 1:].astype(float) / 4
    low, high = resampling.interval(values)
    means = (passed / 4)[rng.integers(0, 60, (20_000, 60))].mean(axis=1)
    expected = np.percentile(means, [2.5, 97.5])
    assert [low[0], high[0]] == pytest.approx(expected, abs=0.006)
    assert resampling.mean(values)[0] == pytest.approx(passed.mean() / 4)


def test_the_order_of_tasks_does_not_change_an_interval() -> None:
    counts = np.array([[4, 1], [4, 4], [4, 0], [4, 4]])
    found = [
        Resampling.of(c, samples=500, seed=1).interval(np.array([[0.0], [0.25], [1.0]])) for c in (counts, counts[::-1])
    ]
    assert np.array_equal(found[0], found[1])


def test_an_interval_of_nothing_or_everything_is_no_point() -> None:
    low, high = share_interval(0.0, 48.0)
    assert low == 0.0 and 0.03 < high < 0.08
    low, high = share_interval(48.0, 48.0)
    assert 0.92 < low < 0.97 and high == 1.0


def test_twenty_of_twenty_bounds_a_tasks_own_rate() -> None:
    bound = task_rate_lower_bound(20)
    assert bound**20 == pytest.approx(0.05)


def test_the_paired_difference_keeps_tasks_together() -> None:
    rng = np.random.default_rng(0)
    before = rng.random(200)
    value, low, high = paired_difference(before, before + 0.1)
    assert (value, low, high) == pytest.approx((0.1, 0.1, 0.1))
    value, low, high = paired_difference(np.stack([before, before], axis=1), before + rng.normal(0, 0.1, 200))
    assert low < value < high and high - low < 0.04


@pytest.mark.parametrize(
    ("attempts", "rates"), [(1, (0.5,)), (1, (0.2, 0.9)), (2, (0.1, 0.5, 0.9)), (20, (0.0, 0.5, 1.0))]
)
def test_few_attempts_make_no_task_sure(attempts: int, rates: tuple[float, ...]) -> None:
    """The interval for the same tasks again covers their mean rate, also where no task's own attempts differ."""
    from tbexp.evaluation.intervals import fixed_tasks_interval

    draw = np.random.default_rng(5)
    rate = np.resize(np.array(rates), 48)
    n = np.full(48, float(attempts))
    spans = [fixed_tasks_interval(n, draw.binomial(attempts, rate).astype(float)) for _ in range(400)]
    assert np.mean([low <= rate.mean() <= high for low, high in spans]) >= 0.925


def test_the_interval_of_k_of_k_has_room_for_one_task_that_is_not_sure() -> None:
    """Of a task with the chance q alone, the count lies 1 - q (with chance q) or q from its average."""
    from tbexp.evaluation.intervals import fixed_tasks_every_time_interval

    for tasks, seeds in ((48, 1), (507, 1), (48, 4)):
        attempts = np.full(tasks, 20.0 * seeds)
        passed = np.where(np.arange(tasks) < 20, attempts, 0.0)
        low, high = fixed_tasks_every_time_interval(attempts, passed, 20, 20 / tasks)
        assert 0.979 < seeds * (20 - tasks * low) < 1.0 and 0.979 < seeds * (tasks * high - 20) < 1.0
    for room, enough in ((0.98, True), (0.94, False)):
        q = np.linspace(0.0, 1.0, 1001)
        covered = (1 - q) * (q <= room) + q * (1 - q <= room)
        assert bool((covered > 0.95).all()) is enough


def test_tasks_that_passed_always_or_never_are_not_sure_to_do_so_again() -> None:
    from tbexp.evaluation.intervals import fixed_tasks_interval

    low, high = fixed_tasks_interval(np.full(48, 20.0), np.repeat([20.0, 0.0], [23, 25]))
    assert low < 23 / 48 < high
