"""What cannot be true of a row that was made elsewhere: numbers that are none, are negative, are out of any range, or
exceed what holds them.

Only what is there is looked at: a row may lack all of it. Other fields than the named ones are not ours to judge.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tbexp.attempts.row import MOST
from tbexp.errors import one_line

_COUNTS: Final = (
    *("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"),
    *("user_prompt_tokens", "user_cached_tokens", "user_completion_tokens", "user_reasoning_tokens"),
    *("judge_prompt_tokens", "judge_cached_tokens", "judge_completion_tokens", "judge_reasoning_tokens"),
    *("turns", "tool_calls", "tries"),
)
_TEXTS: Final = ("finish_reason", "domain", "search")
_FLAGS: Final = ("judged", "evaluation_only")
OPTIONAL: Final = (*_COUNTS, *_TEXTS, *_FLAGS, "reward", "seconds")  # what an attempt of tbexp may say or leave away
_PARTS: Final = tuple(
    (f"{role}{part}_tokens", f"{role}{whole}_tokens")
    for role in ("", "user_", "judge_")
    for part, whole in (("cached", "prompt"), ("reasoning", "completion"))
)
_USAGE: Final = (
    ("input_tokens", "input_tokens_details", "cached_tokens"),
    ("output_tokens", "output_tokens_details", "reasoning_tokens"),
)


def row_faults(plain: Mapping[str, Any], *, known: bool = True) -> Iterator[str]:
    """`field: what` of each. known: the row is an attempt of tbexp or a row of `tb infer`, so that its fields mean what
    they mean there; of any other row only what is read of it is looked at.
    """
    yield from _attempt("attempt", plain.get("attempt"), known)
    if (metadata := plain.get("metadata")) is not None:
        if isinstance(metadata, dict):
            yield from _attempt("metadata.repetition", metadata.get("repetition"), known)
            yield from _number("metadata.execution_time", metadata.get("execution_time"), least=0.0)
        elif known:
            yield f"metadata: {_short(metadata)} is no object"
    if known:
        for name in _COUNTS:
            yield from _count(name, plain.get(name))
        yield from _within(plain, _PARTS)
        own = "passed" in plain and "test_result" not in plain
        for name in _TEXTS if own else ("finish_reason",):
            if not isinstance(plain.get(name), str | None):
                yield f"{name}: {_short(plain[name])} is no text"
        if own:
            yield from _own(plain)
        yield from _number("reward", plain.get("reward"))
        yield from _number("seconds", plain.get("seconds"), least=0.0)
    if isinstance(result := plain.get("test_result"), dict):
        yield from _number("test_result.reward", result.get("reward"))
        if not isinstance(result.get("metadata") or {}, dict):
            yield f"test_result.metadata: {_short(result['metadata'])} is no object"
    for name in ("usage", "messages"):
        if not isinstance(plain.get(name) or [], list):
            yield f"{name}: {_short(plain[name])} is no list"
    if isinstance(usage := plain.get("usage"), list):
        for number, each in enumerate(usage):
            if isinstance(each, dict):
                yield from (f"usage.{number}.{fault}" for fault in _usage(each))
    if isinstance(messages := plain.get("messages"), list):
        for number, each in enumerate(messages):
            if isinstance(each, dict) and not isinstance(calls := each.get("tool_calls"), list | None):
                yield f"messages.{number}.tool_calls: {_short(calls)} is no list"


def _own(plain: Mapping[str, Any]) -> Iterator[str]:
    for name in _FLAGS:
        if not isinstance(plain.get(name), bool | None):
            yield f"{name}: {_short(plain[name])} is neither true nor false"
    if isinstance(error := plain.get("system_error"), dict):
        for name in ("kind", "message"):
            if error.get(name) is not None and not isinstance(error[name], str):
                yield f"system_error.{name}: {_short(error[name])} is no text"


def _usage(usage: Mapping[str, Any]) -> Iterator[str]:
    for whole, details, part in _USAGE:
        inner = usage.get(details)
        sizes = {whole: usage.get(whole), f"{details}.{part}": inner.get(part) if isinstance(inner, dict) else None}
        for name, value in sizes.items():
            yield from _count(name, value)
        yield from _within(sizes, ((f"{details}.{part}", whole),))


def _attempt(name: str, value: Any, known: bool) -> Iterator[str]:
    if value is not None and (type(value) is int or known) and (type(value) is not int or value < 0):
        yield f"{name}: {_short(value)} is no number of an attempt, which count from 0"
    elif type(value) is int and value > MOST:
        yield _too_large(name, value)


def _count(name: str, value: Any) -> Iterator[str]:
    if value is not None and (type(value) is not int or value < 0):
        yield f"{name}: {_short(value)} is no whole number from 0 on"
    elif value is not None and value > MOST:
        yield _too_large(name, value)


def _within(sizes: Mapping[str, Any], parts: Sequence[tuple[str, str]]) -> Iterator[str]:
    for part, whole in parts:
        some, every = sizes.get(part), sizes.get(whole)
        if type(some) is int and type(every) is int and some > every >= 0:
            yield f"{part}: {some} are more than {whole}, {every}, which they are part of"


def _number(name: str, value: Any, *, least: float = -math.inf) -> Iterator[str]:
    if value is None:
        return
    if type(value) not in (int, float) or (type(value) is float and not math.isfinite(value)):
        yield f"{name}: {_short(value)} is no number"
    elif value < least:
        yield f"{name}: {_short(value)} is less than {least:g}"
    elif abs(value) > MOST:
        yield _too_large(name, value)


def _too_large(name: str, value: float) -> str:
    return f"{name}: {_short(value)} is beyond 2**53"


def _short(value: Any) -> str:
    text = one_line(repr(value))
    return text if len(text) <= 40 else text[:37] + "..."
