"""What somebody probably meant, when a name is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], *, count: int = 2) -> list[str]:
    """The known words most like `word`, best first; none if nothing is near."""
    return difflib.get_close_matches(word, list(known), n=count, cutoff=0.6)


def nearest_keys(key: str, known: Iterable[str]) -> list[str]:
    """For a dotted key: near siblings first, then keys of the same last part elsewhere, then what is spelled alike."""
    known = list(known)
    parent, _, leaf = key.rpartition(".")
    siblings = {k.rpartition(".")[2]: k for k in known if k.rpartition(".")[0] == parent}
    beside = [siblings[name] for name in nearest(leaf, siblings)]
    elsewhere = [k for k in known if k.rpartition(".")[2] == leaf]
    alike = difflib.get_close_matches(key, known, n=2, cutoff=0.75)
    if beside:
        return beside
    return list(dict.fromkeys([*elsewhere[:2], *alike]))[:2]


def did_you_mean(names: Iterable[str]) -> str:
    names = list(names)
    return f"did you mean {' or '.join(names)}?" if names else ""
