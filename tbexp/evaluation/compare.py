"""Two policies on the same tasks."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from tbexp.evaluation.intervals import Floats, Resampling


def mcnemar_exact(gained: int, lost: int) -> float:
    """Two-sided exact McNemar test on the tasks that changed: a fair coin's chance of a split at least this uneven."""
    changed = gained + lost
    if changed == 0:
        return 1.0
    tail = sum(math.comb(changed, i) for i in range(min(gained, lost) + 1))
    return float(min(1.0, 2 * tail / 2**changed))


def paired_difference(
    before: ArrayLike, after: ArrayLike, *, samples: int = 2000, seed: int = 7
) -> tuple[float, float, float]:
    """(difference, low, high) of the means of per-task values, bootstrap over tasks. T values, or T x seeds."""
    old, new = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if len(old) != len(new):
        raise ValueError("values of the same tasks are compared")
    change = _over_seeds(new) - _over_seeds(old)
    # The distinct values stand for the tasks; their integer code keeps Resampling's exact grouping.
    distinct, code = np.unique(change, return_inverse=True)
    resampling = Resampling.of(code.reshape(-1, 1).astype(np.int64), samples=samples, seed=seed)
    values = distinct[:, None]
    low, high = resampling.interval(values)
    return float(resampling.mean(values)[0]), float(low[0]), float(high[0])


def _over_seeds(values: Floats) -> Floats:
    mean: Floats = values if values.ndim == 1 else values.mean(axis=1)
    return mean
