"""Selectors `<file name>:<test name>`, and the YAML lists of them that name pools, releases and splits.

Decided here: what a test list may contain. Left to others: which tests there are (loader.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import yaml

from tbexp.config.whole import write_whole
from tbexp.errors import Problem, UserError
from tbexp.tasks import blocks


class Selector(str):
    """A selector that remembers the `file:line` it was read from."""

    __slots__ = ("origin",)
    origin: str

    def __new__(cls, value: str, origin: str = "") -> Selector:
        made = super().__new__(cls, value)
        made.origin = origin
        return made

    def __reduce__(self) -> tuple[type[Selector], tuple[str, str]]:
        return type(self), (str(self), self.origin)


def split_selector(selector: str) -> tuple[str, str] | None:
    """File name and test name, or None when it is no selector."""
    file, colon, test = selector.partition(":")
    return (file, test) if colon and file and test and ":" not in test else None


def read_selectors(file: Path) -> list[str]:
    """The selectors of a test list in their order; UserError names every wrong entry with its line."""
    problems: list[Problem] = []
    found = right_selectors(file, problems)
    if problems:
        raise UserError(problems)
    return found


def right_selectors(file: Path, problems: list[Problem]) -> list[str]:
    """Those entries of a test list that are selectors; every wrong one is added to `problems`."""
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        problems.append(Problem(f"the test list cannot be read: {problem}", str(file)))
        return []
    value, node = blocks.read_yaml(text, Path(file), 1, problems)
    found: list[str] = []
    if not problems and not (isinstance(value, list) and isinstance(node, yaml.SequenceNode)):
        problems.append(Problem("a test list is a YAML list of <file>:<test>", f"{file}:1"))
    elif isinstance(node, yaml.SequenceNode):
        for part, part_node in zip(value, node.value, strict=True):
            where = f"{file}:{part_node.start_mark.line + 1}"
            if isinstance(part, str) and split_selector(part):
                found.append(Selector(part, where))
            else:
                problems.append(Problem(f"{part!r} is not of the form <file>:<test>", where))
    return found


def write_selectors(file: Path, uids: Iterable[str]) -> None:
    """Write a sorted YAML list, whole or not at all."""
    text = yaml.safe_dump(sorted(str(uid) for uid in uids), default_flow_style=False, allow_unicode=True, width=2**31)
    write_whole(file, text)
