"""The tasks that verl trains and validates on, as the dataset classes it loads (`data.custom_cls`).

Decided here: the order of training tasks. It is a stream without end, a seeded permutation per pass over the pool, and the
place in it is the only state; verl saves that with each checkpoint, so a resumed run goes on with the task it would have
drawn. What a task says is `agent_loop`'s: rows carry the task's uid only.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

STREAM = 10**9  # more draws than any run makes; verl derives steps per epoch from it, so it is always in its first epoch


def task_of_draw(uids: Sequence[str], seed: int, draw: int) -> str:
    """The task of a place in the stream: place `draw % n` of the permutation of pass `draw // n`."""
    turn, place = divmod(draw, len(uids))
    order = list(uids)
    random.Random(f"{seed}/{turn}").shuffle(order)
    return order[place]


class TaskDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """`data_files` is a JSON file {"uids": [...], "seed": int, "stream": bool, "source": str, "agent": str}."""

    def __init__(self, data_files: str, config: Any, **_: Any):
        plan = json.loads(Path(data_files).read_text())
        self.uids: list[str] = plan["uids"]
        self.seed: int = plan["seed"]
        self.stream: bool = plan["stream"]
        self.source: str = plan["source"]
        self.agent: str = plan["agent"]
        self.draw = 0

    def __len__(self) -> int:
        return STREAM if self.stream else len(self.uids)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.stream:
            draw, self.draw = self.draw, self.draw + 1
            uid = task_of_draw(self.uids, self.seed, draw)
        else:
            draw, uid = index, self.uids[index]
        return {
            "raw_prompt": [{"role": "user", "content": uid}],  # verl counts a batch by this column; the prompt is the episode's
            "index": draw,
            "task": uid,
            "draw": draw,
            "data_source": self.source,
            "agent_name": self.agent,
            "dummy_tensor": torch.zeros(1, dtype=torch.uint8),  # verl's collate wants one tensor column
        }

    def state_dict(self) -> dict[str, int]:
        return {"draw": self.draw}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.draw = state["draw"]
