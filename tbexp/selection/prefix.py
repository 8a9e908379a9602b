"""Which attempts an adaptive probe makes: of each task a prefix of its attempts 0, 1, 2, ...

Decided here, from outcomes alone, so that it is the same whatever ran at once, ended first or was killed:
- Stopping is decided per task, on its own prefix only: it ends where the stopping rule says so, or at the budget.
- Spending what was saved is decided in rounds, after every task has stopped. Each round gives one attempt more to the
  tasks whose decision is least likely to be right (`confidence`), a sixteenth of what was saved at a time; ties go to
  the smaller uid. The next round waits for all of it. Together never more than tasks x budget.
What a store holds beyond a task's prefix (of a longer probe, say) is not looked at.

An attempt that stayed a system error takes its number in the prefix and counts as nothing in the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tbexp.selection.adaptive import StoppingRule
from tbexp.selection.posterior import BANDS, edges_of

if TYPE_CHECKING:
    from tbexp.config.schema import Buckets

Outcome = bool | None  # None: a system error that stayed
Outcomes = Mapping[str, Mapping[int, Outcome]]  # {uid: {attempt: outcome}}
Confidence = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]  # (clean, passed) -> 0.5 to 1

ROUNDS: Final = 16  # that what was saved is spent in; more follow the outcomes closer and wait more often


@dataclass(frozen=True, slots=True)
class Prefix:
    """used: how many attempts of each task count. missing: the (uid, attempt) that are needed next whatever they give,
    in the order of attempts; none: the probe is complete, and `used` is final.
    """

    used: Mapping[str, int]
    missing: tuple[tuple[str, int], ...]
    stopped_early: int = 0  # tasks with fewer attempts than the budget
    extended: int = 0  # tasks with more

    @property
    def attempts(self) -> int:
        return sum(self.used.values())


@dataclass(frozen=True, slots=True)
class Spend:
    """How saved attempts are spent: on the least confident tasks, up to `most` attempts for each."""

    most: int
    confidence: Confidence


@dataclass(slots=True)
class TaskPrefix:
    """One task's prefix as far as outcomes are known."""

    used: int = 0
    clean: int = 0
    passed: int = 0
    missing: list[int] = field(default_factory=list)

    def take(self, outcome: Outcome) -> None:
        self.used += 1
        self.clean += outcome is not None
        self.passed += outcome is True


def task_prefix(outcomes: Mapping[int, Outcome], rule: StoppingRule) -> TaskPrefix:
    """How far one task's attempts go, and which it needs next whatever they give."""
    task = TaskPrefix()
    while task.used < rule.budget and not rule.stops[task.clean, task.passed]:
        if task.used not in outcomes:
            end = min(task.used + int(rule.ahead[task.clean, task.passed]), rule.budget)
            task.missing = [number for number in range(task.used, end) if number not in outcomes]
            break
        task.take(outcomes[task.used])
    return task


def prefix_of(uids: Iterable[str], outcomes: Outcomes, rule: StoppingRule, spend: Spend | None = None) -> Prefix:
    """What the attempts of all tasks are, as far as `outcomes` tells. The order of uids does not matter."""
    names = sorted(uids)
    tasks = [task_prefix(outcomes.get(uid, {}), rule) for uid in names]
    missing = [(uid, number) for uid, task in zip(names, tasks, strict=True) for number in task.missing]
    if not missing and spend is not None:
        missing = _spend(names, tasks, outcomes, rule.budget, spend)
    used = {uid: task.used for uid, task in zip(names, tasks, strict=True)}
    return Prefix(
        used,
        tuple(sorted(missing, key=lambda key: (key[1], key[0]))),
        stopped_early=sum(count < rule.budget for count in used.values()),
        extended=sum(count > rule.budget for count in used.values()),
    )


def _spend(
    names: Sequence[str], tasks: Sequence[TaskPrefix], outcomes: Outcomes, budget: int, spend: Spend
) -> list[tuple[str, int]]:
    """Adds the rounds to the tasks; what the first incomplete round lacks is returned."""
    left = len(tasks) * budget - sum(task.used for task in tasks)
    per_round = -(-left // ROUNDS)
    while left > 0:
        clean, passed = (np.array([getattr(task, name) for task in tasks]) for name in ("clean", "passed"))
        # Confidences that are equal in theory (mirrored counts) differ in the last bits.
        order = np.argsort(np.round(spend.confidence(clean, passed), 12), kind="stable").tolist()
        chosen = [i for i in order if tasks[i].used < spend.most][: min(per_round, left)]
        if not chosen:
            return []
        missing = [(names[i], tasks[i].used) for i in chosen if tasks[i].used not in outcomes.get(names[i], {})]
        if missing:
            return missing
        for i in chosen:
            tasks[i].take(outcomes[names[i]][tasks[i].used])
        left -= len(chosen)
    return []


def confidence_of(buckets: Buckets, group_size: int) -> Confidence:
    """Posterior probability that a task's pass rate lies where it is kept, or where it is dropped, the larger one.

    by=band: in the kept bands; by=signal: where a group is mixed with `buckets.min_mixed_probability`.
    """
    ranges = kept_rates(buckets, group_size)

    def confidence(clean: ArrayLike, passed: ArrayLike) -> NDArray[np.float64]:
        from scipy.special import betainc

        n, k = np.asarray(clean, dtype=np.int64), np.asarray(passed, dtype=np.int64)
        a, b = k + 0.5, n - k + 0.5
        inside = sum((betainc(a, b, high) - betainc(a, b, low) for low, high in ranges), np.zeros(len(n)))
        larger: NDArray[np.float64] = np.maximum(inside, 1.0 - inside)
        return larger

    return confidence


def kept_rates(buckets: Buckets, group_size: int) -> list[tuple[float, float]]:
    """The pass rates at which a task is kept if its rate is known, as ranges from low to high."""
    if buckets.by == "band":
        edges = (0.0, *edges_of(buckets), 1.0)
        return [(edges[i], edges[i + 1]) for i, name in enumerate(BANDS) if getattr(buckets.bands, name).keep]
    low, high = 0.0, 0.5  # 1 - p^G - (1-p)^G rises from 0 to p = 1/2 and falls again
    least = buckets.min_mixed_probability
    if 1.0 - 2.0 * 0.5**group_size < least:
        return []
    for _ in range(60):
        middle = (low + high) / 2
        if 1.0 - middle**group_size - (1.0 - middle) ** group_size < least:
            low = middle
        else:
            high = middle
    return [(high, 1.0 - high)]


__all__ = ["Prefix", "Spend", "TaskPrefix", "confidence_of", "kept_rates", "prefix_of", "task_prefix"]
