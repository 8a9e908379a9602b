"""Two policies on the same tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tbexp.evaluation.intervals import Floats, Resampling, alike_interval, paired_share_interval


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
    """(difference, low, high) of the means of per-task values, bootstrap over tasks. T values, or T x seeds. Not for
    shares of tasks, whose interval is `intervals.paired_share_interval`.
    """
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


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """What one policy did at each task. attempts: planned per task. counts: {uid: (clean, passed)}. contents: {uid:
    hash of the task's content}, where it is known. domains: {uid: domain}.
    """

    attempts: int
    counts: Mapping[str, tuple[int, int]]
    contents: Mapping[str, str]
    domains: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """A difference, second minus first, with its 95% interval over tasks; the tasks that it is a mean of."""

    value: float
    low: float | None
    high: float | None
    tasks: int


@dataclass(frozen=True, slots=True)
class Pairing:
    """Two runs at the tasks that they share: the same uid and, where both know it, the same content.

    every and p are None where k of k means something else on both sides (another k), or no task is complete.
    """

    attempts: tuple[int, int]
    shared: tuple[str, ...]
    missing: tuple[int, int]  # tasks that only the first has, only the second
    changed: tuple[str, ...]  # the same uid, another content: not shared
    same_counts: bool  # every shared task has the same counts: probably the same attempts
    pass_at_1: Change | None
    every: Change | None
    gained: tuple[str, ...]  # tasks passed every time by the second alone
    lost: tuple[str, ...]
    p: float | None  # exact McNemar


def pair(first: TaskCounts, second: TaskCounts, *, samples: int = 2000, seed: int = 7) -> Pairing:
    """Tests `second` against `first` over the tasks that they share. The difference in pass@1 has an interval by
    bootstrap, that in k of k Tango's (`intervals.paired_share_interval`).
    """
    both = sorted(first.counts.keys() & second.counts.keys())
    changed = tuple(
        uid
        for uid in both
        if uid in first.contents and uid in second.contents and first.contents[uid] != second.contents[uid]
    )
    other = set(changed)
    shared = tuple(uid for uid in both if uid not in other)
    seen = [uid for uid in shared if first.counts[uid][0] and second.counts[uid][0]]
    rates = [[side.counts[uid][1] / side.counts[uid][0] for uid in seen] for side in (first, second)]
    pass_at_1 = _change(rates[0], rates[1], samples, seed)
    every, p = None, None
    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    if first.attempts == second.attempts:
        k = first.attempts
        whole = [uid for uid in shared if first.counts[uid][0] == second.counts[uid][0] == k]
        was, now = ([side.counts[uid][1] == k for uid in whole] for side in (first, second))
        gained = tuple(uid for uid, before, after in zip(whole, was, now, strict=True) if after and not before)
        lost = tuple(uid for uid, before, after in zip(whole, was, now, strict=True) if before and not after)
        every = _change_of_share(len(gained), len(lost), len(whole))
        p = mcnemar_exact(len(gained), len(lost)) if whole else None
    return Pairing(
        attempts=(first.attempts, second.attempts),
        shared=shared,
        missing=(len(first.counts) - len(both), len(second.counts) - len(both)),
        changed=changed,
        same_counts=bool(shared) and all(first.counts[uid] == second.counts[uid] for uid in shared),
        pass_at_1=pass_at_1,
        every=every,
        gained=gained,
        lost=lost,
        p=p,
    )


def holm(ps: Sequence[float]) -> list[float]:
    """p-values adjusted for their number by Holm's step-down method (Holm 1979), in the order given."""
    adjusted = [1.0] * len(ps)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = highest
    return adjusted


def _change(before: Sequence[float], after: Sequence[float], samples: int, seed: int) -> Change | None:
    if not before:
        return None
    value, low, high = paired_difference(before, after, samples=samples, seed=seed)
    if len(before) < 2:  # one task says nothing about others
        return Change(value, None, None, len(before))
    if low == high:  # all tasks changed alike, or none did
        low, high = alike_interval(value, len(before), lowest=-1.0)
    return Change(value, low, high, len(before))


def _change_of_share(gained: int, lost: int, tasks: int) -> Change | None:
    if not tasks:
        return None
    # One task says nothing about others.
    low, high = paired_share_interval(gained, lost, tasks) if tasks > 1 else (None, None)
    return Change((gained - lost) / tasks, low, high, tasks)
