"""The order of training tasks: a stream without end, a seeded permutation per pass over the pool."""

from __future__ import annotations

import random
from collections.abc import Sequence


def task_of_draw(uids: Sequence[str], seed: int, draw: int) -> str:
    """The task of a place in the stream: place `draw % n` of the permutation of pass `draw // n`."""
    turn, place = divmod(draw, len(uids))
    order = list(uids)
    random.Random(f"{seed}/{turn}").shuffle(order)
    return order[place]
