"""When a task needs no further attempts: its decision can hardly change any more.

The decision of a task is whether its band is kept once `budget` clean attempts are made. After k passes in n attempts
the number of passes in the remaining m = budget - n is beta-binomial with the task's Jeffreys posterior; the
probability of each final decision follows, and the task is decided when the larger one reaches `level`. A decided
task's decision is the likelier one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tbexp.selection.posterior import BANDS, EDGES, posterior

KEPT: Final = ("hard", "medium", "often")


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """`keep_probability[n, k]`: chance that a task with k of n is kept after `budget` attempts; NaN where k > n."""

    budget: int
    level: float
    least: int  # attempts before a task can be decided
    keep_probability: NDArray[np.float64]

    @staticmethod
    def of(
        budget: int,
        *,
        level: float = 0.93,
        least: int = 3,
        edges: Sequence[float] = EDGES,
        keep: Collection[str] = KEPT,
    ) -> StoppingRule:
        """level: 0.5 to 1; a higher one stops later and is wrong less often. 1: only what cannot change any more.

        At 0.93 with a budget of 8, tasks of U-shaped pass rates (Beta(1/2, 1/2)) need 64% of the attempts and 97.4%
        of them get the decision of the full budget (tests/selection/test_adaptive.py).
        """
        from scipy.special import betaln, gammaln

        final = posterior(np.full(budget + 1, budget), np.arange(budget + 1), edges)
        kept = np.isin(final.band, [BANDS.index(name) for name in keep]).astype(np.float64)
        table = np.full((budget + 1, budget + 1), np.nan)
        for n in range(budget + 1):
            left = budget - n
            k, more = np.arange(n + 1)[:, None], np.arange(left + 1)[None, :]
            a, b = k + 0.5, n - k + 0.5
            log_choose = gammaln(left + 1) - gammaln(more + 1) - gammaln(left - more + 1)
            chance = np.exp(log_choose + betaln(a + more, b + left - more) - betaln(a, b))
            decisions = kept[k + more]
            # Where every end gives the same decision the sum is 1 up to rounding; level=1 needs it exact.
            open_ = (decisions != decisions[:, :1]).any(axis=1)
            summed = np.clip((chance * decisions).sum(axis=1), 0.0, 1.0)
            table[n, : n + 1] = np.where(open_, summed, decisions[:, 0])
        return StoppingRule(budget, level, min(least, budget), table)

    def decided(self, passed: ArrayLike, clean: ArrayLike) -> NDArray[np.bool_]:
        """Whether tasks with `passed` of `clean` attempts need no more."""
        k, n = np.asarray(passed, dtype=np.int64), np.minimum(np.asarray(clean, dtype=np.int64), self.budget)
        p = self.keep_probability[n, np.minimum(k, n)]
        done: NDArray[np.bool_] = (n >= self.budget) | ((n >= self.least) & (np.maximum(p, 1 - p) >= self.level))
        return done

    def kept(self, passed: ArrayLike, clean: ArrayLike) -> NDArray[np.bool_]:
        """The likelier final decision."""
        k, n = np.asarray(passed, dtype=np.int64), np.minimum(np.asarray(clean, dtype=np.int64), self.budget)
        keep: NDArray[np.bool_] = self.keep_probability[n, np.minimum(k, n)] >= 0.5
        return keep


def decided(
    k: int,
    n: int,
    budget: int,
    edges: Sequence[float] = EDGES,
    level: float = 0.93,
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
