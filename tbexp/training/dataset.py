"""The tasks that verl trains and validates on, as the dataset classes it loads (`data.custom_cls`).

Decided here: training tasks come from a stream (`stream`) whose place is the only state; verl saves it with each
checkpoint, so a resumed run goes on with the task it would have drawn. What a task says is the episode's: rows carry
the uid only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tbexp.training.stream import task_of_draw

STREAM = (
    10**9
)  # more draws than any run makes; verl derives steps per epoch from it, so it is always in its first epoch


class TaskDataset(torch.utils.data.Dataset[dict[str, Any]]):  # type: ignore[misc]
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
            "raw_prompt": [
                {"role": "user", "content": uid}
            ],  # verl counts a batch by this column; the prompt is the episode's
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
