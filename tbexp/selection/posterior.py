"""What k passes in n clean attempts say about a task's pass rate.

Jeffreys posterior Beta(k + 1/2, n - k + 1/2), its mass per band, its equal-tailed interval, and the training value
and priority of the published selection (thinkingbox format, section 10.2). Everything is an array over tasks.
scipy.special is imported in the functions: it costs 0.2 s, and a start that selects nothing does not need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from tbexp.config.schema import Buckets

BANDS: Final = ("rarely", "hard", "medium", "often", "nearly_always")
PUBLISHED_NAMES: Final = dict(zip(BANDS, ("too_hard", "hard", "medium", "easy", "too_easy"), strict=True))
EDGES: Final = (0.08, 0.40, 0.60, 0.90)

# Masses that are equal in theory (mirrored counts and edges) differ in the last bits; the harder band wins.
_TIE: Final = 1e-12

VALUES: Final = ("highest_value", "high_value", "easy_value", "low_value", "insufficient_data", "very_hard")
_BASE: Final = np.array([1.0, 0.85, 0.6, 0.25, 0.3, 0.2])
_HIGHEST, _HIGH, _EASY, _LOW, _INSUFFICIENT, _VERY_HARD = range(6)


@dataclass(frozen=True, slots=True)
class Posterior:
    """Arrays over T tasks. `masses`: T x 5 in the order of BANDS; `band` and `value`: indexes into BANDS and VALUES."""

    alpha: NDArray[np.float64]
    beta: NDArray[np.float64]
    masses: NDArray[np.float64]
    band: NDArray[np.int64]
    low: NDArray[np.float64]  # 95%, equal-tailed
    high: NDArray[np.float64]
    value: NDArray[np.int64]
    priority: NDArray[np.float64]


def edges_of(buckets: Buckets) -> tuple[float, float, float, float]:
    """The four inner edges of the configured bands."""
    uppers = [getattr(buckets.bands, name).upper for name in BANDS[:-1]]
    first, second, third, fourth = (default if u is None else u for u, default in zip(uppers, EDGES, strict=True))
    return first, second, third, fourth


def posterior(clean: ArrayLike, passed: ArrayLike, edges: Sequence[float] = EDGES) -> Posterior:
    """The posterior of each task; `clean` and `passed` are integer arrays of one length. Zero attempts give the
    prior.
    """
    from scipy.special import betainc, betaincinv

    n, k = np.asarray(clean, dtype=np.int64), np.asarray(passed, dtype=np.int64)
    alpha, beta = (k + 0.5).astype(np.float64), (n - k + 0.5).astype(np.float64)
    below = betainc(alpha[:, None], beta[:, None], np.asarray(edges, dtype=np.float64)[None, :])
    ends = np.hstack([np.zeros((len(n), 1)), below, np.ones((len(n), 1))])
    masses = np.clip(np.diff(ends, axis=1), 0.0, 1.0)
    band = np.argmax(masses >= masses.max(axis=1, keepdims=True) - _TIE, axis=1)
    low, high = betaincinv(alpha, beta, 0.025), betaincinv(alpha, beta, 0.975)
    value = _training_value(n, k, band, high, betainc(alpha, beta, 0.15))
    return Posterior(alpha, beta, masses, band, low, high, value, _priority(n, k, high - low, value))


def probability_above(clean: ArrayLike, passed: ArrayLike, threshold: float) -> NDArray[np.float64]:
    """P(pass rate > threshold) per task; 0 where there is no clean attempt."""
    from scipy.special import betaincc

    n, k = np.asarray(clean, dtype=np.int64), np.asarray(passed, dtype=np.int64)
    above: NDArray[np.float64] = np.where(n > 0, betaincc(k + 0.5, n - k + 0.5, threshold), 0.0)
    return above


def _training_value(
    n: NDArray[np.int64],
    k: NDArray[np.int64],
    band: NDArray[np.int64],
    high: NDArray[np.float64],
    below_15: NDArray[np.float64],
) -> NDArray[np.int64]:
    hopeless = (k == 0) & (n >= 3) & ((high <= 0.15) | (below_15 >= 0.9))
    rare = np.where(hopeless, _VERY_HARD, np.where(n >= 3, _HIGHEST, _INSUFFICIENT))
    by_band = np.array([-1, -1, _HIGH, _EASY, _LOW])[band]
    return np.where(by_band < 0, rare, by_band)


def _priority(
    n: NDArray[np.int64], k: NDArray[np.int64], width: NDArray[np.float64], value: NDArray[np.int64]
) -> NDArray[np.float64]:
    rate = np.divide(k, n, out=np.zeros(len(n)), where=n > 0)
    raw = _BASE[value] * (0.55 + 0.30 * (1.0 - rate) + 0.15 * np.minimum(width / 0.5, 1.0))
    # Python rounds the decimal value correctly, numpy scales first and can differ in the fourth digit.
    return np.array([round(x, 4) for x in raw.tolist()], dtype=np.float64)
