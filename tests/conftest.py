"""For all tests: what the time of a run must not depend on. For tests that run the command in this process: its log."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("tbexp", deadline=None)  # no test fails on wall time
settings.load_profile("tbexp")


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is imported by now lives as long as the process: it is not looked through for garbage again and again."""
    gc.collect()
    gc.freeze()


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
