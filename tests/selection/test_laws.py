"""Laws of the posterior, the forecast and the decision."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selection_settings import buckets, selection

from tbexp.attempts import AttemptRow, Counts
from tbexp.errors import UserError
from tbexp.selection import Selection, forecast, mixed_probability, posterior, select, split
from tbexp.selection.split import Candidate

N = st.integers(0, 200)
EDGES = st.lists(st.floats(0.01, 0.99), min_size=4, max_size=4, unique=True).map(sorted)


@settings(max_examples=40)
@given(st.lists(st.tuples(N, N), min_size=1, max_size=20), EDGES)
def test_masses_sum_to_one(pairs: list[tuple[int, int]], edges: list[float]) -> None:
    post = posterior([max(p) for p in pairs], [min(p) for p in pairs], edges)
    assert np.allclose(post.masses.sum(axis=1), 1.0, atol=1e-12)
    assert (post.masses >= 0).all() and (post.low <= post.high).all()


@settings(max_examples=40)
@given(st.integers(1, 120), EDGES)
def test_more_passes_never_mean_a_lower_band_or_interval(n: int, edges: list[float]) -> None:
    post = posterior(np.full(n + 1, n), np.arange(n + 1), edges)
    for series in (post.band, post.low, post.high):
        assert (np.diff(series) >= 0).all()


@settings(max_examples=40)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(2, 64))
def test_the_mixed_probability_is_the_beta_binomial_of_the_middle(k: int, failed: int, size: int) -> None:
    a, b = k + 0.5, failed + 0.5

    def log_choose(g: int) -> float:
        return math.lgamma(size + 1) - math.lgamma(g + 1) - math.lgamma(size - g + 1)

    def log_beta(x: float, y: float) -> float:
        return math.lgamma(x) + math.lgamma(y) - math.lgamma(x + y)

    middle = sum(math.exp(log_choose(g) + log_beta(a + g, b + size - g) - log_beta(a, b)) for g in range(1, size))
    assert mixed_probability([a], [b], size)[0] == pytest.approx(middle, abs=1e-9)


def outcomes_strategy() -> st.SearchStrategy[list[tuple[str, int]]]:
    uid = st.builds(lambda f, t: f"{f}.py:t{t}", st.sampled_from("ab"), st.integers(0, 7))
    return st.lists(st.tuples(uid, st.sampled_from([0, 0, 1, 1, 2])), min_size=20, max_size=120)


def decide(outcomes: list[tuple[str, int]]) -> Selection | str:
    fault = {"kind": "x", "message": ""}
    rows = [
        AttemptRow(uid, i, None if o == 2 else bool(o), 0.0, fault if o == 2 else None)
        for i, (uid, o) in enumerate(outcomes)
    ]
    try:
        return select(Counts.of_rows(rows), buckets=buckets(), selection=selection(), group_size=8)
    except UserError as error:
        return str(error)


@settings(max_examples=30)
@given(outcomes_strategy(), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(outcomes: list[tuple[str, int]], random: object) -> None:
    shuffled = list(outcomes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert decide(outcomes) == decide(shuffled)


@settings(max_examples=30)
@given(outcomes_strategy())
def test_a_further_system_error_changes_no_decision(outcomes: list[tuple[str, int]]) -> None:
    before, after = decide(outcomes), decide([*outcomes, (outcomes[0][0], 2)])
    if isinstance(before, str) or isinstance(after, str):
        assert before == after
        return
    assert (before.pool, before.train, before.validation) == (after.pool, after.train, after.validation)
    for one, other in zip(before.rows, after.rows, strict=True):
        assert (one.band, one.masses, one.reasons, one.interval) == (
            other.band,
            other.masses,
            other.reasons,
            other.interval,
        )


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.sampled_from("xyz")), unique_by=lambda t: t[:2]),
    st.floats(0.05, 0.95),
    st.integers(0, 5),
)
def test_a_split_parts_the_pool_with_both_sides_filled(
    tasks: list[tuple[str, int, str]], fraction: float, seed: int
) -> None:
    pool = [Candidate(f"{f}.py:t{t}", stratum) for f, t, stratum in tasks]
    if len(pool) < 2:
        with pytest.raises(UserError, match="cannot be split"):
            split(pool, fraction=fraction, seed=seed)
        return
    train, validation = split(pool, fraction=fraction, seed=seed)
    assert sorted(train + validation) == sorted(c.uid for c in pool)
    assert train and validation
    assert split(pool[::-1], fraction=fraction, seed=seed) == (train, validation)


def test_the_forecast_counts_replaced_groups() -> None:
    found = forecast([0.5, 0.25, 0.75], group_size=8, groups_per_update=4, seconds_per_attempt=90.0)
    assert (found.mixed_rate, found.mixed_tasks) == (0.5, 1.5)
    assert (found.attempts_per_update, found.thrown_away_per_update) == (64.0, 32.0)
    assert found.gpu_hours_per_update == pytest.approx(1.6)
    assert forecast([0.0], group_size=8, groups_per_update=4).thrown_away_per_update == math.inf


def test_selection_needs_none_of_the_heavy_packages() -> None:
    program = (
        "import sys\n"
        "from tbexp.attempts import Counts\n"
        "from tbexp.selection import select\n"
        "heavy = {'scipy'} & set(sys.modules)\n"
        "import numpy as np\n"
        "from tbexp.config.schema import *\n"
        "names = ('rarely', 'hard', 'medium', 'often', 'nearly_always')\n"
        "bands = {n: Band(upper=u, keep=True) for n, u in zip(names, (0.08, 0.4, 0.6, 0.9, None))}\n"
        "counts = Counts(('a', 'b'), *(np.array([x, x]) for x in (8, 3, 0)))\n"
        "select(counts, buckets=Buckets(name='x', bands=bands), selection=SelectionConfig(name='x'), group_size=8)\n"
        "heavy |= {'torch', 'mlflow', 'ray', 'verl', 'scipy.stats', 'matplotlib', 'mcp'} & set(sys.modules)\n"
        "sys.exit(' '.join(heavy) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
