"""For tests that run the command in this process."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from tbexp.config.compose import Composer

COMPOSED: dict[tuple[bool, tuple[str, ...]], DictConfig] = {}


@pytest.fixture
def composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What conf/ alone composes to is the same in every test, and takes most of a command's time."""
    from tbexp.config.compose import Composer

    compose = Composer.__call__

    def shared(self: Composer, overrides: Sequence[str], *, multirun: bool = False) -> DictConfig:
        key = (multirun, tuple(overrides))
        if key not in self._composed and not self.searched:
            if key not in COMPOSED:
                COMPOSED[key] = copy.deepcopy(compose(self, overrides, multirun=multirun))
            self._composed[key] = copy.deepcopy(COMPOSED[key])  # a command changes where its run lies
        return compose(self, overrides, multirun=multirun)

    monkeypatch.setattr(Composer, "__call__", shared)


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
