"""What an incomplete evaluation is said to cover."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbexp.pipeline.evaluated import partial
from tbexp.reporting.partial import covered, percent_of


@pytest.mark.parametrize(
    ("share", "told"),
    [
        (0.0, "0.0%"),
        (1.0, "100.0%"),
        (0.75, "75.0%"),
        (10137 / 10140, "99.97%"),
        (3 / 10140, "0.03%"),
        (0.9994, "99.9%"),
        (999999 / 1000000, "99.9999%"),
    ],
)
def test_a_share_is_told_to_a_tenth_of_a_percent_or_as_finely_as_it_has_to_be(share: float, told: str) -> None:
    assert percent_of(share) == told


@given(st.integers(2, 10**9).flatmap(lambda of: st.tuples(st.integers(1, of - 1), st.just(of))))
def test_what_is_incomplete_is_never_all_and_what_is_not_empty_never_nothing(part: tuple[int, int]) -> None:
    assert 0 < float(percent_of(part[0] / part[1])[:-1]) < 100


def test_what_is_covered_is_not_all_when_three_of_ten_thousand_are_missing() -> None:
    coverage = {"clean": 10137, "expected": 10140, "share": 10137 / 10140}
    assert covered({"partial": True, "coverage": coverage}) == "10,137 of 10,140 attempts (99.97%)"
    counts = {**coverage, "missing": 3, "system_errors": 3}
    told = {
        "partial": True,
        "coverage": counts,
        "attempts": 20,
        "tasks": 507,
        "observed_all_k": {"complete_tasks": 505},
    }
    assert partial(told).startswith("; PARTIAL: 10137 of 10140 attempts (99.97%) have a verdict, 3 are system errors")
