"""The summary of an evaluation: the dictionary that becomes summary.json.

Shares are 0 to 1. JSON has no infinity and no NaN: an infinite cost is the text "inf", what cannot be computed is
null.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tbexp.attempts.row import AttemptRow
from tbexp.errors import Problem, UserError, WorldFailure
from tbexp.evaluation.compare import mcnemar_exact
from tbexp.evaluation.cost import Spending, cost_of
from tbexp.evaluation.intervals import (
    Floats,
    Resampling,
    alike_interval,
    fixed_tasks_every_time_interval,
    fixed_tasks_interval,
    paired_share_interval,
    share_interval,
    share_of_attempts,
    task_rate_lower_bound,
)
from tbexp.evaluation.metrics import (
    pass_at_k,
    pass_power_k,
    pass_rate,
    passed_at_least_once,
    passed_every_time,
    plug_in_pass_power_k,
)
from tbexp.evaluation.tally import Tally, tally

if TYPE_CHECKING:
    from tbexp.config.schema import Evaluation

Rows = Sequence[AttemptRow]
Json = dict[str, Any]


def summarise(
    policies: Mapping[str, Rows | Sequence[Rows]],
    *,
    attempts: int,
    tasks: Mapping[str, str],
    settings: Evaluation,
    groups: Mapping[str, Mapping[str, str | Sequence[str]]] | None = None,
    spending: Mapping[str, Spending] | None = None,
    advice: str = "make the missing attempts",
) -> dict[str, Any]:
    """Figures of each policy, and the paired difference of two (trained minus base, or second minus first).

    policies: {name: rows}, or {name: [rows of each seed]}; tasks: {uid: domain} of every task evaluated; groups:
    further groupings {name: {uid: label or labels}} (scenario, say), shown as by_<name> with fewer k; spending: {name:
    prices and models}, for the cost; advice: what to do where attempts are missing. A task's figure is its mean over
    seeds, and the bootstrap keeps them together. WorldFailure if coverage is incomplete and `settings.allow_partial` is
    false; UserError on duplicates, foreign rows, or seeds that cannot be paired.
    """
    uids = sorted(tasks)
    if not uids:
        raise UserError(Problem("there are no tasks to evaluate", where="tasks.held_out"))
    tallies = {name: [tally(run, uids, attempts, name=name) for run in _runs(rows)] for name, rows in policies.items()}
    _check_coverage(tallies, settings.allow_partial, advice)
    columns, spans = _columns(tallies)
    groupings: dict[str, Mapping[str, str | Sequence[str]]] = {"domain": tasks, **(groups or {})}
    whole = _Part(columns, spans, attempts, settings)
    parts = {
        f"by_{grouping}": {
            label: _Part(columns[places], spans, attempts, settings, every_k=grouping == "domain")
            for label, places in _members(uids, labels).items()
        }
        for grouping, labels in groupings.items()
    }
    result: dict[str, Any] = {"policies": {}}
    for name, runs in tallies.items():
        figures = {
            "tasks": len(uids),
            "attempts": attempts,
            "seeds": len(runs),
            "coverage": _coverage(runs),
            "partial": any(run.missing for run in runs),
            **whole.figures(name),
            **{key: {label: part.figures(name) for label, part in by.items()} for key, by in parts.items()},
            **_counts(runs, settings),
            "passed_by_task": dict(zip(uids, np.stack([run.passed for run in runs], axis=1).tolist(), strict=True)),
            "cost": None if spending is None or name not in spending else cost_of(runs, attempts, spending[name]),
        }
        result["policies"][name] = figures
    pair = ("base", "trained") if {"base", "trained"} <= set(tallies) else tuple(tallies)
    if len(pair) == 2:
        first, second = pair
        result["difference"] = {
            "of": [second, first],
            "partial": any(run.missing for name in pair for run in tallies[name]),
            **whole.difference(first, second),
            **{key: {label: part.difference(first, second) for label, part in by.items()} for key, by in parts.items()},
            **_gained_and_lost(uids, tallies[first], tallies[second], attempts),
        }
    plain: dict[str, Any] = _plain(result)
    return plain


def _members(uids: Sequence[str], labels: Mapping[str, str | Sequence[str]]) -> dict[str, list[int]]:
    """{label: places of the tasks that have it}, sorted."""
    found: dict[str, list[int]] = {}
    for place, uid in enumerate(uids):
        own = labels.get(uid, ())
        for label in {own} if isinstance(own, str) else set(own):
            found.setdefault(label, []).append(place)
    return dict(sorted(found.items()))


def _runs(rows: Rows | Sequence[Rows]) -> list[Rows]:
    if rows and not isinstance(rows[0], AttemptRow):
        return list(rows)  # type: ignore[arg-type]
    return [rows]  # type: ignore[list-item]


def _check_coverage(tallies: Mapping[str, Sequence[Tally]], allow_partial: bool, advice: str) -> None:
    lines = []
    for name, runs in tallies.items():
        for seed, run in enumerate(runs):
            if run.missing:
                which = f"{name}, seed {seed}" if len(runs) > 1 else name
                lines.append(
                    f"{which}: {run.expected - run.missing} of {run.expected} attempts have a verdict; "
                    f"{run.system_errors} ended in system errors, {run.missing - run.system_errors} were not made"
                )
    if lines and not allow_partial:
        lines.append(f"{advice}, or set evaluation.allow_partial=true")
        raise WorldFailure("coverage is incomplete, so there are no figures\n" + "\n".join(lines))
    for name, runs in tallies.items():
        if not any(run.clean.sum() for run in runs):
            raise WorldFailure(f"{name}: no attempt has a verdict")


def _columns(tallies: Mapping[str, Sequence[Tally]]) -> tuple[NDArray[np.int64], dict[str, list[int]]]:
    """T x D counts of all policies and seeds (clean, passed, clean, ...), and where each policy's columns begin."""
    columns: list[NDArray[np.int64]] = []
    spans: dict[str, list[int]] = {}
    for name, runs in tallies.items():
        spans[name] = []
        for run in runs:
            spans[name].append(len(columns))
            columns += [run.clean, run.passed]
    return np.stack(columns, axis=1), spans


class _Part:
    """Figures of a set of tasks: all of them, or those of one domain, or another group. The same tasks have the same
    figures whatever they are called. every_k: else 1 and attempts alone.
    """

    def __init__(
        self,
        columns: NDArray[np.int64],
        spans: Mapping[str, Sequence[int]],
        attempts: int,
        settings: Evaluation,
        every_k: bool = True,
    ) -> None:
        self.attempts = attempts
        self.ks = list(range(1, attempts + 1)) if every_k else sorted({1, attempts})
        self.columns, self.spans = columns, spans
        self.resampling = Resampling.of(columns, samples=settings.bootstrap, seed=settings.seed)
        self.values = {name: self._values(name) for name in spans}

    def _values(self, name: str) -> Floats:
        """G x M values of a policy: pass@1, at least once, every time, pass@k, pass^k, plug-in pass^k; means over
        seeds.
        """
        each = []
        for start in self.spans[name]:
            n, c = self.resampling.columns[:, start], self.resampling.columns[:, start + 1]
            each.append(
                np.column_stack(
                    [
                        pass_rate(n, c),
                        passed_at_least_once(n, c),
                        passed_every_time(n, c, self.attempts),
                        pass_at_k(n, c, self.ks),
                        pass_power_k(n, c, self.ks),
                        plug_in_pass_power_k(n, c, self.ks),
                    ]
                )
            )
        stacked = np.stack(each)
        there = (~np.isnan(stacked)).sum(axis=0)
        mean: Floats = np.divide(np.nansum(stacked, axis=0), there, out=np.full(there.shape, np.nan), where=there > 0)
        return mean

    def _interval(self, values: Floats, *, lowest: float = 0.0) -> tuple[Floats, Floats]:
        """Over tasks, of each column; NaN where it is of one task, which says nothing about others. lowest: that a
        task's value can be.
        """
        low, high = self.resampling.interval(values)
        known = ~np.isnan(values)
        tasks = (known * self.resampling.sizes[:, None]).sum(axis=0)
        low[tasks < 2] = high[tasks < 2] = np.nan
        least, most = np.where(known, values, np.inf).min(axis=0), np.where(known, values, -np.inf).max(axis=0)
        for column in np.flatnonzero((least == most) & (tasks > 1)):
            low[column], high[column] = alike_interval(float(least[column]), int(tasks[column]), lowest=lowest)
        return low, high

    def figures(self, name: str) -> dict[str, Any]:
        values = self.values[name]
        mean = self.resampling.mean(values)
        low, high = self._interval(values)
        counts = set()
        for column in _shares(values):
            known = ~np.isnan(values[:, column])
            sizes = self.resampling.sizes[known]
            if sizes.sum() > 1:
                low[column], high[column] = share_interval(float(values[known, column] @ sizes), float(sizes.sum()))
                counts.add(column)
        bare = [_figure(*triple) for triple in zip(mean.tolist(), low.tolist(), high.tolist(), strict=True)]
        k = self.attempts
        n_tasks = int(self.resampling.sizes.sum())
        starts = self.spans[name]
        n = self.columns[:, starts].astype(np.float64)
        c = self.columns[:, [s + 1 for s in starts]].astype(np.float64)
        fixed = fixed_tasks_interval(n.sum(axis=1), c.sum(axis=1))
        complete = ~np.isnan(values[self.resampling.which, 2])
        again = fixed_tasks_every_time_interval(n.sum(axis=1)[complete], c.sum(axis=1)[complete], k, float(mean[2]))
        every = [int(((n[:, s] == k) & (c[:, s] == k)).sum()) for s in range(len(starts))]
        once = [int((c[:, s] > 0).sum()) for s in range(len(starts))]
        figures: dict[str, Any] = {
            "tasks": n_tasks,
            "passed_attempts": int(c.sum()),
            "clean_attempts": int(n.sum()),
            "pass_at_1": {**bare[0], "fixed_low": fixed[0], "fixed_high": fixed[1]},
            "passed_at_least_once": {**bare[1], "tasks": _mean(once)},
            "observed_all_k": {
                **bare[2],
                "fixed_low": again[0],
                "fixed_high": again[1],
                "tasks": _mean(every),
                "complete_tasks": _mean([int((n[:, s] == k).sum()) for s in range(len(starts))]),
                "attempts": k,
                "task_rate_lower_bound": task_rate_lower_bound(k),
            },
            "pass_at_k": self._by_k(bare, 0, counts),
            "pass_power_k": self._by_k(bare, 1, counts),
            "pass_power_k_plug_in": self._by_k(bare, 2, counts),
        }
        if len(starts) > 1:
            figures["by_seed"] = [
                {
                    "pass_at_1": float(pass_rate(n[:, s], c[:, s])[n[:, s] > 0].mean()) if n[:, s].any() else None,
                    "passed_at_least_once": once[s],
                    "passed_every_time": every[s],
                }
                for s in range(len(starts))
            ]
        return figures

    def difference(self, first: str, second: str) -> dict[str, Any]:
        """Second minus first on the same tasks, under the same weights; of shares of tasks by their counts."""
        values = self.values[second] - self.values[first]
        mean = self.resampling.mean(values)
        low, high = self._interval(values, lowest=-1.0)
        for column in _shares(self.values[first]) & _shares(self.values[second]):
            gained, lost, total = (
                int(self.resampling.sizes[which].sum())
                for which in (values[:, column] > 0, values[:, column] < 0, ~np.isnan(values[:, column]))
            )
            if total > 1:
                low[column], high[column] = paired_share_interval(gained, lost, total)
        bare = [_figure(*triple) for triple in zip(mean.tolist(), low.tolist(), high.tolist(), strict=True)]
        return {
            "pass_at_1": bare[0],
            "passed_at_least_once": bare[1],
            "observed_all_k": bare[2],
            "pass_at_k": self._by_k(bare, 0),
        }

    def _by_k(self, bare: Sequence[Json], block: int, counts: Collection[int] = ()) -> dict[str, Json]:
        """The block-th run of len(ks) figures after the three single ones; of `counts` (columns) it is told that their
        interval is that of a count, since along k the method may change.
        """
        start = 3 + block * len(self.ks)
        return {
            str(k): bare[start + i] | ({"interval": "count"} if start + i in counts else {})
            for i, k in enumerate(self.ks)
        }


def _shares(values: Floats) -> set[int]:
    """The columns of G x M values that are shares of tasks, so counts, whatever k they are of."""
    return set(np.flatnonzero(((values == 0.0) | (values == 1.0) | np.isnan(values)).all(axis=0)).tolist())


def _figure(value: float, low: float, high: float) -> Json:
    return {"value": value, "low": low, "high": high}


def _mean(counts: Sequence[int]) -> float | int:
    """The count of a single run; the mean over seeds otherwise."""
    return counts[0] if len(counts) == 1 else sum(counts) / len(counts)


def _coverage(runs: Sequence[Tally]) -> dict[str, Any]:
    parts = [run.coverage() for run in runs]
    total = {
        key: sum(part[key] for part in parts) for key in ("expected", "clean", "missing", "system_errors", "beyond")
    }
    return {**total, "share": total["clean"] / max(total["expected"], 1), "complete": total["missing"] == 0}


def _counts(runs: Sequence[Tally], settings: Evaluation) -> dict[str, Any]:
    clean = sum(int(run.clean.sum()) for run in runs)
    passed = sum(int(run.passed.sum()) for run in runs)
    retried, retried_passed = sum(r.retried for r in runs), sum(r.retried_passed for r in runs)
    judged = sum(run.judged for run in runs)
    told, claimed, falsely = (
        np.sum([getattr(run, name) for run in runs], axis=0) for name in ("told", "claimed", "claimed_falsely")
    )
    return {
        "first_try": {"attempts": clean - retried, "pass_rate": _share(passed - retried_passed, clean - retried)},
        "retried": {"attempts": retried, "pass_rate": _share(retried_passed, retried)},
        "claimed_success": {
            "attempts": int(claimed.sum()),
            "failed": int(falsely.sum()),
            **_share_of_attempts("share", falsely, told, settings),  # of all attempts whose end is known
            **_share_of_attempts("share_of_claims", falsely, claimed, settings),
        },
        "judged_share": _share(judged, clean),
        "judged_by_code_share": _share(clean - judged, clean),
        # One attempt under the embedded search is enough: the figures are not comparable with published ones then.
        "search": next((kind for kind in ("embedded", "external") if any(kind in r.searches for r in runs)), None),
        "finish_reasons": _summed(run.finish_reasons for run in runs),
        "system_error_kinds": _summed(run.system_error_kinds for run in runs),
        "tokens": _summed(run.tokens for run in runs),
        "attempt_seconds": sum(run.seconds for run in runs),
    }


def _share_of_attempts(
    name: str, part: NDArray[np.int64], whole: NDArray[np.int64], settings: Evaluation
) -> dict[str, float | None]:
    """{name, name_low, name_high}."""
    found = share_of_attempts(part, whole, samples=settings.bootstrap, seed=settings.seed) or (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), found, strict=True))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _summed(counts: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for key, count in each.items():
            total[key] = total.get(key, 0) + count
    return dict(sorted(total.items()))


def _gained_and_lost(
    uids: Sequence[str], first: Sequence[Tally], second: Sequence[Tally], attempts: int
) -> dict[str, Any]:
    """Tasks passed every time by one policy alone. With several seeds: in more seeds (of its own) than by the other.

    Only tasks that have all attempts on both sides are compared, for each pair of seeds and for the lists in all of
    them; p is None where there are none.
    """
    if len(first) != len(second) and 1 not in (len(first), len(second)):
        raise UserError(Problem(f"{len(first)} and {len(second)} seeds cannot be paired", where="evaluation"))
    complete = np.all([run.clean == attempts for run in (*first, *second)], axis=0)
    before = np.mean([run.passed == attempts for run in first], axis=0)
    after = np.mean([run.passed == attempts for run in second], axis=0)
    tests = []
    for seed in range(max(len(first), len(second))):
        old, new = first[seed % len(first)], second[seed % len(second)]
        whole = (old.clean == attempts) & (new.clean == attempts)
        was, now = old.passed == attempts, new.passed == attempts
        gained, lost, compared = (int((which & whole).sum()) for which in (now & ~was, was & ~now, whole))
        p = mcnemar_exact(gained, lost) if compared else None
        tests.append({"gained": gained, "lost": lost, "compared": compared, "p": p})
    return {
        "compared": int(complete.sum()),
        "gained": [uid for uid, more in zip(uids, (complete & (after > before)).tolist(), strict=True) if more],
        "lost": [uid for uid, less in zip(uids, (complete & (after < before)).tolist(), strict=True) if less],
        "mcnemar": tests[0] if len(tests) == 1 else tests,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return None if math.isnan(value) else "inf" if math.isinf(value) else float(value)
    return value
