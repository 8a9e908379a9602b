"""What failed inside an attempt, written down where it failed: Ray strips exception types on the way up."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tbexp.errors import UserError, WorldError

FAILURES = "failures.jsonl"


@dataclass(frozen=True, slots=True)
class Failure:
    """whose: world (retried, replaced), user or ours (both end the run). tokens, prompt_tokens, seconds: what the try
    had spent; every completion is paid for with its whole prompt. others: tokens of user and judge.
    """

    task: str
    whose: str
    kind: str
    message: str
    tokens: int = 0
    prompt_tokens: int = 0
    seconds: float = 0.0
    others: Mapping[str, int] = field(default_factory=dict)


def note_failure(file: Path, task: str, error: Exception, **spent: Any) -> None:
    """One line in one write, so that processes can share the file. spent: further fields of the `Failure`."""
    if isinstance(error, WorldError):
        whose, kind, message = "world", error.kind, error.message
    else:
        whose = "user" if isinstance(error, UserError) else "ours"
        kind, message = type(error).__name__, str(error)
    line = json.dumps({"task": task, "whose": whose, "kind": kind, "message": message[:2000], **spent}) + "\n"
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def read_failures(file: Path) -> list[Failure]:
    if not file.exists():
        return []
    return [Failure(**json.loads(line)) for line in file.read_bytes().split(b"\n")[:-1]]
