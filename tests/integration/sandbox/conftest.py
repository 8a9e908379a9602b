"""Servers and configurations for the sandbox's tests."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tbexp.config.schema import SandboxConfig
from tbexp.sandbox import Sandbox, Server, open_sandbox

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


@pytest.fixture(scope="session")
def in_sandbox() -> Iterator[Callable[[Callable[[Sandbox], Coroutine[Any, Any, Any]]], Any]]:
    """Runs a coroutine function on one sandbox that all tests share: a launcher on the SDK takes 0.8 s to start."""
    servers = {
        name: Server(name, (sys.executable, str(FOLDER / f"{name}.py")), {}, str(FOLDER))
        for name in ("shop", "cafe", "by_hand")
    }
    with asyncio.Runner() as runner:
        opening = open_sandbox(SandboxConfig(name="shared", kind="prefork", max_result_chars=100), servers)
        sandbox = runner.run(opening.__aenter__())
        yield lambda go: runner.run(go(sandbox))
        runner.run(opening.__aexit__(None, None, None))
