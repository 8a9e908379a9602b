"""Two runs at the tasks that they share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbexp.evaluation import TaskCounts, holm, mcnemar_exact, pair
from tbexp.evaluation.intervals import alike_interval, paired_share_interval

COUNTS = st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(st.just(4), st.integers(0, 4)), min_size=1)


def counts(found: dict[str, tuple[int, int]], attempts: int = 4, contents: dict[str, str] | None = None) -> TaskCounts:
    return TaskCounts(attempts, found, contents or {}, {})


def test_only_tasks_of_both_are_compared_and_the_others_are_counted() -> None:
    found = pair(counts({"a": (4, 4), "b": (4, 1), "x": (4, 0)}), counts({"a": (4, 3), "b": (4, 4), "y": (4, 4)}))
    assert found.shared == ("a", "b") and found.missing == (1, 1)
    assert found.pass_at_1 is not None and found.pass_at_1.value == pytest.approx((7 - 5) / 8)
    assert (found.gained, found.lost, found.p) == (("b",), ("a",), 1.0)
    assert found.every is not None and found.every.value == 0.0 and found.every.tasks == 2


def test_another_content_under_the_same_uid_is_another_task() -> None:
    first = counts({"a": (4, 4), "b": (4, 1)}, contents={"a": "1", "b": "1"})
    second = counts({"a": (4, 0), "b": (4, 1)}, contents={"a": "2", "b": "1"})
    found = pair(first, second)
    assert found.changed == ("a",) and found.shared == ("b",) and found.lost == ()


def test_another_number_of_attempts_leaves_k_of_k_untested() -> None:
    found = pair(counts({"a": (4, 4)}), counts({"a": (8, 8)}, attempts=8))
    assert found.pass_at_1 is not None and found.pass_at_1.value == 0.0
    assert found.every is None and found.p is None and not found.gained


def test_k_of_k_needs_all_attempts_of_a_task_on_both_sides() -> None:
    found = pair(counts({"a": (3, 3), "b": (4, 4), "c": (0, 0)}), counts({"a": (4, 0), "b": (4, 4), "c": (4, 4)}))
    assert found.every is not None and found.every.tasks == 1
    assert found.pass_at_1 is not None and found.pass_at_1.tasks == 2 and found.pass_at_1.value == -0.5


def test_without_a_shared_task_nothing_is_compared() -> None:
    found = pair(counts({"a": (4, 4)}), counts({"b": (4, 4)}))
    assert (found.pass_at_1, found.every, found.p, found.same_counts) == (None, None, None, False)


def test_no_changed_task_leaves_k_of_k_an_interval_around_0_and_one_task_none() -> None:
    found = pair(counts({"a": (4, 4), "b": (4, 0)}), counts({"a": (4, 4), "b": (4, 2)}))
    assert found.every is not None and (found.every.low, found.every.high) == paired_share_interval(0, 0, 2)
    assert found.p == 1.0 and not found.same_counts
    alone = pair(counts({"a": (4, 4)}), counts({"a": (4, 0)})).every
    assert alone is not None and (alone.value, alone.low, alone.high) == (-1.0, None, None)


def test_a_difference_that_all_tasks_have_alike_has_an_interval_and_that_of_one_task_none() -> None:
    uids = "abcdefgh"
    for before, after, value in ((2, 2, 0.0), (1, 2, 0.25), (4, 3, -0.25)):
        found = pair(counts(dict.fromkeys(uids, (4, before))), counts(dict.fromkeys(uids, (4, after)))).pass_at_1
        assert found is not None and found.value == value
        assert (found.low, found.high) == alike_interval(value, 8, lowest=-1.0)
    assert alike_interval(0.0, 8, lowest=-1.0) == paired_share_interval(0, 0, 8)
    alone = pair(counts({"a": (4, 1)}), counts({"a": (4, 1)})).pass_at_1
    assert alone is not None and (alone.value, alone.low, alone.high) == (0.0, None, None)


@given(st.floats(0, 1), st.integers(2, 500), st.sampled_from([0.0, -1.0]))
def test_the_interval_of_what_is_alike_holds_it_and_stays_within_what_can_be(
    value: float, tasks: int, lowest: float
) -> None:
    low, high = alike_interval(value, tasks, lowest=lowest)
    assert lowest <= low <= value <= high <= 1 and high - low > 1 / (tasks + 4)


def test_the_interval_of_a_difference_of_shares_is_tango_s() -> None:
    """The airway data of Bentur et al. 2009, as Fagerland, Lydersen and Laake (2014) analyse them: 1 and 7 of 21."""
    assert paired_share_interval(1, 7, 21) == pytest.approx((-0.517, -0.026), abs=5e-4)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 120))
def test_the_interval_of_a_difference_of_shares_says_what_mcnemar_says(gained: int, lost: int, others: int) -> None:
    total = gained + lost + others
    low, high = paired_share_interval(gained, lost, total)
    assert -1 <= low <= (gained - lost) / total <= high <= 1 and low < high
    assert paired_share_interval(lost, gained, total) == (-high, -low)
    statistic = (gained - lost) ** 2 / max(gained + lost, 1)
    if abs(statistic - 1.959963984540054**2) > 1e-6:
        assert (low > 0 or high < 0) == (statistic > 1.959963984540054**2)


@pytest.mark.parametrize(("gained", "lost", "total"), [(0, 0, 0), (2, 2, 3)])
def test_a_difference_of_shares_needs_tasks(gained: int, lost: int, total: int) -> None:
    with pytest.raises(ValueError, match="tasks"):
        paired_share_interval(gained, lost, total)


@given(COUNTS, COUNTS)
def test_swapping_the_runs_turns_every_sign(
    first: dict[str, tuple[int, int]], second: dict[str, tuple[int, int]]
) -> None:
    there, back = pair(counts(first), counts(second), samples=50), pair(counts(second), counts(first), samples=50)
    assert (there.gained, there.lost, there.p) == (back.lost, back.gained, back.p)
    assert there.shared == back.shared == tuple(sorted(first.keys() & second.keys()))
    if there.pass_at_1 is not None and back.pass_at_1 is not None:
        assert there.pass_at_1.value == pytest.approx(-back.pass_at_1.value)
        assert there.p == mcnemar_exact(len(there.gained), len(there.lost))


def test_holm_is_the_published_procedure() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == [] and holm([0.2]) == [0.2]


@given(st.lists(st.floats(0, 1), max_size=8))
def test_an_adjusted_p_is_never_smaller_and_keeps_the_order(ps: list[float]) -> None:
    adjusted = holm(ps)
    assert all(p <= a <= 1 for p, a in zip(ps, adjusted, strict=True))
    assert [adjusted[i] for i in sorted(range(len(ps)), key=ps.__getitem__)] == sorted(adjusted)
