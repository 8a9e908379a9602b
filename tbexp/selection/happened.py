"""The forecast of a training against what happened: how many groups were mixed, and how many attempts were thrown away.

The forecast is made from the probe, for the policy that was probed; training changes it. So there are two expectations
for each update: that of the untrained policy, in closed form, and that of a policy that is as good as the update's
attempts were. The second moves the posteriors as a whole by one same step of log-odds, so that the mean pass rate is
the update's mean reward: what then differs is not explained by the policy being better at all tasks alike.

An update generates groups until enough are mixed, or up to a bound: with the share p of mixed groups the number is
min(NB, bound), whose mean is the sum over t < bound of P(Binomial(t, p) < wanted).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tbexp.selection.forecast import mixed_probability

Row = Mapping[str, float]
POINTS = 200  # of a posterior


@dataclass(frozen=True, slots=True)
class Expected:
    """What an update is expected to be made of. thrown_away: attempts that are generated and not trained on."""

    mixed_rate: float
    thrown_away: float


@dataclass(frozen=True, slots=True)
class Update:
    """One update: expected of the untrained policy, expected at its mean reward, and observed. None: not recorded."""

    step: int
    untrained: Expected
    at_reward: Expected | None
    mixed: int | None  # groups
    clean: int | None  # groups that have a verdict
    thrown_away: float | None  # attempts

    @property
    def mixed_rate(self) -> float | None:
        return self.mixed / self.clean if self.mixed is not None and self.clean else None


@dataclass(frozen=True, slots=True)
class Pool:
    """The posteriors of the tasks that are trained on, and how an update is made.

    odds, weights: points of the posteriors on the log-odds scale, equally likely within a task, and the tasks' weights;
    D x POINTS and D, for D distinct posteriors.
    """

    mixed_rate: float
    odds: NDArray[np.float64]
    weights: NDArray[np.float64]
    group_size: int
    groups_per_update: int
    most_groups: int  # per update

    @staticmethod
    def of(alpha: ArrayLike, beta: ArrayLike, *, group_size: int, groups_per_update: int, refill_rounds: int) -> Pool:
        """ValueError without a task."""
        from scipy.special import betaincinv

        pairs = np.stack([np.asarray(alpha, dtype=np.float64), np.asarray(beta, dtype=np.float64)], axis=1)
        if not len(pairs):
            raise ValueError("there is no task")
        distinct, counts = np.unique(pairs, axis=0, return_counts=True)
        weights = counts / counts.sum()
        a, b = distinct[:, 0], distinct[:, 1]
        rates = betaincinv(a[:, None], b[:, None], (np.arange(POINTS) + 0.5)[None, :] / POINTS)
        rates = np.clip(rates, 1e-12, 1 - 1e-12)
        return Pool(
            float(weights @ mixed_probability(a, b, group_size)),
            np.log(rates / (1 - rates)),
            weights,
            group_size,
            groups_per_update,
            max(1, refill_rounds) * groups_per_update,
        )

    def rates_at(self, reward: float) -> NDArray[np.float64]:
        """The pass rates at the points, moved by the step of log-odds at which their mean is `reward`."""
        target = min(max(reward, 1e-6), 1 - 1e-6)
        low, high = -40.0, 40.0
        for _ in range(60):
            middle = (low + high) / 2
            if float(self.weights @ _sigmoid(self.odds + middle).mean(axis=1)) < target:
                low = middle
            else:
                high = middle
        return _sigmoid(self.odds + low)

    def expected(self, reward: float | None = None) -> Expected:
        """reward: the mean reward that the tasks are moved to; None: the policy that was probed."""
        rate = self.mixed_rate
        if reward is not None:
            p = self.rates_at(reward)
            rate = float(self.weights @ (1.0 - p**self.group_size - (1.0 - p) ** self.group_size).mean(axis=1))
        groups = generated(rate, self.groups_per_update, self.most_groups)
        return Expected(rate, (groups - self.groups_per_update) * self.group_size)


def compare(pool: Pool, steps: Mapping[int, Row]) -> list[Update]:
    """Each update of a training: its metrics by step as `train/metrics.jsonl` has them."""
    untrained = pool.expected()
    found = []
    for step, row in sorted(steps.items()):
        if "train/groups/generated" not in row and "train/mixed_group_rate" not in row:
            continue  # the base model's validation
        generated_groups, mixed = row.get("train/groups/generated"), row.get("train/groups/mixed")
        failed = row.get("train/refilled/system_error_groups", 0.0)
        reward = row.get("train/reward_mean")
        found.append(
            Update(
                step=step,
                untrained=untrained,
                at_reward=None if reward is None else pool.expected(reward),
                mixed=None if mixed is None else round(mixed),
                clean=None if generated_groups is None else round(generated_groups - failed),
                thrown_away=None
                if generated_groups is None
                else (generated_groups - pool.groups_per_update) * pool.group_size,
            )
        )
    return found


def metrics(update: Update) -> dict[str, float]:
    """The forecast's part of an update's metrics; what was observed has its own."""
    values = {
        "train/forecast/mixed_group_rate": update.untrained.mixed_rate,
        "train/forecast/thrown_away_attempts": update.untrained.thrown_away,
    }
    if update.at_reward is not None:
        values |= {
            "train/forecast/mixed_group_rate_at_reward": update.at_reward.mixed_rate,
            "train/forecast/thrown_away_attempts_at_reward": update.at_reward.thrown_away,
        }
    return values


@dataclass(frozen=True, slots=True)
class Summary:
    """Several updates together. Shares are of all their groups: a mean of shares would be too high, since an update
    ends when it has enough mixed groups. Attempts are means per update.
    """

    updates: int
    mixed_rate: float | None
    mixed_rate_untrained: float
    mixed_rate_at_reward: float | None
    thrown_away: float | None
    thrown_away_untrained: float
    thrown_away_at_reward: float | None


def summary(updates: Sequence[Update]) -> Summary:
    """Raises ValueError without an update."""
    if not updates:
        raise ValueError("there is no update")
    counted = [u for u in updates if u.mixed is not None and u.clean]
    groups = sum(u.clean or 0 for u in counted)
    moved = [u.at_reward for u in updates if u.at_reward is not None]
    thrown = [u.thrown_away for u in updates if u.thrown_away is not None]
    return Summary(
        updates=len(updates),
        mixed_rate=sum(u.mixed or 0 for u in counted) / groups if groups else None,
        mixed_rate_untrained=updates[0].untrained.mixed_rate,
        mixed_rate_at_reward=_mean([e.mixed_rate for e in moved]),
        thrown_away=_mean(thrown),
        thrown_away_untrained=updates[0].untrained.thrown_away,
        thrown_away_at_reward=_mean([e.thrown_away for e in moved]),
    )


def generated(rate: float, wanted: int, most: int) -> float:
    """Expected number of groups that an update generates; see the module's text."""
    from scipy.special import betainc

    if rate <= 0.0:
        return float(most)
    t = np.arange(wanted, most)
    # P(Binomial(t, p) < w) = I_{1-p}(t - w + 1, w)
    short = betainc(t - wanted + 1, wanted, 1.0 - rate) if len(t) else np.zeros(0)
    return min(float(most), wanted + float(np.sum(short)))


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-x))
    return found


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
