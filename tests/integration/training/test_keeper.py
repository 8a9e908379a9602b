"""Real trainings, one after the other in one process: one Ray serves them, and none inherits anything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tbexp.errors import WorldFailure
from tbexp.training import keeping, kept, processes, run
from tbexp.training.warm_workers import read_ready

HERE = Path(__file__).parent
CONFIG = Path(__file__).parents[2] / "training"  # toy_config, which unit tests use too
sys.path += [str(HERE), str(CONFIG)]

pytestmark = pytest.mark.train

CHILD = """
import sys
sys.path += {paths!r}
from pathlib import Path
from test_keeper import start
from tbexp.training import kept
with kept():
    start(Path({root!r}), "one")
    print("one", flush=True)
    start(Path({root!r}), "two", steps=50)
"""


def start(root: Path, name: str, *, steps: int = 1, uids: tuple[str, ...] = ("mixed-a", "mixed-b")) -> Any:
    from toy_config import toy_config

    libraries = ["tbexp.training.rollout_cpu", "tbexp.training.trainer_cpu", "handed"]
    os.environ["PYTHONPATH"] = f"{HERE}:{CONFIG}"
    began, first = time.monotonic(), []
    try:
        return run.train(
            toy_config(training={"steps": steps, "verl": {"actor_rollout_ref.model.external_lib": libraries}}),
            model_folder=root / "model",
            train_uids=uids,
            validation_uids=["mixed-v"],
            folder=root / name,
            loop="toy.ToyLoop",
            metrics=lambda row, step: first.append(time.monotonic() - began),
        )
    finally:
        sys.stdout.write(f"{name}: {first[:2]} seconds to the first validation and update\n")


def waiting() -> tuple[Path, list[int]]:
    """The folder of the keeper that waits for a training, and the processes of its Ray."""
    keeper = keeping._Here.waiting
    assert keeper is not None
    return keeper.temp, read_ready(keeper.temp)["processes"]


def temp_of(training: Path) -> Path:
    return Path(json.loads((training / "verl" / "plan.json").read_text())["ray"]["temp"])


def mark_of(temp: Path) -> str:
    return temp.name.removeprefix(processes.NAME)


def without_time(training: Path) -> list[dict[str, Any]]:
    """Its rows, but for seconds, memory, and sums over a batch that cancel out."""
    parts = ("timing", "second", "perf/", "wait", "actor/", "entropy", "kl", "advantages/", "returns/")
    rows = [json.loads(line) for line in (training / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not any(part in key for part in parts)} for row in rows]


def test_trainings_share_a_ray_inherit_nothing_of_a_failed_one_and_start_another_when_it_is_silent(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_FAIL", "mixed-x:*:99")
    monkeypatch.setenv("TOY_HANDED", str(root / "handed"))
    monkeypatch.setattr(run, "JOIN_SECONDS", 10.0)
    with kept():
        with pytest.raises(WorldFailure, match="mixed-x"):
            start(root, "failed", uids=("mixed-x",))
        temp, rays = waiting()
        keeper = keeping._Here.waiting
        left = set(processes.marked(mark_of(temp))) - set(rays)
        assert not [pid for pid in left if b"default_worker.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]

        after = start(root, "after", steps=1)
        assert keeping._Here.waiting is keeper and waiting() == (temp, rays)
        assert temp_of(root / "after") == temp_of(root / "failed") == temp
        assert after.history[1]["train/grad_norm"] > 0

        gcs = next(pid for pid in rays if Path(f"/proc/{pid}/comm").read_text().startswith("gcs_server"))
        os.kill(gcs, signal.SIGSTOP)
        alone = start(root, "alone", steps=1)
        assert waiting()[0] == temp_of(root / "alone") != temp
        assert not temp.exists() and processes.marked(mark_of(temp)) == []
    assert keeping._Here.waiting is None
    assert not temp_of(root / "alone").exists() and processes.marked(mark_of(temp_of(root / "alone"))) == []

    after_rows, alone_rows = without_time(root / "after"), without_time(root / "alone")
    assert len(after_rows) == len(alone_rows)
    for one, other in zip(after_rows, alone_rows, strict=True):  # a batch's order changes sums in their last digits
        assert one == pytest.approx(other, rel=1e-5)
    assert after.step == alone.step
    handed = [sorted(map(json.dumps, json.loads(line))) for line in (root / "handed").read_text().splitlines()]
    assert len(handed) == 2 and handed[0] == handed[1]  # every token, mask and advantage that was trained on


def test_nothing_is_left_of_a_process_that_is_killed_in_its_second_training(root: Path) -> None:
    command = [sys.executable, "-c", CHILD.format(paths=[str(HERE), str(CONFIG)], root=str(root))]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    file = root / "two" / "metrics.jsonl"
    while not (file.exists() and len(file.read_text().splitlines()) > 1):
        assert child.poll() is None, child.communicate()[1]
        time.sleep(0.05)
    temp = temp_of(root / "two")
    assert temp == temp_of(root / "one") and temp.exists()
    assert len(processes.marked(mark_of(temp))) > 8
    child.kill()
    child.communicate()
    end = time.monotonic() + 60
    while (temp.exists() or processes.marked(mark_of(temp))) and time.monotonic() < end:
        time.sleep(0.05)
    assert not temp.exists() and processes.marked(mark_of(temp)) == []
