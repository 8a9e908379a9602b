"""When a task needs no further attempts: its decision can hardly change any more.

The decision of a task is what selection makes of its counts once `budget` clean attempts are made. After k passes in n
attempts the number of passes in the remaining m = budget - n is beta-binomial with the task's Jeffreys posterior; the
probability of each final decision follows, and the task is decided when the larger one reaches `level` and selection
decides the same from the attempts made so far. So the pool of a probe that stopped early is what selection makes of
its counts, by nothing but these counts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tbexp.selection.posterior import BANDS, EDGES, posterior
from tbexp.selection.select import kept_by_counts, solved_by_counts

if TYPE_CHECKING:
    from tbexp.config.schema import Buckets, Reference

KEPT: Final = ("hard", "medium", "often")
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """Tables over n clean attempts (rows, 0 to budget) and k passes (columns, 0 to n; what stands behind is unused).

    keep_probability: chance that the task is kept after `budget` attempts. stops: whether it needs no more. ahead: how
    many more clean attempts it needs at least, whatever they give; 0 where it stops.
    """

    budget: int
    keep_probability: NDArray[np.float64]
    stops: Bools
    ahead: NDArray[np.int64]

    @staticmethod
    def of(
        budget: int,
        *,
        level: float = 0.95,
        least: int = 3,
        edges: Sequence[float] = EDGES,
        keep: Collection[str] = KEPT,
    ) -> StoppingRule:
        """For tasks that are kept by their band alone.

        level: 0.5 to 1; a higher one stops later and is wrong less often. 1: only what cannot change any more.
        Tasks of U-shaped pass rates (Beta(1/2, 1/2)) with a budget of 8 need 69% of the attempts at 0.95, and all of
        them get the decision of the full budget; at 0.93 they need 64%, and 97.4% of them get it
        (tests/benchmarks/bench_adaptive.py). On the sample domain, whose tasks are not so, 0.93 loses up to 7%.
        """
        n, k = _counts(budget)
        kept = np.isin(posterior(n, k, edges).band, _indexes(keep))
        return _rule(budget, kept, level=level, least=least)

    @staticmethod
    def of_settings(
        budget: int, *, buckets: Buckets, min_clean: int, group_size: int, level: float, least: int
    ) -> StoppingRule:
        """For tasks that are kept as these settings of selection say, by whatever looks at their counts."""
        n, k = _counts(budget)
        kept = kept_by_counts(n, k, buckets=buckets, min_clean=min_clean, group_size=group_size)
        return _rule(budget, kept, level=level, least=max(least, min_clean))

    @staticmethod
    def of_reference(budget: int, gate: Reference) -> StoppingRule:
        """For attempts of the reference: stops when nothing can change any more what the screen says of the task."""
        n, k = _counts(budget)
        return _rule(budget, solved_by_counts(n, k, gate), level=1.0, least=1)

    def decided(self, passed: ArrayLike, clean: ArrayLike) -> Bools:
        """Whether tasks with `passed` of `clean` attempts need no more."""
        k, n = np.asarray(passed, dtype=np.int64), np.minimum(np.asarray(clean, dtype=np.int64), self.budget)
        done: Bools = self.stops[n, np.minimum(k, n)]
        return done

    def kept(self, passed: ArrayLike, clean: ArrayLike) -> Bools:
        """The likelier final decision."""
        k, n = np.asarray(passed, dtype=np.int64), np.minimum(np.asarray(clean, dtype=np.int64), self.budget)
        keep: Bools = self.keep_probability[n, np.minimum(k, n)] >= 0.5
        return keep


def _counts(budget: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All n and k of a budget, row by row of a (budget + 1) x (budget + 1) table; k is cut to n."""
    n, k = np.divmod(np.arange((budget + 1) ** 2), budget + 1)
    return n, np.minimum(k, n)


def _indexes(names: Collection[str]) -> list[int]:
    return [BANDS.index(name) for name in names]


def _rule(budget: int, kept: Bools, *, level: float, least: int) -> StoppingRule:
    """kept: what selection decides from each of `_counts`."""
    from scipy.special import betaln, gammaln

    kept = kept.reshape(budget + 1, budget + 1)
    table = np.full((budget + 1, budget + 1), np.nan)
    stops = np.ones((budget + 1, budget + 1), dtype=np.bool_)
    ahead = np.zeros((budget + 1, budget + 1), dtype=np.int64)
    for n in range(budget, -1, -1):
        left = budget - n
        k, more = np.arange(n + 1)[:, None], np.arange(left + 1)[None, :]
        a, b = k + 0.5, n - k + 0.5
        log_choose = gammaln(left + 1) - gammaln(more + 1) - gammaln(left - more + 1)
        chance = np.exp(log_choose + betaln(a + more, b + left - more) - betaln(a, b))
        decisions = kept[budget, k + more].astype(np.float64)
        # Where every end gives the same decision the sum is 1 up to rounding; level=1 needs it exact.
        open_ = (decisions != decisions[:, :1]).any(axis=1)
        summed = np.clip((chance * decisions).sum(axis=1), 0.0, 1.0)
        p = table[n, : n + 1] = np.where(open_, summed, decisions[:, 0])
        if n < budget:
            agrees = kept[n, : n + 1] == (p >= 0.5)
            stops[n, : n + 1] = (n >= min(least, budget)) & (np.maximum(p, 1 - p) >= level) & agrees
            further = 1 + np.minimum(ahead[n + 1, : n + 1], ahead[n + 1, 1 : n + 2])
            ahead[n, : n + 1] = np.where(stops[n, : n + 1], 0, further)
    return StoppingRule(budget, table, stops, ahead)


def decided(
    k: int,
    n: int,
    budget: int,
    edges: Sequence[float] = EDGES,
    level: float = 0.95,
    keep: Collection[str] = KEPT,
    least: int = 3,
) -> bool:
    """Whether one task with k of n needs no more attempts. For many tasks make the StoppingRule once."""
    return bool(StoppingRule.of(budget, level=level, least=least, edges=edges, keep=keep).decided([k], [n])[0])


@dataclass(frozen=True, slots=True)
class Comparison:
    """A rule against the full budget on the same attempts."""

    attempts_share: float  # attempts made, of tasks x budget
    equal_share: float  # tasks with the full budget's decision


def compare_with_full(outcomes: ArrayLike, rule: StoppingRule) -> Comparison:
    """outcomes: T x budget of 0 and 1, the attempts of each task in the order made; the rule sees a prefix of them."""
    passed = np.asarray(outcomes, dtype=np.int64)
    if passed.ndim != 2 or passed.shape[1] != rule.budget:
        raise ValueError(f"outcomes of {rule.budget} attempts per task are needed")
    sums = np.concatenate([np.zeros((len(passed), 1), np.int64), np.cumsum(passed, axis=1)], axis=1)
    n = np.broadcast_to(np.arange(rule.budget + 1), sums.shape)
    stop = np.argmax(rule.decided(sums, n), axis=1)
    decision = rule.kept(sums[np.arange(len(sums)), stop], stop)
    full = rule.kept(sums[:, -1], np.full(len(sums), rule.budget))
    return Comparison(float(stop.mean()) / rule.budget, float((decision == full).mean()))
