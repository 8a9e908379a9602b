"""Attempts of one task, clustered by what they changed in the world.

Decided here: when two attempts did the same. The state difference is taken as the servers tell it, as JSON of any form,
flattened to `path = value` lines. A cluster is the parts of the world that changed and how many records of each, with
the calls that every passed attempt made and these did not; inside it, variants are exactly equal differences.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LONG = 80  # characters of a value that are compared and shown
PLAIN = {"changes", "effects", "diff", "added", "removed", "updated"}  # says nothing about what was changed


@dataclass(frozen=True, slots=True)
class Done:
    """What one attempt did. difference: flattened state difference, sorted. calls: names of the tools it called."""

    policy: str
    attempt: int
    passed: bool | None
    difference: tuple[str, ...]
    areas: tuple[tuple[str, int], ...]
    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    label: str
    members: tuple[Done, ...]
    variants: tuple[tuple[tuple[str, ...], tuple[Done, ...]], ...]  # equal differences, the most frequent first

    def count(self, policy: str) -> int:
        return sum(member.policy == policy for member in self.members)

    def passed(self, policy: str) -> int:
        return sum(member.policy == policy and member.passed is True for member in self.members)


def done(policy: str, attempt: int, passed: bool | None, trajectory: Mapping[str, Any]) -> Done:
    effects = trajectory.get("effects") or {}
    calls = [
        str(call.get("name"))
        for message in trajectory.get("messages") or ()
        if message.get("T") == "ParallelToolCall"
        for call in message.get("tool_calls") or ()
    ]
    leaves = list(_leaves(effects, ()))
    return Done(
        policy,
        attempt,
        passed,
        tuple(sorted(f"{'.'.join(path)} = {_short(value)}" for path, value in leaves)),
        _areas([path for path, _ in leaves], several=len(effects) > 1),
        tuple(calls),
    )


def clusters(attempts: Sequence[Done]) -> list[Cluster]:
    """The largest first."""
    passed = [set(each.calls) for each in attempts if each.passed]
    needed = set.intersection(*passed) if passed else set()
    groups: dict[str, list[Done]] = {}
    for each in attempts:
        groups.setdefault(_label(each, needed), []).append(each)
    found = []
    for label, members in groups.items():
        variants: dict[tuple[str, ...], list[Done]] = {}
        for each in members:
            variants.setdefault(each.difference, []).append(each)
        ordered = sorted(variants.items(), key=lambda item: (-len(item[1]), item[0]))
        found.append(Cluster(label, tuple(members), tuple((lines, tuple(who)) for lines, who in ordered)))
    return sorted(found, key=lambda cluster: (-len(cluster.members), cluster.label))


def against(difference: Sequence[str], attempts: Iterable[Done]) -> tuple[list[str], list[str]]:
    """What a difference has beyond the most frequent one of the passed attempts, and what it lacks of it."""
    usual = Counter(each.difference for each in attempts if each.passed).most_common(1)
    if not usual:
        return [], []
    wanted = set(usual[0][0])
    return [line for line in difference if line not in wanted], sorted(wanted - set(difference))


def _label(each: Done, needed: set[str]) -> str:
    parts = [area + (f" ({count} records)" if count > 1 else "") for area, count in each.areas]
    text = "changed " + ", ".join(parts) if parts else "changed nothing"
    missing = sorted(needed - set(each.calls))
    return text + (f"; without {', '.join(missing)}" if missing else "")


def _leaves(value: Any, path: tuple[str, ...]) -> Iterable[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from _leaves(inner, (*path, f"#{number}"))
    elif value not in ({}, []):
        yield path, value


def _areas(paths: Iterable[tuple[str, ...]], *, several: bool) -> tuple[tuple[str, int], ...]:
    """Parts of the world and how many records of each: a record begins at the first key that holds a digit or is a
    place in a list; without one the last key is a field.
    """
    records: dict[str, set[str]] = {}
    for path in paths:
        start = 0 if several else 1
        end = next((i for i, key in enumerate(path) if i and re.search(r"\d", key)), max(1, len(path) - 1))
        name = " ".join(key for key in path[start:end] if key not in PLAIN) or path[0]
        records.setdefault(name, set()).add(path[end] if end < len(path) - 1 else "")
    return tuple(sorted((name, len(found)) for name, found in records.items()))


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONG else text[: LONG - 1] + "…"
