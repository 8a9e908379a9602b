"""One attempt as a row: its fields, its JSON form, and the identity of a set of rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """What one attempt of a task gave.

    passed: None exactly if the world failed; `system_error` is then {"kind", "message"}. `attempt` counts from 0
    within the task. `tries` is the number of the try that made this row (1: the first one). Tokens of the policy are
    sums over its completions; `prompt_tokens` includes `cached_tokens`, `completion_tokens` includes
    `reasoning_tokens`; so do those of user and judge. `judged`: the verdict needed a judge. `search`: the knowledge
    search that the servers had, `embedded` or `external`; verdicts under the embedded one are not comparable with
    published ones.
    `evaluation_only`: the task is one of the public benchmark, so nothing may be trained on the attempt. `at_a_time`:
    how many attempts ran beside each other, this one included; 0: not recorded. `devices`: of this run that generated
    for them all; none where the policy is somebody's endpoint. `trajectory` is the store's reference, set by the store.
    """

    uid: str
    attempt: int
    passed: bool | None
    reward: float
    system_error: Mapping[str, str] | None = None
    finish_reason: str = ""
    turns: int = 0
    tool_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    domain: str = ""
    trajectory: str | None = None
    tries: int = 1
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    user_prompt_tokens: int = 0
    user_completion_tokens: int = 0
    judge_prompt_tokens: int = 0
    judge_completion_tokens: int = 0
    user_cached_tokens: int = 0
    user_reasoning_tokens: int = 0
    judge_cached_tokens: int = 0
    judge_reasoning_tokens: int = 0
    judged: bool = False
    search: str = ""
    evaluation_only: bool = False
    at_a_time: int = 0
    devices: int = 0

    def __post_init__(self) -> None:
        if (self.passed is None) != (self.system_error is not None):
            raise ValueError(
                f"{self.uid} attempt {self.attempt}: a verdict and a system error exclude each other, and one is needed"
            )

    @property
    def clean(self) -> bool:
        """Whether the attempt has a verdict."""
        return self.system_error is None

    def as_dict(self) -> dict[str, Any]:
        """The row's JSON form; `row_from_dict` is its inverse."""
        plain = asdict(self)
        plain["system_error"] = None if self.system_error is None else dict(self.system_error)
        return plain


MOST = 2**53  # larger numbers are no longer exact as floats, and sums of them leave int64
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "bool | None": (bool, type(None)),
    "str | None": (str, type(None)),
    "Mapping[str, str] | None": (dict, type(None)),
}
_FIELDS = {f.name: (_TYPES[str(f.type)], f.default is MISSING) for f in fields(AttemptRow)}


def row_from_dict(plain: Mapping[str, Any]) -> AttemptRow:
    """The row of a JSON object. ValueError with `field: what` for the first field that does not fit."""
    if not isinstance(plain, Mapping):
        raise ValueError("the line is no JSON object")
    for name in plain:
        if name not in _FIELDS:
            raise ValueError(f"{name}: no field of an attempt")
    for name, (types, required) in _FIELDS.items():
        if name not in plain:
            if required:
                raise ValueError(f"{name}: missing")
            continue
        value = plain[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise ValueError(f"{name}: {value!r} is no {' or '.join(t.__name__ for t in types)}")
        if isinstance(value, int) and abs(value) > MOST:
            raise ValueError(f"{name}: a number beyond 2**53")
    error = plain.get("system_error")
    if error is not None and not (isinstance(error.get("kind"), str) and isinstance(error.get("message"), str)):
        raise ValueError("system_error: needs kind and message, both text")
    if (plain["passed"] is None) != (error is not None):
        raise ValueError("passed: a verdict and a system error exclude each other, and one is needed")
    return AttemptRow(**plain)


def canonical(rows: Iterable[AttemptRow]) -> list[AttemptRow]:
    """The rows in the order of (uid, attempt), system errors before the clean row of the same attempt."""
    return sorted(rows, key=lambda r: (r.uid, r.attempt, r.clean, r.tries))


def digest(rows: Iterable[AttemptRow]) -> str:
    """SHA-256 of the rows, whatever their order, without what differs between equal runs: time, file position, and
    what they ran on.
    """
    sha = hashlib.sha256()
    for row in canonical(rows):
        plain = row.as_dict()
        for name in ("seconds", "trajectory", "at_a_time", "devices"):
            del plain[name]
        sha.update(json.dumps(plain, sort_keys=True, ensure_ascii=False).encode() + b"\n")
    return sha.hexdigest()
