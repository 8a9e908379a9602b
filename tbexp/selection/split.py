"""The published stratified split, to the task (thinkingbox format, section 10.4).

Within each group (the file a task stands in) strata of band, training value, pass rate and number of attempts get a
quota, and within a stratum the order is that of a seeded hash. Band names in the hash are the published ones, so that
equal counts and seeds give the published split.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tbexp.errors import Problem, UserError

_ONE_GROUP = "single_dataset"


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the split needs of a task: `stratum` as `stratum_of` makes it."""

    uid: str
    stratum: str


def stratum_of(difficulty: str, value: str, clean: int, passed: int) -> str:
    """The stratum of a task; `difficulty` is the published band name."""
    rate = passed / clean
    rate_bin = "zero" if rate == 0 else "low" if rate < 0.25 else "medium" if rate < 0.75 else "high"
    run_bin = "few" if clean <= 3 else "medium" if clean <= 10 else "many"
    return f"{difficulty}|{value}|{rate_bin}|{run_bin}"


def stable_seed(seed: int, key: str) -> int:
    """First 8 bytes of SHA-256("seed NUL key"), big-endian."""
    return int.from_bytes(hashlib.sha256(f"{seed}\0{key}".encode()).digest()[:8], "big")


def rank(seed: int, key: str, uid: str) -> str:
    """Place of a task under a key: the hex SHA-256 of "stable_seed NUL uid"."""
    return _rank(stable_seed(seed, key), uid)


def split(pool: Iterable[Candidate], *, fraction: float, seed: int) -> tuple[list[str], list[str]]:
    """(train, validation), both sorted.

    A group of one goes to train. Where every group has one task (one task per file) the pool is one group; the
    published code has no split for that. UserError if the pool has fewer than two tasks.
    """
    pool = list(pool)
    if len(pool) < 2:
        raise UserError(
            Problem(
                f"a pool of {len(pool)} task cannot be split into training and validation tasks",
                where="selection.validation_fraction",
                fix="keep more bands (buckets.bands.<name>.keep=true) or probe more candidates",
            )
        )
    groups: dict[str, list[Candidate]] = defaultdict(list)
    for task in pool:
        groups[task.uid.partition(":")[0] if ":" in task.uid else _ONE_GROUP].append(task)
    if all(len(group) == 1 for group in groups.values()):
        groups = {_ONE_GROUP: pool}
    validation: set[str] = set()
    for name, group in groups.items():
        if len(group) > 1:
            validation |= _validation_of(name, group, fraction, seed)
    everything = {task.uid for task in pool}
    return sorted(everything - validation), sorted(validation)


def _validation_of(name: str, group: list[Candidate], fraction: float, seed: int) -> set[str]:
    target = min(len(group) - 1, max(1, math.ceil(len(group) * fraction)))
    strata: dict[str, list[str]] = defaultdict(list)
    for task in group:
        strata[task.stratum].append(task.uid)
    chosen: set[str] = set()
    if all(len(uids) >= 2 for uids in strata.values()) and target >= len(strata):
        quota = _quotas({stratum: len(uids) for stratum, uids in strata.items()}, fraction, target)
        for stratum, uids in strata.items():
            chosen.update(_ranked(seed, f"{name}\0{stratum}", uids)[: quota[stratum]])
    rest = [task.uid for task in group if task.uid not in chosen]
    chosen.update(_ranked(seed, f"{name}\0fallback", rest)[: target - len(chosen)])
    return chosen


def _quotas(sizes: Mapping[str, int], fraction: float, target: int) -> dict[str, int]:
    quota = {stratum: min(size - 1, max(1, math.floor(size * fraction))) for stratum, size in sizes.items()}
    while sum(quota.values()) > target:
        # Never empty: target is at least the number of strata, so some quota is above 1.
        largest = max((q, stratum) for stratum, q in quota.items() if q > 1)[1]
        quota[largest] -= 1
    return quota


def _ranked(seed: int, key: str, uids: Iterable[str]) -> list[str]:
    number = stable_seed(seed, key)
    return sorted(uids, key=lambda uid: (_rank(number, uid), uid))


def _rank(number: int, uid: str) -> str:
    return hashlib.sha256(f"{number}\0{uid}".encode()).hexdigest()
