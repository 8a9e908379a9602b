"""Rows to counts per task, and what coverage they have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tbexp.attempts.row import AttemptRow
from tbexp.errors import Problem, UserError, counted

_TOKENS = (
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "user_prompt_tokens",
    "user_cached_tokens",
    "user_completion_tokens",
    "user_reasoning_tokens",
    "judge_prompt_tokens",
    "judge_cached_tokens",
    "judge_completion_tokens",
    "judge_reasoning_tokens",
)

# How an attempt ends that the agent itself declares finished: it says so, or calls the tool that ends its turn. Which
# tool that was (a transfer to a person, say) no row holds, so handing a task over counts as claiming it.
CLAIMS = frozenset({"done", "end_turn_tool"})


@dataclass(frozen=True, slots=True)
class Tally:
    """One run of one policy over T tasks (in the order of the uids given). Attempts past the protocol are left out of
    everything but `beyond`.
    """

    clean: NDArray[np.int64]
    passed: NDArray[np.int64]
    expected: int
    rows: int  # also those that a later one made good
    beyond: int  # rows past the protocol
    system_errors: int  # attempts that have system errors only
    retried: int  # clean attempts that needed more than one try: by their own count, or by the rows of failed tries
    retried_passed: int
    told: NDArray[np.int64]  # clean attempts of which it is known how they ended, of each task as all three
    claimed: NDArray[np.int64]  # those that the agent itself ended, see CLAIMS
    claimed_falsely: NDArray[np.int64]  # of these the ones that the check failed
    judged: int  # clean attempts whose verdict needed a judge
    searches: frozenset[str]  # knowledge searches of the clean attempts: embedded, external
    tokens: Mapping[str, int]
    seconds: float
    finish_reasons: Mapping[str, int]
    system_error_kinds: Mapping[str, int]

    @property
    def missing(self) -> int:
        """Attempts without a clean row."""
        return self.expected - int(self.clean.sum())

    def coverage(self) -> dict[str, Any]:
        """As it stands in summary.json."""
        clean = int(self.clean.sum())
        return {
            "expected": self.expected,
            "clean": clean,
            "missing": self.missing,
            "system_errors": self.system_errors,
            "beyond": self.beyond,
            "share": clean / self.expected if self.expected else 1.0,
            "complete": self.missing == 0,
        }


def tally(rows: Sequence[AttemptRow], uids: Sequence[str], attempts: int, *, name: str = "rows") -> Tally:
    """Count rows. UserError if rows are of other tasks or an attempt has two clean rows; all of them in one message."""
    index = {uid: i for i, uid in enumerate(uids)}
    place = np.array([index.get(row.uid, -1) for row in rows], dtype=np.int64)
    number = np.array([row.attempt for row in rows], dtype=np.int64)
    state = np.array([-1 if row.passed is None else row.passed for row in rows], dtype=np.int64)
    _refuse_foreign(rows, place, name)
    inside = number < attempts
    clean = inside & (state >= 0)
    key = place * attempts + number
    times = np.bincount(key[clean], minlength=len(uids) * attempts)
    _refuse_duplicates(np.flatnonzero(times > 1).tolist(), uids, attempts, name)
    beyond = int((~inside).sum())
    if beyond:
        rows = [row for row, counts in zip(rows, inside.tolist(), strict=True) if counts]
        place, state, clean, key = place[inside], state[inside], clean[inside], key[inside]
    kept = [row for row, ok in zip(rows, clean.tolist(), strict=True) if ok]
    failed = np.bincount(key[state < 0], minlength=len(uids) * attempts) > 0
    n = np.bincount(place[clean], minlength=len(uids))
    c = np.bincount(place[clean], weights=state[clean], minlength=len(uids)).astype(np.int64)
    known = np.array([bool(row.finish_reason) for row in kept], dtype=bool)
    claims = np.array([row.finish_reason in CLAIMS for row in kept], dtype=bool)
    told, claimed, falsely = (
        np.bincount(place[clean][which], minlength=len(uids)).astype(np.int64)
        for which in (known, claims, claims & (state[clean] == 0))
    )
    made_good = failed[key[clean]].tolist()
    retried = [row for row, again in zip(kept, made_good, strict=True) if again or row.tries > 1]
    return Tally(
        clean=n.astype(np.int64),
        passed=c,
        expected=len(uids) * attempts,
        rows=len(rows),
        beyond=beyond,
        system_errors=int((failed & (times == 0)).sum()),
        retried=len(retried),
        retried_passed=sum(bool(row.passed) for row in retried),
        told=told,
        claimed=claimed,
        claimed_falsely=falsely,
        judged=sum([row.judged for row in kept]),
        searches=frozenset(row.search for row in kept if row.search),
        tokens={field: sum(map(attrgetter(field), rows)) for field in _TOKENS},
        seconds=float(sum([row.seconds for row in rows])),
        finish_reasons=dict(sorted(Counter([row.finish_reason for row in kept]).items())),
        system_error_kinds=dict(sorted(Counter(e["kind"] for row in rows if (e := row.system_error)).items())),
    )


def _refuse_foreign(rows: Sequence[AttemptRow], place: NDArray[np.int64], name: str) -> None:
    foreign = sorted({rows[i].uid for i in np.flatnonzero(place < 0).tolist()})
    if foreign:
        more = f" and {len(foreign) - 10} more" if len(foreign) > 10 else ""
        raise UserError(
            Problem(
                f"rows of {counted(len(foreign), 'task')} not evaluated: {', '.join(foreign[:10])}{more}",
                where=name,
                fix="name these tasks in tasks.held_out, or give the rows of these tasks alone",
            )
        )


def _refuse_duplicates(twice: list[int], uids: Sequence[str], attempts: int, name: str) -> None:
    if twice:
        shown = ", ".join(f"{uids[key // attempts]} attempt {key % attempts}" for key in twice[:10])
        more = f" and {len(twice) - 10} more" if len(twice) > 10 else ""
        raise UserError(
            Problem(
                f"more than one clean row of {counted(len(twice), 'attempt')}: {shown}{more}",
                where=name,
                fix="give each row once: one file may repeat another's rows",
            )
        )
