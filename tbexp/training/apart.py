"""Trainings on one machine keep apart. verl imports this in each of its processes on CUDA (`environment`).

verl 0.9.1 hands new weights to vLLM through a socket in /tmp whose name is made of the Ray job's id. Each of our
trainings has a Ray of its own, and the first job of every Ray has the same id, so that two trainings on one machine
would meet at one socket: on two H200s, two of six trainings that ran beside each other hung in the update of the
weights. Decided here: verl's processes are told an id that ends in the training's mark.
"""

from __future__ import annotations

import os
from typing import Any

from tbexp.training.processes import MARK


def keep_apart(mark: str) -> None:
    """From now on this process is told job ids that end in `mark`; a second call changes nothing."""
    from ray.runtime_context import RuntimeContext

    told = RuntimeContext.get_job_id
    if getattr(told, "tbexp_mended", False):
        return

    def apart(self: Any) -> str:
        return f"{told(self)}-{mark}"

    apart.tbexp_mended = True  # type: ignore[attr-defined]
    RuntimeContext.get_job_id = apart


if MARK in os.environ:
    keep_apart(os.environ[MARK])
