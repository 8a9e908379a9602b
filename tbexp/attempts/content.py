"""What rows made elsewhere say about the content of their tasks: whether it is the public benchmark's.

Decided here: where a row holds it. A task of the benchmark is known by any text of a user, whatever its uid is; a row
may also have been labelled when it was made. Left to others: what is done about it (selection leaves such tasks out).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tbexp.tasks import is_benchmark_query


@dataclass(frozen=True, slots=True)
class Contents:
    """benchmark: uids whose rows are of the public benchmark. known: uids with a row that holds a user's text."""

    benchmark: frozenset[str]
    known: frozenset[str]


def of_benchmark(row: Mapping[str, Any], texts: Iterable[str]) -> bool:
    """Whether a row, with these texts of users in it, is marked as one of the benchmark's or is known as such."""
    metadata = row.get("metadata")
    marks = (row.get("evaluation_only"), metadata.get("evaluation_only") if isinstance(metadata, dict) else None)
    return True in marks or any(map(is_benchmark_query, texts))


def user_texts(value: Any) -> Iterator[str]:
    """All texts of users in the `messages` of a row, wherever in it these stand, in either shape of a message."""
    if not isinstance(value, dict):
        return
    for name, part in value.items():
        if name != "messages":
            yield from user_texts(part)
        for message in part if name == "messages" and isinstance(part, list) else ():
            if isinstance(message, dict) and message.get("role") == "user":
                yield from _texts(message.get("content"))


def _texts(content: Any) -> Iterator[str]:
    """A message's content is a text, or a list of parts of which some are."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield "".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
