"""What somebody probably meant, when a name is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], *, count: int = 2) -> list[str]:
    """The known words most like `word`, best first; none if nothing is near."""
    return difflib.get_close_matches(word, list(known), n=count, cutoff=0.6)


def nearest_keys(key: str, known: Iterable[str]) -> list[str]:
    """For a dotted key: what it becomes when each part is mended in its place, or keys of the same last part."""
    known = list(known)
    found = mended(key.split("."), known)
    if found:
        return found
    leaf = key.rpartition(".")[2]
    elsewhere = [name for name in known if name.rpartition(".")[2] == leaf]
    return list(dict.fromkeys([*elsewhere, *difflib.get_close_matches(key, known, n=2, cutoff=0.75)]))[:2]


def mended(parts: list[str], known: list[str], before: str = "") -> list[str]:
    """Known keys that differ from `parts` by the spelling of parts only, nearest first."""
    here = {name.removeprefix(before) for name in known if name.startswith(before)}
    names = [name for name in here if "." not in name]
    first, *rest = parts
    candidates = [first] if first in names else nearest(first, sorted(names))
    if not rest:
        return [f"{before}{name}" for name in candidates]
    return [key for name in candidates for key in mended(rest, known, f"{before}{name}.")][:2]


def did_you_mean(names: Iterable[str]) -> str:
    names = list(names)
    return f"did you mean {' or '.join(names)}?" if names else ""
