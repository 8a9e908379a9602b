"""Servers and configurations for the sandbox's tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tbexp.config.schema import SandboxConfig
from tbexp.sandbox import Server

FOLDER = Path(__file__).parent / "servers"


@pytest.fixture
def server() -> Callable[..., Server]:
    def make(name: str, *arguments: str, **env: str) -> Server:
        return Server(name, (sys.executable, str(FOLDER / f"{name}.py"), *arguments), env, str(FOLDER))

    return make


@pytest.fixture
def config() -> Callable[..., SandboxConfig]:
    def make(kind: str = "prefork", **settings: Any) -> SandboxConfig:
        return SandboxConfig(name=kind, kind=kind, **settings)  # type: ignore[arg-type]

    return make
