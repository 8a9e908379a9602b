"""The sample domain: a tool and machine rental desk, its tasks, its demonstrations, and the tiny policy that learns
from them.

Decided here: a world small enough for a policy of a million parameters. `data_root` is an ordinary ThinkingBox
dataset, which the rest of tbexp reads like any other. Importing this package needs neither torch nor MCP.
"""

from __future__ import annotations

from pathlib import Path

from tbexp.interpret.messages import Reading
from tbexp.samples.demonstrations import Demonstration, demonstrations, readings
from tbexp.samples.shipped import held_out, shipped

__all__ = ["Demonstration", "data_root", "demonstrations", "held_out", "shipped", "solution"]


def data_root() -> Path:
    """The dataset's folder: dataset/, servers/servers.yaml, releases/candidates.yaml and releases/held_out.yaml."""
    return Path(__file__).parent / "data"


def solution(uid: str) -> list[Reading]:
    """The recorded solution of a shipped task, one reading for each output of the policy. Raises KeyError."""
    return readings(shipped()[uid].right)
