"""Many attempts at once, and many after each other, in one process: the small form of benchmarks/many_attempts.py."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
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


# A process of its own: what the other tests have left in this one grows and shrinks by itself.
LONG = """
import importlib.util, json, os, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("many_attempts", sys.argv[1])
many = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = many
spec.loader.exec_module(many)
many.campaign(many.sample(8), 1, 8, [], Path("warm"))
before = len(os.listdir("/proc/self/fd"))
policy, errors, passed = many.campaign(many.sample(40), 6, 16, [*range(40, 61, 5), *range(200, 226, 5)], Path("long"))
after = len(os.listdir("/proc/self/fd"))
seen = [{"files": held.files, "mib": held.mib} for held in policy.seen]
print(json.dumps({"errors": errors, "passed": passed, "before": before, "after": after, "seen": seen}))
"""


def test_200_attempts_at_once_end_without_a_system_error(many: ModuleType, tmp_path: Path) -> None:
    before = many.children(os.getpid())
    _, errors, passed = many.campaign(many.sample(200), 1, 200, [], tmp_path)
    assert (errors, passed) == ({}, 200)
    assert many.children(os.getpid()) == before


def test_attempts_leave_no_open_file_and_no_memory_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LONG, str(SCRIPT)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["errors"], found["passed"]) == ({}, 240)
    assert found["after"] <= found["before"]
    # The least of several looks: what an attempt holds for a moment is not what is left behind.
    early, late = (
        {what: [min(one) for one in zip(*(look[what] for look in looks), strict=True)] for what in ("mib", "files")}
        for looks in (found["seen"][:5], found["seen"][5:])
    )
    # Rows are kept in memory: 160 of them are well below this. 16 sessions hold up to 4 files each.
    assert max(b - a for a, b in zip(early["mib"], late["mib"], strict=True)) < 2
    assert max(b - a for a, b in zip(early["files"], late["files"], strict=True)) <= 16 * 4


def test_a_campaign_killed_five_times_and_resumed_comes_to_the_same_aggregate_and_the_same_rows() -> None:
    words = ["--tasks", "24", "--attempts", "8", "--kills", "5", "--at-once", "8"]
    script = SCRIPT.with_name("killed_attempts.py")
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("killed at") == 5 and "192 attempts with a verdict in 192 rows" in done.stdout
    assert "the same aggregate and the same rows" in done.stdout


def test_forked_attempts_and_those_with_a_process_each_are_compared_in_one_run() -> None:
    words = ["--blocks", "1", "--attempts", "40", "--by-process", "4", "--at-once", "4"]
    script = SCRIPT.with_name("bench_attempts.py")
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 1), done.stderr  # so few attempts are mostly the start of the launcher and the grader
    assert "attempts without a pass: 0" in done.stdout and done.stdout.count("attempts a second (blocks") == 2
