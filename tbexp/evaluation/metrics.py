"""Per-task metrics from counts: c of n clean attempts passed. All arrays over tasks; a task without what a metric
needs is NaN.

pass@k: the chance that at least one of k attempts passes; pass^k: that all k do. Both unbiased for k <= n, from the
hypergeometric distribution of k attempts drawn from the n without replacement.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def pass_rate(n: ArrayLike, c: ArrayLike) -> Floats:
    """c/n per task; NaN without attempts."""
    n, c = _floats(n), _floats(c)
    rate: Floats = np.divide(c, n, out=np.full(n.shape, np.nan), where=n > 0)
    return rate


def pass_at_k(n: ArrayLike, c: ArrayLike, ks: Sequence[int]) -> Floats:
    """1 - C(n-c, k)/C(n, k), T x len(ks); NaN where k > n."""
    n, c = _floats(n), _floats(c)
    return 1.0 - _none_of_k(n, n - c, ks)


def pass_power_k(n: ArrayLike, c: ArrayLike, ks: Sequence[int]) -> Floats:
    """C(c, k)/C(n, k), T x len(ks); NaN where k > n."""
    n, c = _floats(n), _floats(c)
    return _none_of_k(n, c, ks)


def plug_in_pass_power_k(n: ArrayLike, c: ArrayLike, ks: Sequence[int]) -> Floats:
    """(c/n)^k, T x len(ks): what `tb agg` calls pass^k. Biased upwards; for comparison only."""
    rate = pass_rate(n, c)
    return np.power(rate[:, None], np.asarray(ks, dtype=np.float64)[None, :])


def passed_every_time(n: ArrayLike, c: ArrayLike, attempts: int) -> Floats:
    """1.0 where all of `attempts` passed, NaN where there are not exactly so many."""
    n, c = _floats(n), _floats(c)
    return np.where(n == attempts, (c == attempts).astype(np.float64), np.nan)


def passed_at_least_once(n: ArrayLike, c: ArrayLike) -> Floats:
    """1.0 where any attempt passed; NaN without attempts."""
    n, c = _floats(n), _floats(c)
    return np.where(n > 0, (c > 0).astype(np.float64), np.nan)


def _none_of_k(n: Floats, good: Floats, ks: Sequence[int]) -> Floats:
    """C(good, k)/C(n, k) = prod over i < k of (good-i)/(n-i)."""
    top = max(ks, default=0)
    i = np.arange(top, dtype=np.float64)[None, :]
    left = n[:, None] - i
    factors = np.divide(np.maximum(good[:, None] - i, 0.0), left, out=np.full(left.shape, np.nan), where=left > 0)
    product: Floats = np.cumprod(factors, axis=1)[:, [k - 1 for k in ks]]
    return product


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64)
