"""What a keeper takes for a training's, and when one is used again; without Ray."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tbexp.training import keeper, keeping, processes
from tbexp.training.warm_workers import READY

sys.path.insert(0, str(Path(__file__).parent))

# A process that names itself and starts others below it, each with its own words as its command line; prints all ids.
TREE = """
import ctypes, os, subprocess, sys, time
ctypes.CDLL(None).prctl(15, sys.argv[1].encode())  # PR_SET_NAME
sleep = "import time; time.sleep(600)"
below = [subprocess.Popen([sys.executable, "-c", sleep, words]) for words in sys.argv[2:]]
print(os.getpid(), *[process.pid for process in below], flush=True)
time.sleep(600)
"""


def tree(mark: str, name: str, *below: str) -> tuple[subprocess.Popen[str], list[int]]:
    environment = os.environ | {processes.MARK: mark}
    command = [sys.executable, "-c", TREE, name, *below]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, [int(word) for word in process.stdout.readline().split()]


@pytest.fixture
def mark() -> Iterator[str]:
    mark = f"keep{os.getpid()}"
    yield mark
    processes.end(mark)


def test_rays_own_processes_stay_and_all_else_is_a_trainings(mark: str, tmp_path: Path) -> None:
    raylet, (ray, agent, other_agent, worker) = tree(
        mark, "raylet", "/ray/dashboard/agent.py", "/ray/runtime_env/agent/main.py", "/ray/default_worker.py"
    )
    monitor, (ours, helper) = tree(mark, "python", "/ray/helper.py")
    fork, (forked, server) = tree(mark, "python", "/a/server.py")
    gone, (_, orphan) = tree(mark, "python", "/an/orphan.py")
    gone.kill()
    gone.wait()
    (tmp_path / READY).write_text(json.dumps({"address": "a", "processes": [ray, ours]}))
    with socket.socket() as nothing:
        state = keeper.State(tmp_path, mark, nothing, nothing, watcher=0)
        try:
            assert set(keeper.of_trainings(state)) == {worker, forked, server, orphan}
            assert keeper.sweep(state)
            assert set(processes.marked(mark)) == {ray, agent, other_agent, ours, helper}
        finally:
            for end in state.woken:
                os.close(end)
            for process in (raylet, monitor, fork):
                process.kill()
                process.wait()


@pytest.fixture
def keepers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[keeping.Keeper]]:
    """All that are started, as processes that say there is a Ray (their own) and do nothing."""
    program = tmp_path / "python"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys, time\n"
        f"open(sys.argv[3] + '/{READY}', 'w').write(json.dumps(dict(processes=[os.getpid()])))\ntime.sleep(600)\n"
    )
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    started: list[keeping.Keeper] = []
    begin = keeping.Keeper.__init__

    def noted(self: keeping.Keeper, *told: object) -> None:
        begin(self, *told)  # type: ignore[arg-type]
        started.append(self)
        while not (self.temp / READY).exists() or not (self.temp / READY).read_text():
            time.sleep(0.01)

    monkeypatch.setattr(keeping.Keeper, "__init__", noted)
    yield started
    for each in started:
        with contextlib.suppress(Exception):
            each.end()


def used(topology: dict[str, object] | None = None, cpus: int = 4) -> keeping.Keeper:
    from toy_config import toy_config

    config = toy_config(topology={"name": "cpu", "device": "cpu", **(topology or {})})
    with (
        Path(os.devnull).open("wb") as output,
        keeping.keeper_for(config, {"num_cpus": cpus}, output) as keeper,
    ):
        return keeper


def ended(keeper: keeping.Keeper) -> bool:
    return not keeper.temp.exists() and processes.marked(keeper.mark) == [] and keeper.gone() is not None


def test_a_training_alone_ends_its_keeper(keepers: list[keeping.Keeper]) -> None:
    assert ended(used()) and ended(used()) and len(keepers) == 2


def test_trainings_of_a_block_share_a_keeper_that_ends_with_the_block(keepers: list[keeping.Keeper]) -> None:
    with pytest.raises(KeyboardInterrupt), keeping.kept():
        with keeping.kept():
            first = used()
            assert not ended(first)
        assert used() is first and first.used
        raise KeyboardInterrupt
    assert len(keepers) == 1 and ended(first)


@pytest.mark.parametrize("change", ["threads", "cores", "environment", "folder", "killed", "spoilt"])
def test_what_would_make_another_ray_starts_another_keeper(
    change: str, keepers: list[keeping.Keeper], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with keeping.kept():
        first = used()
        if change == "environment":
            monkeypatch.setenv("SOMETHING_OF_THE_USERS", "else")
        if change == "folder":
            monkeypatch.chdir(tmp_path)
        if change == "killed":
            first._process.kill()
            first._process.wait()
        first.spoilt = change == "spoilt"
        second = used({"threads": 2} if change == "threads" else None, cpus=5 if change == "cores" else 4)
        assert second is not first and ended(first)
    assert ended(second)


def test_what_changes_for_no_process_of_verls_changes_no_keeper(
    keepers: list[keeping.Keeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    with keeping.kept():
        first = used()
        monkeypatch.setenv("MLFLOW_RUN_ID", "of the next run")
        assert used() is first
