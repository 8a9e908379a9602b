"""95% intervals, each for its own question.

Over tasks (`low`, `high`): what if the tasks had been other ones of the same kind? Of a mean (pass@1, a difference of
two): bootstrap over tasks, percentiles of the mean under multinomial weights. All attempts (and seeds) of a task stay
together. The percentiles lie further out than 2.5 and 97.5 where tasks are few, as a t distribution does beside a
normal one, since a bootstrap of n tasks makes their spread too small by sqrt((n-1)/n) (the expanded percentile
interval of Hesterberg 2015, The American Statistician 69:371). Of a share of tasks (passed once, every time), which is
a count of tasks: Jeffreys' interval; of a small share of a few dozen tasks the percentiles cover too seldom (48 tasks,
share 0.075: 87.5% by their exact distribution, Jeffreys 95.1%). Of a difference of two such shares on the same tasks:
Tango's score interval. Same tasks (`fixed_low`, `fixed_high`): what if the same tasks were attempted again? Normal,
from each task's binomial variance.

Tasks of equal counts are exchangeable, so weights are drawn for the distinct counts, multinomial with their
frequencies: the same distribution at the price of a few hundred columns instead of one per task.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
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

    def interval(self, values: Floats, mass: Floats | None = None) -> tuple[Floats, Floats]:
        """95% interval over tasks of the means of G x M values: two arrays of M. mass: G; how much of its value a task
        counts for, its attempts say, where the figure is one of all attempts together.
        """
        rng = np.random.default_rng(self.seed)
        share = self.sizes / self.sizes.sum()
        total = int(self.sizes.sum())
        block = max(1, _BLOCK // len(share))
        means = []
        for start in range(0, self.samples, block):
            weights = rng.multinomial(total, share, size=min(block, self.samples - start)).astype(np.float64)
            means.append(_ratio(weights if mass is None else weights * mass, values))
        known = self.sizes @ ~np.isnan(values)
        low, high = _percentiles(np.concatenate(means), expanded(known))
        return low, high


def share_of_attempts(
    part: NDArray[np.int64], whole: NDArray[np.int64], *, samples: int, seed: int
) -> tuple[float, float, float] | None:
    """(share, low, high) of all attempts together, interval over tasks. part, whole: attempts of each of T tasks.

    None where there is no attempt; NaN bounds where only one task has any. Where all or none of each task's attempts
    count, the share is bounded by that of the tasks, with Jeffreys' interval; where each task has the same other share,
    by `alike_interval`.
    """
    used = whole > 0
    part, whole = part[used], whole[used]
    if not whole.size:
        return None
    share = float(part.sum() / whole.sum())
    if whole.size < 2:
        return share, float("nan"), float("nan")
    if ((part == 0) | (part == whole)).all():
        return share, *share_interval(share * whole.size, float(whole.size))
    resampling = Resampling.of(np.stack([part, whole], axis=1), samples=samples, seed=seed, label="share of attempts")
    mass = resampling.columns[:, 1].astype(np.float64)
    rates = resampling.columns[:, 0] / mass
    if (rates == rates[0]).all():
        return share, *alike_interval(share, whole.size)
    low, high = resampling.interval(rates[:, None], mass)
    return share, float(low[0]), float(high[0])


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


def expanded(tasks: NDArray[np.int64]) -> Floats:
    """The lower percentile, as a share, of an interval over so many tasks (Hesterberg 2015); 2.5% of one or none."""
    from scipy.special import ndtr, stdtrit

    n = np.maximum(tasks, 2).astype(np.float64)
    level: Floats = np.where(tasks > 1, ndtr(-np.sqrt(n / (n - 1)) * stdtrit(n - 1, 0.975)), 0.025)
    return level


def _percentiles(means: Floats, tail: Floats) -> Floats:
    """The percentiles `tail` and 1 - `tail` (M) per column, NaN left out: 2 x M. Linear interpolation, as
    np.percentile, by one sort.
    """
    ordered = np.sort(means, axis=0)  # NaN last
    count = (~np.isnan(means)).sum(axis=0)
    columns = np.arange(means.shape[1])
    result = np.full((2, means.shape[1]), np.nan)
    for row, q in enumerate((tail, 1 - tail)):
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


def paired_share_interval(gained: int, lost: int, total: int) -> tuple[float, float]:
    """95% interval of the difference of two shares of the same tasks, (gained - lost)/total.

    gained, lost: tasks that count in the second share alone, in the first alone. The score interval of Tango (1998,
    Statistics in Medicine 17:891): the differences that the score test does not reject, which at 0 is McNemar's test
    without a correction. It is an interval also where no task changed, or all changed alike, of which a bootstrap
    makes a point. ValueError without tasks.
    """
    if total < 1 or gained + lost > total:
        raise ValueError(f"{gained} gained and {lost} lost of {total} tasks")
    return _least_difference(gained, lost, total), -_least_difference(lost, gained, total)


def alike_interval(value: float, tasks: int, *, lowest: float = 0.0) -> tuple[float, float]:
    """95% interval of a mean over tasks that all have the same `value`, of which a bootstrap makes a point.

    As many other tasks as the share of none in `tasks` leaves open (`paired_share_interval`) may have any value from
    `lowest` (-1 of a difference) to 1. It covers more often than in 95%.
    """
    others = paired_share_interval(0, 0, tasks)[1]
    return value - others * (value - lowest), value + others * (1.0 - value)


def _least_difference(gained: int, lost: int, total: int) -> float:
    """The smallest difference that is not rejected: where the score falls to the normal quantile, by bisection."""
    low, high = -1.0, (gained - lost) / total
    for _ in range(60):
        middle = (low + high) / 2
        rejected = _score(middle, gained, lost, total) > _Z
        low, high = (middle, high) if rejected else (low, middle)
    return low


def _score(difference: float, gained: int, lost: int, total: int) -> float:
    """Tango's statistic of a difference below the observed one, with the likeliest share of lost tasks under it."""
    linear = (2 * total - gained + lost) * difference - gained - lost
    constant = -lost * difference * (1 - difference)
    share_lost = (math.sqrt(max(0.0, linear * linear - 8 * total * constant)) - linear) / (4 * total)
    variance = total * (2 * share_lost + difference * (1 - difference))
    distance = gained - lost - total * difference
    return distance / math.sqrt(variance) if variance > 0 else math.inf if distance > 0 else 0.0


def fixed_tasks_interval(n: Floats, c: Floats) -> tuple[float, float]:
    """95% interval of the mean pass rate if the same tasks were attempted again.

    n, c: attempts and passes of T tasks. Normal, with each task's p(1-p) / n: unbiased from its own attempts, and in
    sum never less than the mean under the tasks' posteriors (`_mean_of`), since tasks that passed always or never
    would else be sure. One attempt says nothing of its task's p(1-p): there it is that of all tasks' mean, the most it
    can be.
    """
    used = n > 0
    n, c = n[used], c[used]
    if not n.size:
        return float("nan"), float("nan")
    rate = c / n
    own = rate * (1 - rate) / np.maximum(n - 1, 1)
    mean = float(rate.mean())
    expected = np.where(n == 1, mean * (1 - mean), _mean_of(lambda p: p * (1 - p), n, c)) / n
    error = float(np.sqrt(max(own.sum(), expected.sum()))) / n.size
    if mean in (0.0, 1.0):
        return share_interval(float(c.sum()), float(n.sum()))
    return max(0.0, mean - _Z * error), min(1.0, mean + _Z * error)


def fixed_tasks_every_time_interval(n: Floats, c: Floats, attempts: int, share: float) -> tuple[float, float]:
    """95% interval of the share of tasks that pass all of `attempts` if the same tasks were attempted again.

    n, c: attempts and passes of T tasks, n a multiple of `attempts` (one set of them for each seed). Normal around the
    observed share, with the variance of each task's chance of passing every time. That chance cannot be read off its
    own attempts (20 of 20 would be sure), so it is the mean of rate**attempts under the task's posterior, with the
    distribution of all T rates as prior (nonparametric maximum likelihood, Laird 1978, Journal of the American
    Statistical Association 73:805). A quarter is added to the variance of the count, which is whole: one task that is
    not sure, with a chance of up to 0.95, lies as far from its average in more than 5% of evaluations, and k of k
    attempts cannot show that there is none. So the half-width is 0.98 tasks or more (of the mean of several seeds'
    counts, 0.98 divided by the seeds).
    """
    if not n.size:
        return float("nan"), float("nan")
    chance = _mean_of(lambda p: p**attempts, n, c)
    seeds = float(n.mean()) / attempts
    error = float(np.sqrt((chance * (1 - chance) * attempts / n).sum() + 0.25 / seeds**2)) / n.size
    return max(0.0, share - _Z * error), min(1.0, share + _Z * error)


def _mean_of(figure: Callable[[Floats], Floats], n: Floats, c: Floats) -> Floats:
    """E[figure(rate) | n, c] of T tasks, the rates' distribution fitted on a grid by expectation maximisation."""
    counts, which, sizes = np.unique(np.column_stack([n, c]), axis=0, return_inverse=True, return_counts=True)
    rate = np.linspace(0.0, 1.0, 201)
    with np.errstate(divide="ignore", invalid="ignore"):
        passed = np.where(counts[:, 1:] > 0, counts[:, 1:] * np.log(rate), 0.0)
        failed = np.where(counts[:, :1] > counts[:, 1:], (counts[:, :1] - counts[:, 1:]) * np.log1p(-rate), 0.0)
    fit = passed + failed
    likelihood = np.exp(fit - fit.max(axis=1, keepdims=True))
    prior = np.full(rate.size, 1 / rate.size)
    for _ in range(60):
        posterior = likelihood * prior
        posterior /= posterior.sum(axis=1, keepdims=True)
        prior = sizes @ posterior / sizes.sum()
    mean: Floats = (posterior @ figure(rate))[which.reshape(-1)]
    return mean


def task_rate_lower_bound(attempts: int) -> float:
    """One-sided 95% lower bound on the pass rate of a task that passed all of `attempts` (exact binomial)."""
    return float(0.05 ** (1.0 / attempts))
