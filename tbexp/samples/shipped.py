"""Which tasks ship: two candidates and one held-out task of each shape, from one fixed seed.

Held-out tasks are new combinations of customers, facts and conditions; they share the candidates' rules and shapes. A
content that was drawn before is drawn again, so no task is held out that is also a candidate.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

from tbexp.samples.shapes import SHAPES, situation
from tbexp.samples.situation import Situation

SEED = 2611
CANDIDATES = 2  # per shape
HELD_OUT = 1


@cache
def shipped() -> dict[str, Situation]:
    """uid -> situation, by topic file, candidates first."""
    return {uid: of for uid, of, _ in _drawn()}


@cache
def held_out() -> frozenset[str]:
    """The uids that are for evaluation only."""
    return frozenset(uid for uid, _, is_held_out in _drawn() if is_held_out)


@cache
def contents() -> frozenset[str]:
    """The contents of every shipped task; demonstrations leave them out."""
    return frozenset(of.content() for of in shipped().values())


@cache
def _drawn() -> tuple[tuple[str, Situation, bool], ...]:
    return tuple(_draw())


def _draw() -> Iterator[tuple[str, Situation, bool]]:
    seen: set[str] = set()
    for shape in SHAPES:
        for number in range(1, CANDIDATES + HELD_OUT + 1):
            attempt = 0
            while True:
                of = situation(shape, random.Random(f"{SEED} {shape} {number} {attempt}"))
                if of.content() not in seen:
                    break
                attempt += 1
            seen.add(of.content())
            yield f"{of.topic}.py:test_{shape}_{number}", of, number > CANDIDATES
