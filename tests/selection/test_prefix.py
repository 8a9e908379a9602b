"""Which attempts an adaptive probe makes: simulated on known pass rates, and laws of the prefix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selection_settings import buckets

from tbexp.attempts import Counts
from tbexp.config.schema import Buckets, Reference, SelectionConfig
from tbexp.selection import Spend, StoppingRule, confidence_of, prefix_of, select
from tbexp.selection.prefix import kept_rates

BUDGET = 8
GROUP = 8


def rule_of(settings: Buckets, *, level: float = 0.95, min_clean: int = 3, budget: int = BUDGET) -> StoppingRule:
    return StoppingRule.of_settings(
        budget, buckets=settings, min_clean=min_clean, group_size=GROUP, level=level, least=3
    )


def rates(population: str, rng: np.random.Generator, tasks: int) -> np.ndarray:
    if population == "u-shaped":
        return rng.beta(0.5, 0.5, tasks)
    if population == "uniform":
        return rng.random(tasks)
    return np.where(rng.random(tasks) < 0.6, rng.beta(0.3, 20, tasks), rng.random(tasks))


def played(outcomes: np.ndarray, rule: StoppingRule, spend: Spend | None = None) -> dict[str, int]:
    """How many attempts of each task are made."""
    known = {f"t{i:05}": dict(enumerate(row)) for i, row in enumerate(outcomes.tolist())}
    found = prefix_of(known, known, rule, spend)
    assert not found.missing
    return dict(found.used)


def kept(outcomes: np.ndarray, used: dict[str, int], settings: Buckets) -> np.ndarray:
    """What selection itself decides from so many attempts of each task."""
    tally = {uid: (n, int(outcomes[int(uid[1:]), :n].sum()), 0) for uid, n in used.items()}
    chosen = select(
        Counts.of(tally), buckets=settings, selection=SelectionConfig(name="t", min_clean=3), group_size=GROUP
    )
    pool = set(chosen.pool)
    return np.array([uid in pool for uid in sorted(used)])


@pytest.mark.parametrize("by", ["band", "signal"])
@pytest.mark.parametrize(("population", "saved"), [("u-shaped", 0.25), ("uniform", 0.25), ("hopeless-heavy", 0.15)])
def test_a_probe_that_stops_early_selects_nearly_the_same_pool(population: str, saved: float, by: str) -> None:
    rng = np.random.default_rng(7)
    settings = buckets(by=by)
    outcomes = rng.random((4000, BUDGET)) < rates(population, rng, 4000)[:, None]
    used = played(outcomes, rule_of(settings))
    assert max(used.values()) <= BUDGET and sum(used.values()) <= (1 - saved) * outcomes.size
    everything = dict.fromkeys(used, BUDGET)
    assert (kept(outcomes, used, settings) == kept(outcomes, everything, settings)).mean() >= 0.97


@pytest.mark.parametrize(
    ("population", "gain"),
    [
        ("u-shaped", 0.02),
        ("uniform", 0.03),
        (
            "hopeless-heavy",
            -0.003,
        ),  # +0.003 on average: most doubt is about rates so near an edge that none resolves it
    ],
)
def test_what_was_saved_makes_more_decisions_right_at_the_same_cost(population: str, gain: float) -> None:
    rng = np.random.default_rng(11)
    settings = buckets()
    known = rates(population, rng, 4000)
    outcomes = rng.random((4000, 3 * BUDGET)) < known[:, None]
    spend = Spend(3 * BUDGET, confidence_of(settings, GROUP))
    used = played(outcomes, rule_of(settings), spend)
    assert sum(used.values()) <= 4000 * BUDGET
    right = np.zeros(4000, dtype=bool)
    for low, high in kept_rates(settings, GROUP):
        right |= (known >= low) & (known < high)
    fixed = kept(outcomes, dict.fromkeys(used, BUDGET), settings)
    assert (kept(outcomes, used, settings) == right).mean() - (fixed == right).mean() >= gain


def test_a_signal_threshold_is_met_exactly_at_the_ends_of_the_kept_rates() -> None:
    ((low, high),) = kept_rates(buckets(by="signal"), GROUP)
    assert 1 - low**GROUP - (1 - low) ** GROUP == pytest.approx(0.5, abs=1e-9) and high == pytest.approx(1 - low)
    assert kept_rates(buckets(by="signal", min_mixed_probability=0.999), GROUP) == []


OUTCOMES = st.lists(st.sampled_from([True, False, None]), min_size=24, max_size=24)


@settings(max_examples=60)
@given(st.lists(OUTCOMES, min_size=1, max_size=8), st.randoms(use_true_random=False), st.booleans())
def test_it_does_not_matter_in_which_order_attempts_end_or_where_a_probe_was_killed(
    outcomes: list[list[bool | None]], random: object, spends: bool
) -> None:
    uids = [f"t{i}" for i in range(len(outcomes))]
    rule = rule_of(buckets())
    spend = Spend(16, confidence_of(buckets(), GROUP)) if spends else None

    def ended(kills: bool) -> tuple[dict[str, int], dict[str, set[int]]]:
        known: dict[str, dict[int, bool | None]] = {uid: {} for uid in uids}
        while missing := list(prefix_of(uids, known, rule, spend).missing):
            if kills:  # some of them end in any order, then all is asked for anew
                random.shuffle(missing)  # type: ignore[attr-defined]
                missing = missing[: random.randint(1, len(missing))]  # type: ignore[attr-defined]
            for uid, number in missing:
                known[uid][number] = outcomes[int(uid[1:])][number]
        return dict(prefix_of(uids, known, rule, spend).used), {uid: set(known[uid]) for uid in uids}

    used, made = ended(kills=False)
    assert ended(kills=True) == (used, made)
    assert made == {uid: set(range(n)) for uid, n in used.items()}
    assert sum(used.values()) <= len(uids) * BUDGET and max(used.values()) <= (16 if spends else BUDGET)
    # A store that holds all attempts of a full probe, and more, gives the same prefixes and asks for nothing.
    full = {uid: dict(enumerate(row)) for uid, row in zip(uids, outcomes, strict=True)}
    found = prefix_of(reversed(uids), full, rule, spend)
    assert (dict(found.used), found.missing) == (used, ())


@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(1, 4), st.floats(0.5, 1.0), st.sampled_from(["band", "signal"]))
def test_a_task_that_stops_is_decided_by_selection_as_the_rule_says(
    budget: int, min_clean: int, level: float, by: str
) -> None:
    settings = buckets(by=by)
    rule = rule_of(settings, level=level, min_clean=min_clean, budget=budget)
    for n in range(budget + 1):
        for k in range(n + 1):
            stops = bool(rule.stops[n, k])
            assert (rule.ahead[n, k] == 0) == stops
            if stops and n < budget:
                assert n >= min_clean or budget < min_clean
            if not stops:
                assert rule.ahead[n, k] == 1 + min(rule.ahead[n + 1, k], rule.ahead[n + 1, k + 1])


@pytest.mark.parametrize(
    ("gate", "passes", "used"),
    [
        ({}, "1...", 1),  # solved once, and nothing can change that
        ({}, "0001", 4),
        ({}, "0000", 4),
        ({"min_passed": 2}, "0011", 4),
        ({"min_passed": 2}, "000.", 3),  # two of four cannot be reached any more
        ({"min_passed": 0, "min_clean": 2}, "00..", 2),
        ({"threshold": 0.5, "probability": 0.9}, "0...", 1),  # 3 of 4 would not show it
    ],
)
def test_the_reference_makes_no_attempt_that_cannot_change_its_verdict(
    gate: dict[str, float], passes: str, used: int
) -> None:
    rule = StoppingRule.of_reference(4, Reference(**gate))
    outcomes = {n: c == "1" for n, c in enumerate(passes) if c != "."}
    found = prefix_of(["t"], {"t": outcomes}, rule)
    assert found.used == {"t": used} and not found.missing
