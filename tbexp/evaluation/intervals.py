"""95% intervals, each for its own question.

Over tasks (`low`, `high`): what if the tasks had been other ones of the same kind? Bootstrap over tasks: percentiles
of the mean under multinomial weights. All attempts (and seeds) of a task stay together. A share of tasks (passed once,
every time) is a count of tasks, and has Jeffreys' interval of one: of a small share of a few dozen tasks the
percentiles cover too seldom (48 tasks, share 0.075: 87.5% by their exact distribution, Jeffreys 95.1%). Same tasks
(`fixed_low`, `fixed_high`): what if the same tasks were attempted again? Normal, from each task's binomial variance.

Tasks of equal counts are exchangeable, so weights are drawn for the distinct counts, multinomial with their
frequencies: the same distribution at the price of a few hundred columns instead of one per task.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_Z = 1.959963984540054
_BLOCK = 20_000_000  # weights held at once


@dataclass(frozen=True, slots=True)
class Resampling:
    """Bootstrap over tasks: `columns` holds the distinct counts, `sizes` how many tasks have them, `which` maps tasks
    to them.
    """

    columns: NDArray[np.int64]  # G x D
    sizes: NDArray[np.int64]  # G
    which: NDArray[np.int64]  # T
    samples: int
    seed: tuple[int, int]

    @staticmethod
    def of(columns: NDArray[np.int64], *, samples: int, seed: int, label: str = "") -> Resampling:
        """Of T x D columns of counts. The same seed and label give the same weights, whatever the order of tasks."""
        distinct, which, sizes = np.unique(columns, axis=0, return_inverse=True, return_counts=True)
        return Resampling(distinct, sizes, which.reshape(-1), samples, (seed, zlib.crc32(label.encode())))

    def mean(self, values: Floats) -> Floats:
        """Mean over tasks of G x M values of the distinct counts, NaN left out: M."""
        mean: Floats = _ratio(self.sizes[None, :].astype(np.float64), values)[0]
        return mean

    def interval(self, values: Floats) -> tuple[Floats, Floats]:
        """95% interval over tasks of the means of G x M values: two arrays of M."""
        rng = np.random.default_rng(self.seed)
        share = self.sizes / self.sizes.sum()
        total = int(self.sizes.sum())
        block = max(1, _BLOCK // len(share))
        means = []
        for start in range(0, self.samples, block):
            weights = rng.multinomial(total, share, size=min(block, self.samples - start))
            means.append(_ratio(weights.astype(np.float64), values))
        low, high = _percentiles(np.concatenate(means))
        return low, high


def _ratio(weights: Floats, values: Floats) -> Floats:
    """Weighted means of the columns of `values`, NaN left out; NaN where nothing is left."""
    there = ~np.isnan(values)
    if there.all():
        result: Floats = weights @ values / weights.sum(axis=1, keepdims=True)
        return result
    mass = weights @ there.astype(np.float64)
    means: Floats = np.divide(
        weights @ np.where(there, values, 0.0), mass, out=np.full(mass.shape, np.nan), where=mass > 0
    )
    return means


def _percentiles(means: Floats) -> Floats:
    """2.5 and 97.5 percentile per column, NaN left out: 2 x M. Linear interpolation, as np.percentile, by one sort."""
    ordered = np.sort(means, axis=0)  # NaN last
    count = (~np.isnan(means)).sum(axis=0)
    columns = np.arange(means.shape[1])
    result = np.full((2, means.shape[1]), np.nan)
    for row, q in enumerate((0.025, 0.975)):
        place = np.maximum(count - 1, 0) * q
        below = np.floor(place).astype(np.int64)
        above = np.minimum(below + 1, np.maximum(count - 1, 0))
        part = place - below
        result[row] = ordered[below, columns] * (1 - part) + ordered[above, columns] * part
    return result


def share_interval(yes: float, total: float) -> tuple[float, float]:
    """Jeffreys 95% interval of a share of tasks (Brown, Cai and DasGupta 2001), closed where none or all pass."""
    from scipy.special import betaincinv

    low, high = betaincinv(yes + 0.5, total - yes + 0.5, [0.025, 0.975])
    return (0.0 if yes == 0 else float(low)), (1.0 if yes == total else float(high))


def fixed_tasks_interval(n: Floats, c: Floats) -> tuple[float, float]:
    """95% interval of the mean pass rate if the same tasks were attempted again. Tasks with one attempt borrow
    p(1-p).
    """
    used = n > 0
    n, c = n[used], c[used]
    if not n.size:
        return float("nan"), float("nan")
    rate = c / n
    variance = rate * (1 - rate) / np.maximum(n - 1, 1)
    mean, error = float(rate.mean()), float(np.sqrt(variance.sum())) / n.size
    if error == 0.0:
        return share_interval(float(c.sum()), float(n.sum())) if mean in (0.0, 1.0) else (mean, mean)
    return max(0.0, mean - _Z * error), min(1.0, mean + _Z * error)


def task_rate_lower_bound(attempts: int) -> float:
    """One-sided 95% lower bound on the pass rate of a task that passed all of `attempts` (exact binomial)."""
    return float(0.05 ** (1.0 / attempts))
