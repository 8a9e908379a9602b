"""How much signal a pool will carry: a group of G attempts teaches only if it is mixed (neither all passed nor all
failed).

With p ~ Beta(a, b), P(mixed) = 1 - E[p^G] - E[(1-p)^G], and E[p^G] = B(a+G, b) / B(a, b).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one update of `groups_per_update` groups of `group_size` attempts will need, in expectation.

    Unmixed groups are thrown away and replaced until the update is full, so `attempts_per_update` = useful + thrown
    away; infinite where no group can be mixed. `gpu_hours_per_update` is None without measured seconds.
    """

    mixed_rate: float  # expected share of mixed groups, tasks drawn evenly
    mixed_tasks: float  # expected number of the pool's tasks whose next group is mixed
    attempts_per_update: float
    thrown_away_per_update: float
    gpu_hours_per_update: float | None = None


def mixed_probability(alpha: ArrayLike, beta: ArrayLike, group_size: int) -> NDArray[np.float64]:
    """Posterior probability that a group of `group_size` attempts is mixed, per task."""
    from scipy.special import betaln

    a, b = np.asarray(alpha, dtype=np.float64), np.asarray(beta, dtype=np.float64)
    whole = betaln(a, b)
    all_pass = np.exp(betaln(a + group_size, b) - whole)
    all_fail = np.exp(betaln(a, b + group_size) - whole)
    mixed: NDArray[np.float64] = np.clip(1.0 - all_pass - all_fail, 0.0, 1.0)
    return mixed


def forecast(
    mixed: ArrayLike,
    *,
    group_size: int,
    groups_per_update: int,
    seconds_per_attempt: float | None = None,
    gpus_per_attempt: float = 1.0,
) -> Forecast:
    """The forecast of a pool from its tasks' `mixed_probability`.

    seconds_per_attempt: measured; gpus_per_attempt: share of the GPUs that one attempt occupies for that time.
    """
    each = np.asarray(mixed, dtype=np.float64)
    rate = float(each.mean()) if each.size else 0.0
    useful = float(group_size * groups_per_update)
    total = useful / rate if rate > 0 else math.inf
    hours = None if seconds_per_attempt is None else total * seconds_per_attempt * gpus_per_attempt / 3600
    return Forecast(rate, float(each.sum()), total, total - useful, hours)
