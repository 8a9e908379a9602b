"""What a pool of tasks and an evaluation set have in common.

Decided here: what is compared. Servers and tools by name; policies, which are the instructions and documents that an
agent is given; queries that are equal, and near-equal ones by the Jaccard similarity of their sets of three words in a
row (Broder 1997), counted from 0.5 on; whole tasks by content, whatever they are called. Left to others: whether an
overlap is a fault. New tasks over the same tools are what an evaluation on held-out tasks means; an equal task is not.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tbexp.tasks.records import Task

SHINGLE = 3  # words
NEAR = 0.5
_NAMED = 10
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Shared:
    """Of things that evaluation tasks use: how many there are, and how many of them the pool uses too."""

    all: int
    shared: int


@dataclass(frozen=True, slots=True)
class Overlap:
    """pool, evaluation: how many tasks. near: (uid in the evaluation, the pool task nearest to it, similarity), highest
    first, not below NEAR; at most ten of them are kept, near_queries counts all. highest: the highest similarity.
    """

    pool: int
    evaluation: int
    servers: Shared
    tools: Shared
    policies: Shared
    equal_tasks: int  # evaluation tasks whose content is also that of a pool task
    equal_queries: int
    near_queries: int
    highest: float
    near: tuple[tuple[str, str, float], ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON form, with `text`, the sentence for people, and `short`."""
        return {**asdict(self), "near": [list(pair) for pair in self.near], "text": self.text(), "short": self.short()}

    def short(self) -> str:
        """What a reader of the results has to know, for a line of a table."""
        return (
            f"of {self.evaluation} held-out tasks {self.equal_tasks} are in the pool, {self.equal_queries} have an "
            f"equal query there, {self.near_queries} a near-equal one"
        )

    def text(self) -> str:
        """The figures in one line."""
        parts = [f"{part.shared} of {part.all} {name}" for name, part in
                 (("servers", self.servers), ("tools", self.tools), ("policies", self.policies))]  # fmt: skip
        return (
            f"{self.evaluation} evaluation tasks share with {self.pool} pool tasks {', '.join(parts)}; "
            f"{self.equal_tasks} are equal, {self.equal_queries} have an equal query, {self.near_queries} one that is "
            f"near-equal (Jaccard at least {NEAR}; highest {self.highest:.2f})"
        )


def overlap(pool: Sequence[Task], evaluation: Sequence[Task]) -> Overlap:
    """The overlap of two sets of tasks; about 1 s for thousands in each."""
    known = Counter(task.content_hash() for task in pool)
    queries = {_plain(task.query) for task in pool}
    near = _nearest(pool, evaluation)
    close = sorted((pair for pair in near if pair[2] >= NEAR), key=lambda pair: (-pair[2], pair[0]))
    return Overlap(
        pool=len(pool),
        evaluation=len(evaluation),
        servers=_shared(pool, evaluation, lambda task: task.server_names()),
        tools=_shared(pool, evaluation, lambda task: (tool.name for tool in task.scenario.tools)),
        policies=_shared(pool, evaluation, _policies),
        equal_tasks=sum(task.content_hash() in known for task in evaluation),
        equal_queries=sum(_plain(task.query) in queries for task in evaluation),
        near_queries=len(close),
        highest=round(max((similarity for _, _, similarity in near), default=0.0), 4),
        near=tuple(close[:_NAMED]),
    )


def similarity(one: str, other: str) -> float:
    """Jaccard similarity of the two texts' shingles, 0 to 1; 0 when one has no word."""
    a, b = _shingles(one), _shingles(other)
    return len(a & b) / len(a | b) if a and b else 0.0


def _nearest(pool: Sequence[Task], evaluation: Sequence[Task]) -> list[tuple[str, str, float]]:
    """For each evaluation task the pool task with the most similar query, where any shares a shingle with it."""
    sizes: list[int] = []
    having: Mapping[tuple[str, ...], list[int]] = defaultdict(list)
    for number, task in enumerate(pool):
        shingles = _shingles(task.query)
        sizes.append(len(shingles))
        for shingle in shingles:
            having[shingle].append(number)
    found = []
    for task in evaluation:
        shingles = _shingles(task.query)
        common = Counter(number for shingle in shingles if shingle in having for number in having[shingle])
        if common:
            score, number = max((n / (len(shingles) + sizes[at] - n), -at) for at, n in common.items())
            found.append((task.uid, pool[-number].uid, round(score, 4)))
    return found


def _shared(pool: Sequence[Task], evaluation: Sequence[Task], things: Any) -> Shared:
    mine = {thing for task in pool for thing in things(task)}
    theirs = {thing for task in evaluation for thing in things(task)}
    return Shared(len(theirs), len(theirs & mine))


def _policies(task: Task) -> Iterable[str]:
    """Hashes of the instructions and of each document that the scenario gives its servers under `sources`."""
    texts = [task.scenario.bot_instructions or "", task.bot_instructions or ""]
    for state in task.scenario.world_state.values():
        sources = state.get("sources") or ()
        texts += [str(source) for source in (sources if isinstance(sources, list) else ())]
    return [hashlib.sha256(text.encode()).hexdigest() for text in texts if text.strip()]


def _plain(text: str) -> str:
    return " ".join(_WORD.findall(text.lower()))


def _shingles(text: str) -> frozenset[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    size = min(SHINGLE, len(words))
    return frozenset(tuple(words[i : i + size]) for i in range(len(words) - size + 1)) if words else frozenset()
