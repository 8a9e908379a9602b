"""For tests that run the command in this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def handlers_as_before() -> Iterator[None]:
    """What a command adds to the log is closed and gone after it."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in set(root.handlers) - set(before):
        root.removeHandler(handler)
        handler.close()
    root.handlers[:] = before
    root.setLevel(level)
