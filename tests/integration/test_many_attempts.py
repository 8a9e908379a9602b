"""Many attempts at once, and many after each other, in one process: the small form of benchmarks/many_attempts.py."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "many_attempts.py"


@pytest.fixture(scope="module")
def many() -> ModuleType:
    spec = importlib.util.spec_from_file_location("many_attempts", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_200_attempts_at_once_end_without_a_system_error(many: ModuleType, tmp_path: Path) -> None:
    before = many.children(os.getpid())
    _, errors, passed = many.campaign(many.sample(200), 1, 200, [], tmp_path)
    assert (errors, passed) == ({}, 200)
    assert many.children(os.getpid()) == before


def test_attempts_leave_no_open_file_and_no_memory_behind(many: ModuleType, tmp_path: Path) -> None:
    many.campaign(many.sample(8), 1, 8, [], tmp_path / "warm")
    before = open_files()
    policy, errors, passed = many.campaign(many.sample(40), 6, 16, [60, 230], tmp_path / "long")
    assert (errors, passed) == ({}, 240)
    assert open_files() <= before
    early, late = policy.seen
    # Rows are kept in memory: 170 of them are well below this. 16 sessions hold up to 4 files each.
    assert max(b - a for a, b in zip(early.mib, late.mib, strict=True)) < 8
    assert max(b - a for a, b in zip(early.files, late.files, strict=True)) <= 16 * 4
