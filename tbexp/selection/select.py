"""The decision over each task, with its reasons.

Reasons, in this order (the first three are the published ones):
    excluded                  on the exclusion list                    } such a task meets no further gate
    benchmark                 a benchmark task                         }
    duplicate_of_excluded     same content as one of these             }
    insufficient_clean_runs   fewer clean attempts than selection.min_clean
    difficulty_not_retained   its band is not kept (buckets.by=band)                                } not where
    band_mass_too_small       posterior mass of its band below buckets.min_band_mass (by=band)      } selection.pool
    too_little_signal         mixed probability below buckets.min_mixed_probability (by=signal)     } is random or all
    reference_gate            the reference model does not show that it can be solved
    duplicate                 same content as a kept task of smaller uid
    not_drawn                 selection.pool=random, and the draw did not fall on it
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray

from tbexp.attempts.counts import Counts
from tbexp.errors import Problem, UserError
from tbexp.selection.forecast import Forecast, forecast, mixed_probability
from tbexp.selection.posterior import (
    BANDS,
    PUBLISHED_NAMES,
    VALUES,
    Posterior,
    edges_of,
    posterior,
    probability_above,
)
from tbexp.selection.split import Candidate, rank, split, stratum_of

if TYPE_CHECKING:
    from tbexp.config.schema import Buckets, Reference, SelectionConfig

REASONS: Final = (
    "excluded",
    "benchmark",
    "duplicate_of_excluded",
    "insufficient_clean_runs",
    "difficulty_not_retained",
    "band_mass_too_small",
    "too_little_signal",
    "reference_gate",
    "duplicate",
    "not_drawn",
)
DIFFICULTY: Final = frozenset({"difficulty_not_retained", "band_mass_too_small", "too_little_signal"})
_FIXES: Final = {
    "excluded": "shorten selection.exclude",
    "benchmark": "choose other candidates: tasks of the benchmark are never trained on",
    "duplicate_of_excluded": "shorten selection.exclude",
    "insufficient_clean_runs": "raise probe.attempts or lower selection.min_clean",
    "difficulty_not_retained": "keep more bands (buckets.bands.<name>.keep=true) or move their edges",
    "band_mass_too_small": "lower buckets.min_band_mass or raise probe.attempts",
    "too_little_signal": "lower buckets.min_mixed_probability or raise group.size",
    "reference_gate": "relax selection.reference",
    "duplicate": "",
    "not_drawn": "",
}


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task's counts, posterior and decision. `masses`, `interval` are shared between tasks of equal counts: read
    only.
    """

    uid: str
    clean: int
    passed: int
    failed: int
    system_errors: int
    alpha: float
    beta: float
    masses: Mapping[str, float]
    band: str
    interval: tuple[float, float]  # 95%, equal-tailed
    mixed_probability: float
    kept: bool
    reasons: tuple[str, ...]
    training_value: str
    priority: float


@dataclass(frozen=True, slots=True)
class Selection:
    """All tasks, sorted by uid, and the pool with its split. `settings` and `inputs` say what it was made from."""

    rows: tuple[TaskRow, ...]
    pool: tuple[str, ...]
    train: tuple[str, ...]
    validation: tuple[str, ...]
    forecast: Forecast
    removed: Mapping[str, int]  # tasks per reason; a task may have several
    bands: Mapping[str, int]  # tasks with clean attempts per band
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]  # SHA-256 of what was decided from


def select(
    counts: Counts,
    *,
    buckets: Buckets,
    selection: SelectionConfig,
    group_size: int,
    groups_per_update: int = 1,
    reference: Counts | None = None,
    never_probed: Set[str] = frozenset(),
    exclude: Set[str] | None = None,
    benchmark: Set[str] = frozenset(),
    content_hashes: Mapping[str, str] | None = None,
    seconds_per_attempt: float | None = None,
) -> Selection:
    """Decide over every task of `counts`.

    exclude: None reads `selection.exclude`. benchmark: uids never to be trained on. content_hashes: {uid: hash},
    equal for equal tasks. reference: counts of a stronger policy; None: no such gate. never_probed: tasks that the
    reference rejected before anything was attempted, which is then their only reason. The order of rows or tasks does
    not matter. UserError if no task is kept (saying which gate removed how many) or the reference settings contradict
    each other.
    """
    excluded = read_exclusions(selection.exclude) if exclude is None else frozenset(exclude)
    hashes = content_hashes or {}
    distinct, which = np.unique(np.stack([counts.clean, counts.passed], axis=1), axis=0, return_inverse=True)
    which = which.reshape(-1)
    post = posterior(distinct[:, 0], distinct[:, 1], edges_of(buckets))
    mixed = mixed_probability(post.alpha, post.beta, group_size)
    by_count = _count_reasons(_count_gates(distinct[:, 0], post, mixed, buckets, selection.min_clean))
    rejected = unsolved(counts.uids, reference, selection.reference)
    forbidden = {hashes[uid] for uid in counts.uids if uid in hashes and (uid in excluded or uid in benchmark)}

    def reasons_of(by_count: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
        found, seen = [], set[str]()
        for uid, index in zip(counts.uids, which.tolist(), strict=True):
            reasons = []
            content = hashes.get(uid)
            if uid in excluded:
                reasons.append("excluded")
            if uid in benchmark:
                reasons.append("benchmark")
            if not reasons and content is not None and content in forbidden:
                reasons.append("duplicate_of_excluded")
            if not reasons:
                if uid not in never_probed or uid not in rejected:
                    reasons.extend(by_count[index])
                if uid in rejected:
                    reasons.append("reference_gate")
                if not reasons and content is not None:
                    if content in seen:
                        reasons.append("duplicate")
                    seen.add(content)
            found.append(tuple(reasons))
        return found

    reasons = reasons_of(by_count)
    if selection.pool != "selected":
        size = sum(not why for why in reasons)
        reasons = reasons_of([tuple(why for why in each if why not in DIFFICULTY) for each in by_count])
        if selection.pool == "random":
            reasons = _drawn(counts.uids, reasons, size, selection.seed)
    shared = _Shared(distinct.tolist(), post, mixed.tolist())
    each = zip(counts.uids, which.tolist(), counts.system_errors.tolist(), reasons, strict=True)
    rows = [shared.row(uid, index, errors, why) for uid, index, errors, why in each]
    return _finish(
        rows,
        buckets=buckets,
        selection=selection,
        group_size=group_size,
        groups_per_update=groups_per_update,
        seconds_per_attempt=seconds_per_attempt,
        inputs={
            "counts": counts.digest(),
            **({} if reference is None else {"reference": reference.digest()}),
            "excluded": _digest(sorted(excluded)),
            "benchmark": _digest(sorted(benchmark)),
            "content_hashes": content_digest({uid: hashes[uid] for uid in counts.uids if uid in hashes}),
        },
    )


def content_digest(hashes: Mapping[str, str]) -> str:
    """What a selection's manifest knows the content of its tasks by. hashes: {uid: hash}."""
    return _digest(sorted(hashes.items()))


def read_exclusions(spec: str | Path | Iterable[str]) -> frozenset[str]:
    """The excluded uids: a list of them, or a YAML or JSON file that is a list of unique texts or has `uids` as its
    only key.
    """
    if not isinstance(spec, str | Path):
        return frozenset(spec)
    try:
        loaded = yaml.safe_load(Path(spec).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(Problem(f"{spec}: {error.strerror}", where="selection.exclude")) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(Problem(f"{spec} is neither YAML nor JSON: {error}", where="selection.exclude")) from None
    if isinstance(loaded, dict) and list(loaded) == ["uids"]:
        loaded = loaded["uids"]
    if not isinstance(loaded, list) or not all(isinstance(uid, str) and uid for uid in loaded):
        fix = "write a list of uids, or an object with the only key `uids`"
        raise UserError(Problem(f"{spec} holds no list of uids", where="selection.exclude", fix=fix))
    repeated = sorted(uid for uid, count in Counter(loaded).items() if count > 1)
    if repeated:
        raise UserError(Problem(f"{spec} names {', '.join(repeated[:5])} more than once", where="selection.exclude"))
    return frozenset(loaded)


def kept_by_counts(
    clean: ArrayLike, passed: ArrayLike, *, buckets: Buckets, min_clean: int, group_size: int
) -> NDArray[np.bool_]:
    """Whether a task of these counts is kept by all gates that look at counts alone; one answer per task."""
    n, k = np.asarray(clean, dtype=np.int64), np.asarray(passed, dtype=np.int64)
    post = posterior(n, k, edges_of(buckets))
    gates = _count_gates(n, post, mixed_probability(post.alpha, post.beta, group_size), buckets, min_clean)
    kept: NDArray[np.bool_] = ~np.any([removes for _, removes in gates], axis=0)
    return kept


def solved_by_counts(clean: ArrayLike, passed: ArrayLike, gate: Reference) -> NDArray[np.bool_]:
    """Whether these counts of the reference show that a task can be solved; one answer per task."""
    n, k = np.asarray(clean, dtype=np.int64), np.asarray(passed, dtype=np.int64)
    solved: NDArray[np.bool_] = (n >= gate.min_clean) & (k >= gate.min_passed)
    if gate.threshold is not None and gate.probability is not None:
        solved &= probability_above(n, k, gate.threshold) >= gate.probability
    return solved


def _count_gates(
    clean: NDArray[np.int64], post: Posterior, mixed: NDArray[np.float64], buckets: Buckets, min_clean: int
) -> list[tuple[str, NDArray[np.bool_]]]:
    """The gates that look at counts alone: a reason, and which tasks it removes."""
    kept = np.array([getattr(buckets.bands, name).keep for name in BANDS])
    gates: list[tuple[str, NDArray[np.bool_]]] = [("insufficient_clean_runs", clean < min_clean)]
    if buckets.by == "band":
        mass = post.masses[np.arange(len(post.band)), post.band]
        gates.append(("difficulty_not_retained", ~kept[post.band]))
        gates.append(("band_mass_too_small", mass < buckets.min_band_mass))
    else:
        gates.append(("too_little_signal", mixed < buckets.min_mixed_probability))
    return gates


def _drawn(uids: Sequence[str], reasons: Sequence[tuple[str, ...]], size: int, seed: int) -> list[tuple[str, ...]]:
    """`size` of the tasks without a reason against them, drawn by a seeded hash; the others were not drawn."""
    eligible = [uid for uid, why in zip(uids, reasons, strict=True) if not why]
    drawn = set(sorted(eligible, key=lambda uid: (rank(seed, "random_pool", uid), uid))[:size])
    each = zip(uids, reasons, strict=True)
    return [why if why or uid in drawn else ("not_drawn",) for uid, why in each]


def _count_reasons(gates: list[tuple[str, NDArray[np.bool_]]]) -> list[tuple[str, ...]]:
    """The reasons that counts alone decide, per distinct (clean, passed)."""
    return [tuple(name for name, removes in gates if removes[i]) for i in range(len(gates[0][1]))]


def unsolved(uids: Iterable[str], reference: Counts | None, gate: Reference) -> frozenset[str]:
    """The tasks that the reference does not show to be solvable. No reference: none."""
    if (gate.threshold is None) != (gate.probability is None):
        given, other = ("threshold", "probability") if gate.probability is None else ("probability", "threshold")
        raise UserError(
            Problem(
                f"{given} alone decides nothing",
                where=f"selection.reference.{given}",
                fix=f"set selection.reference.{other} too, or neither",
            )
        )
    if reference is None:
        return frozenset()
    counts = reference.only(uids)
    solved = solved_by_counts(counts.clean, counts.passed, gate)
    return frozenset(uid for uid, ok in zip(counts.uids, solved.tolist(), strict=True) if not ok)


class _Shared:
    """Python values per distinct (clean, passed), made once and shared by the rows: 50,000 tasks have few distinct
    counts.
    """

    def __init__(self, distinct: list[list[int]], post: Posterior, mixed: list[float]) -> None:
        self.counts = distinct
        self.alpha, self.beta = post.alpha.tolist(), post.beta.tolist()
        self.masses = [dict(zip(BANDS, masses, strict=True)) for masses in post.masses.tolist()]
        self.band = [BANDS[band] for band in post.band.tolist()]
        self.interval = list(zip(post.low.tolist(), post.high.tolist(), strict=True))
        self.mixed = mixed
        self.value = [VALUES[value] for value in post.value.tolist()]
        self.priority = post.priority.tolist()

    def row(self, uid: str, i: int, system_errors: int, reasons: tuple[str, ...]) -> TaskRow:
        clean, passed = self.counts[i]
        return TaskRow(
            uid,
            clean,
            passed,
            clean - passed,
            system_errors,
            self.alpha[i],
            self.beta[i],
            self.masses[i],
            self.band[i],
            self.interval[i],
            self.mixed[i],
            not reasons,
            reasons,
            self.value[i],
            self.priority[i],
        )


def _finish(
    rows: list[TaskRow],
    *,
    buckets: Buckets,
    selection: SelectionConfig,
    group_size: int,
    groups_per_update: int,
    seconds_per_attempt: float | None,
    inputs: Mapping[str, str],
) -> Selection:
    removed = Counter(reason for row in rows for reason in row.reasons)
    bands = Counter(row.band for row in rows if row.clean)
    kept = [row for row in rows if row.kept]
    if not kept:
        raise nothing_kept(len(rows), removed)
    train, validation = split(
        (
            Candidate(row.uid, stratum_of(PUBLISHED_NAMES[row.band], row.training_value, row.clean, row.passed))
            for row in kept
        ),
        fraction=selection.validation_fraction,
        seed=selection.seed,
    )
    settings = {
        "buckets": buckets.model_dump(mode="json", exclude={"name"}),
        "selection": {
            **selection.model_dump(mode="json", exclude={"name", "exclude", "reference"}),
            "reference": selection.reference.model_dump(mode="json", exclude={"rows", "policy", "attempts"}),
        },
        "group_size": group_size,
        "groups_per_update": groups_per_update,
        "seconds_per_attempt": seconds_per_attempt,
    }
    return Selection(
        rows=tuple(rows),
        pool=tuple(row.uid for row in kept),
        train=tuple(train),
        validation=tuple(validation),
        forecast=forecast(
            [row.mixed_probability for row in kept],
            group_size=group_size,
            groups_per_update=groups_per_update,
            seconds_per_attempt=seconds_per_attempt,
        ),
        removed={reason: removed[reason] for reason in REASONS if removed[reason]},
        bands={band: bands[band] for band in BANDS},
        settings=settings,
        inputs=inputs,
    )


def nothing_kept(total: int, removed: Mapping[str, int]) -> UserError:
    """Of a selection that keeps no task of so many. removed: tasks by reason."""
    gates = [reason for reason in REASONS if removed.get(reason)]
    what = ", ".join(f"{removed[reason]} {reason.replace('_', ' ')}" for reason in gates)
    worst = max(gates, key=lambda reason: removed[reason], default="")
    return UserError(
        Problem(
            f"no task of {total} is kept: {what}" if gates else "there are no tasks to select from",
            where="selection",
            fix=_FIXES.get(worst, ""),
        )
    )


def _digest(value: Any) -> str:
    import hashlib

    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()
