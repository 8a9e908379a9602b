"""Loaded by verl's trainer ranks (`actor_rollout_ref.model.external_lib`): writes down what verl trains on.

One line of JSON for each optimiser step, into the file named by TOY_HANDED: of every row its token ids, and the mask
and the advantages of its response. It looks at the tensors that verl's own worker was given, behind all that selects,
balances or pads.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def watch(file: Path) -> None:
    from verl.workers.engine_workers import TrainingWorker

    train = TrainingWorker.train_batch

    def noting(self: Any, data: Any) -> Any:
        fields = [data[name].unbind() for name in ("input_ids", "response_mask", "advantages")]
        rows = [
            {"ids": i.tolist(), "mask": m.tolist(), "advantages": a.tolist()} for i, m, a in zip(*fields, strict=True)
        ]
        with file.open("a") as stream:
            stream.write(json.dumps(rows) + "\n")
        return train(self, data)

    TrainingWorker.train_batch = noting


if "RANK" in os.environ and os.environ.get("TOY_HANDED"):
    watch(Path(os.environ["TOY_HANDED"]))
