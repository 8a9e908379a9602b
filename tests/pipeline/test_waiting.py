"""Who waits for what another run makes says so before it waits."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tbexp.pipeline.sharing import Shard, alone_in, attempts_of_shard
from tbexp.pipeline.waiting import alone

WHAT = "the attempts of evaluate base"


HOLD = """
import sys
from pathlib import Path
from tbexp.pipeline.waiting import alone
with alone(Path(sys.argv[1]), "nothing", run_dir=Path(sys.argv[2]), say=print):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held_by_another(lock: Path, run_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until its input is closed."""
    command = [sys.executable, "-c", HOLD, str(lock), str(run_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        yield other


def ended(other: subprocess.Popen[str]) -> None:
    assert other.stdin is not None
    other.stdin.close()


def test_who_waits_says_at_once_for_which_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    said: list[str] = []
    with held_by_another(tmp_path / ".lock", tmp_path / "sC") as other:

        def say(text: str) -> None:
            said.append(text)
            ended(other)  # it goes on until this was said

        with alone(tmp_path / ".lock", WHAT, run_dir=tmp_path / "sD", say=say):
            pass
        text = f"waits for {WHAT}, which another run is making: {tmp_path / 'sC'} (process {other.pid})"
    assert said == [text] and text in caplog.text
    assert not list(tmp_path.glob(".holder-of-*"))


def test_who_waits_for_nobody_says_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        with alone(tmp_path / ".lock", WHAT, run_dir=tmp_path, say=said.append):
            assert str(os.getpid()) in (tmp_path / ".holder-of-lock").read_text()
    assert said == []


@pytest.mark.parametrize("name", [".lock", ".lock-shard-0-of-2"])
@pytest.mark.parametrize("shard", [None, Shard(0, 2)])
def test_the_attempts_of_a_stage_are_waited_for_aloud(name: str, shard: Shard | None, tmp_path: Path) -> None:
    said: list[str] = []
    done: list[str] = []
    part = SimpleNamespace(missing=lambda store: [], part=lambda index, of: part)
    bar = SimpleNamespace(done=done.append)
    campaign: Any = SimpleNamespace(name="probe", folder=tmp_path, wanted=part)
    with held_by_another(tmp_path / name, tmp_path / "sC") as other:

        def say(text: str) -> None:
            said.append(text)
            ended(other)

        run: Any = SimpleNamespace(run_dir=tmp_path / "sD", progress=SimpleNamespace(say=say, stage=lambda *of: bar))
        if shard is None:
            with alone_in(run, campaign):
                done.append("")
        else:
            attempts_of_shard(run, campaign, shard)
    assert len(done) == len(said) == 1
    assert said[0].startswith(f"waits for the attempts of probe in {tmp_path}, which another run is making: ")
