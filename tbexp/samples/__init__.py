"""The sample domain: a tool and machine rental desk, its tasks, its demonstrations, and the policies that learn from
them.

Decided here: a world small enough for a policy of a million parameters. `data_root` is an ordinary ThinkingBox
dataset, which the rest of tbexp reads like any other. Importing this package needs neither torch nor MCP.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tbexp.interpret.messages import Reading
from tbexp.samples.conversations import Demonstration, demonstrations, readings
from tbexp.samples.situation import Call, Say

if TYPE_CHECKING:
    from tbexp.config.schema import ModelConfig

__all__ = ["Demonstration", "build_base", "data_root", "demonstrations", "solution"]


def data_root() -> Path:
    """The dataset's folder: dataset/, servers/servers.yaml, releases/candidates.yaml and releases/held_out.yaml."""
    return Path(__file__).parent / "data"


def solution(uid: str) -> list[Reading]:
    """The recorded solution of a shipped task, one reading for each output of the policy. Raises KeyError."""
    steps = _solutions()[uid]
    return readings(tuple(Say(s["say"]) if "say" in s else Call(s["tool"], s["arguments"]) for s in steps))


@cache
def _solutions() -> dict[str, list[dict[str, Any]]]:
    recorded: dict[str, list[dict[str, Any]]] = json.loads((data_root() / "solutions.json").read_text(encoding="utf-8"))
    return recorded


def build_base(config: ModelConfig, folder: Path, **how: Any) -> Path:
    """The base policy's Hugging Face folder, built on first use; see `bases.build_base`. Needs torch."""
    from tbexp.samples.bases import build_base as build

    return build(config, folder, **how)
