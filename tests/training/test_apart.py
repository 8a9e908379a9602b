"""Two trainings on one machine have no socket in common."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.train

# What verl's sender and vLLM's server make the socket's name of, in a process that verl's import has prepared.
ASKS = """
import ray.runtime_context
from ray.runtime_context import RuntimeContext
RuntimeContext.get_job_id = lambda self: "01000000"
import tbexp.training.apart as apart
apart.keep_apart("again")
print(RuntimeContext.get_job_id(None))
"""


def test_the_same_job_of_two_trainings_has_two_ids() -> None:
    pytest.importorskip("ray")
    from tbexp.training.processes import MARK

    told = [
        subprocess.run(
            [sys.executable, "-c", ASKS], env=os.environ | {MARK: mark}, capture_output=True, text=True, check=True
        ).stdout.split()
        for mark in ("one", "two")
    ]
    assert told == [["01000000-one"], ["01000000-two"]]
