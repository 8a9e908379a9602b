from __future__ import annotations

import errno
import functools
import sys
from pathlib import Path

import pytest

from tbexp import disk
from tbexp.errors import UserError, WorldFailure
from tbexp.training import nonfinite, run
from tbexp.training.device_failures import REASONS
from tbexp.training.reporter import Reporter

VLLMS = (
    "(EngineCore pid=7) ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
)


def driven(folder: Path, monkeypatch: pytest.MonkeyPatch, said: str, *, ending: str | None = None) -> None:
    """A start of verl that says so and fails, after one that ran out of memory. ending: how, if not by its own word."""
    work = folder / "verl"
    work.mkdir()
    log = work / "driver.log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory.\n")  # of an earlier start
    program = folder / "python"
    outcome = '{"status": "failed", "message": "Engine core initialization failed"}'
    end = ending or f"echo '{outcome}' > {work}/outcome.json\nexit 1"
    program.write_text(f"#!/bin/sh\ncat {folder}/said\n{end}\n")
    program.chmod(0o700)
    (folder / "said").write_text(said)
    monkeypatch.setattr(sys, "executable", str(program))
    report = Reporter(folder, steps=3, keep=2, trials=4, progress=None, metrics=None)
    report.begin(0)
    plan, watch = work / "plan.json", nonfinite.Watch(folder, 5)
    run.run_verl(plan, start=functools.partial(run.start_driver, plan, {}), report=report, log_file=log, watch=watch)


@pytest.mark.parametrize(("sign", "told"), REASONS)
def test_what_verl_says_of_a_device_becomes_a_failure_of_the_world_with_what_to_do(
    sign: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WorldFailure) as raised:
        driven(tmp_path, monkeypatch, f"lines before\n{sign} and more\nlines after\n")
    assert str(raised.value) == f"{told}\nverl's log: {tmp_path / 'verl' / 'driver.log'}"


@pytest.mark.parametrize(
    "said",
    [
        "OSError: [Errno 28] No space left on device: '/x'\n",
        "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 10688 vs 10582\n",
    ],
)
def test_a_disk_that_was_full_elsewhere_is_told_with_the_log_that_says_where(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "LITTLE", 0)
    with pytest.raises(UserError, match=r"driver\.log: a disk, /tmp or /dev/shm was full"):
        driven(tmp_path, monkeypatch, said, ending="exit 1")


@pytest.mark.parametrize("said", ["OSError: [Errno 28] No space left on device: '/x'\n", ""])  # or its log had no room
def test_a_full_disk_is_told_as_the_system_tells_it(said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "LITTLE", 2**80)
    with pytest.raises(OSError) as raised:
        driven(tmp_path, monkeypatch, said, ending="exit 1")
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(tmp_path))


def test_what_an_earlier_start_said_is_no_reason_of_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="Engine core initialization failed"):
        driven(tmp_path, monkeypatch, "KeyError: 'x'\n")


def test_the_message_of_vllm_0_24_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WorldFailure, match="vLLM found no GPU memory for its cache"):
        driven(tmp_path, monkeypatch, VLLMS)


@pytest.mark.parametrize("said", ["lines before\n", "CUDA error: unspecified\n"])
def test_a_process_that_was_killed_from_outside_is_the_world_s_with_the_log(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WorldFailure) as raised:
        driven(tmp_path, monkeypatch, said, ending="kill -9 $$")
    told = dict(REASONS).get("CUDA error") if "CUDA" in said else run.KILLED
    assert str(raised.value) == f"{told}\nverl's log: {tmp_path / 'verl' / 'driver.log'}"


def test_a_process_that_ends_by_itself_without_a_word_is_a_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match="its process ended with code 9"):
        driven(tmp_path, monkeypatch, "", ending="exit 9")
