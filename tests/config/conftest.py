"""Composes as the command does, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder


@pytest.fixture
def composed() -> Callable[..., dict[str, Any]]:
    def values(*overrides: str) -> dict[str, Any]:
        with opened(conf_folder()) as compose:
            return plain(compose(list(overrides)))

    return values
