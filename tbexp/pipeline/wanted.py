"""Which attempts a campaign has to make, and which rows of its store then count.

Two kinds: the same number at every task, and a prefix of each task's attempts that ends when its decision can hardly
change (`selection.prefix`). Both are answers to what the store holds, so a killed campaign goes on with the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from tbexp.attempts import AttemptRow, AttemptStore
from tbexp.selection import Prefix, Spend, StoppingRule, prefix_of, task_prefix

Key = tuple[str, int]  # (uid, attempt)


class Wanted(Protocol):
    """most: attempts of all tasks together, at most."""

    most: int

    def missing(self, store: AttemptStore) -> list[Key]:
        """What has to be made first, given what the store holds. A stored system error is made again."""
        ...

    def then(self, row: AttemptRow) -> list[Key]:
        """What has to be made besides, now that an attempt has ended, its retries included."""
        ...

    def counted(self, rows: Iterable[AttemptRow]) -> list[AttemptRow]:
        """The rows of a store that belong to this campaign."""
        ...

    def unmade(self, rows: Sequence[AttemptRow]) -> int:
        """How many attempts are not there yet, as far as can be told; a system error is there."""
        ...

    def part(self, index: int, of: int) -> Wanted:
        """What one of `of` jobs makes. Parts have nothing in common, whatever is there already, and together make all
        that can be made without knowing of each other.
        """
        ...


class FixedNumber:
    """`attempts` of every task."""

    def __init__(self, uids: Sequence[str], attempts: int, shard: tuple[int, int] = (0, 1)):
        self.uids, self.attempts, self.shard = uids, attempts, shard
        self._place = {uid: number for number, uid in enumerate(sorted(uids))}
        self.most = sum(self._mine(uid, n) for uid in uids for n in range(attempts))

    def _mine(self, uid: str, number: int) -> bool:
        # Over tasks and attempts, so that shards are equally long and equally difficult.
        return (self._place[uid] + number) % self.shard[1] == self.shard[0]

    def missing(self, store: AttemptStore) -> list[Key]:
        return [key for key in store.missing(self.uids, self.attempts) if self._mine(*key)]

    def then(self, row: AttemptRow) -> list[Key]:
        return []

    def counted(self, rows: Iterable[AttemptRow]) -> list[AttemptRow]:
        known = set(self.uids)
        return [
            row for row in rows if row.attempt < self.attempts and row.uid in known and self._mine(row.uid, row.attempt)
        ]

    def unmade(self, rows: Sequence[AttemptRow]) -> int:
        return self.most - len({(row.uid, row.attempt) for row in self.counted(rows)})

    def part(self, index: int, of: int) -> FixedNumber:
        return FixedNumber(self.uids, self.attempts, (index, of))


class AdaptiveNumber:
    """As many attempts of each task as its decision needs, `rule.budget` at most; with `spend`, of some tasks more."""

    def __init__(self, uids: Sequence[str], rule: StoppingRule, spend: Spend | None = None):
        self.uids, self.rule, self.spend = uids, rule, spend
        self.most = len(uids) * rule.budget
        self._outcomes: dict[str, dict[int, bool | None]] = {uid: {} for uid in uids}
        self._running: dict[str, int] = {}  # attempts that are asked for and have not ended, by task

    def missing(self, store: AttemptStore) -> list[Key]:
        self._outcomes, self._running = {uid: {} for uid in self.uids}, {}
        for row in store.rows():
            if row.clean and row.uid in self._outcomes:
                self._outcomes[row.uid][row.attempt] = row.passed
        return self._ask(list(self._prefix().missing))

    def then(self, row: AttemptRow) -> list[Key]:
        self._outcomes[row.uid][row.attempt] = row.passed
        self._running[row.uid] -= 1
        if self._running[row.uid]:
            return []
        del self._running[row.uid]
        more = [(row.uid, n) for n in task_prefix(self._outcomes[row.uid], self.rule).missing]
        if not more and not self._running and self.spend is not None:
            more = list(self._prefix().missing)
        return self._ask(more)

    def counted(self, rows: Iterable[AttemptRow]) -> list[AttemptRow]:
        rows = list(rows)
        used = self.prefix(rows).used
        return [row for row in rows if row.attempt < used.get(row.uid, 0)]

    def unmade(self, rows: Sequence[AttemptRow]) -> int:
        return len(self.prefix(rows).missing)

    def part(self, index: int, of: int) -> AdaptiveNumber:
        """Whole tasks, since each goes on from its own attempts. What is saved is known when all have stopped, so that
        several parts cannot spend it.
        """
        return self if of == 1 else AdaptiveNumber(sorted(self.uids)[index::of], self.rule)

    def prefix(self, rows: Iterable[AttemptRow]) -> Prefix:
        """What the rows of a store say; a system error that stands there has stayed."""
        outcomes: dict[str, dict[int, bool | None]] = {uid: {} for uid in self.uids}
        for row in rows:
            if row.uid in outcomes:
                outcomes[row.uid][row.attempt] = row.passed
        return prefix_of(self.uids, outcomes, self.rule, self.spend)

    def _prefix(self) -> Prefix:
        return prefix_of(self.uids, self._outcomes, self.rule, self.spend)

    def _ask(self, keys: list[Key]) -> list[Key]:
        for uid, _ in keys:
            self._running[uid] = self._running.get(uid, 0) + 1
        return keys
