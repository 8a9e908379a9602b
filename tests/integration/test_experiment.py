"""The whole experiment on a small scale, with verl: from start to end, again, and killed in each stage.

`TBEXP_KILLS=20 pytest tests/integration/test_experiment.py` kills at that many seeded moments; the suite at a few.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("verl")
pytest.importorskip("ray")

from tbexp.attempts import AttemptStore, digest

pytestmark = [pytest.mark.train, pytest.mark.end_to_end, pytest.mark.timeout(3600)]

SEED = 11
KILLS = int(os.environ.get("TBEXP_KILLS", "3"))
# What stderr says when a stage begins, and the seconds within which it is killed.
STAGES = [
    ("train: 2 updates", 60.0),
    ("probe: 48 attempts", 6.0),
    ("build base policy: steps", 20.0),
    ("evaluate base: 12 attempts", 4.0),
    ("evaluate trained: 12 attempts", 4.0),
]


class Experiment:
    """`tbexp experiment=smoke` in a folder of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True)
        self.runs = 0

    def start(self) -> tuple[subprocess.Popen[bytes], Path]:
        self.runs += 1
        said = self.folder / f"stderr-{self.runs}"
        with said.open("wb") as stderr:
            command = [sys.executable, "-m", "tbexp", "experiment=smoke"]
            return subprocess.Popen(command, cwd=self.folder, stderr=stderr, stdout=stderr), said

    def finish(self) -> str:
        process, said = self.start()
        assert process.wait(timeout=1800) == 0, said.read_text()[-3000:]
        return said.read_text()

    @property
    def run(self) -> Path:
        (folder,) = (self.folder / "outputs" / "smoke").iterdir()
        return folder

    def pools(self) -> dict[str, bytes]:
        return {f.name: f.read_bytes() for f in sorted((self.run / "select").iterdir())}

    def steps(self) -> list[int]:
        return [json.loads(line)["step"] for line in (self.run / "train" / "metrics.jsonl").read_text().splitlines()]

    def rows(self, place: str) -> list[Any]:
        with AttemptStore(self.run / place, read_only=True) as store:
            return store.rows()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    experiment = Experiment(tmp_path_factory.mktemp("unbroken") / "here")
    experiment.said = experiment.finish()  # type: ignore[attr-defined]
    return experiment


def test_the_experiment_runs_through_all_stages(unbroken: Experiment) -> None:
    said = unbroken.said  # type: ignore[attr-defined]
    for stage in (
        "probe: done",
        "select: ",
        "train: done",
        "evaluate base: done",
        "evaluate trained: done",
        "report: ",
    ):
        assert stage in said
    assert "Traceback" not in said and "\x1b" not in said
    assert len(unbroken.rows("probe")) == 48 and all(row.clean for row in unbroken.rows("probe"))
    assert unbroken.steps() == [0, 1, 2]
    summary = json.loads((unbroken.run / "evaluate" / "summary.json").read_text())
    assert set(summary["policies"]) == {"base", "trained"}
    for policy in summary["policies"].values():
        assert policy["tasks"] == 6 and policy["attempts"] == 2
        assert (
            0 <= policy["observed_all_k"]["value"] <= policy["pass_at_1"]["value"] <= policy["pass_at_k"]["2"]["value"]
        )
    assert set(summary["difference"]) >= {"pass_at_1", "observed_all_k"}
    assert (unbroken.run / "train" / "chosen" / "model.safetensors").exists()
    assert "pass@1" in (unbroken.run / "report" / "report.html").read_text()


def test_what_mlflow_holds_is_one_run_with_metrics_of_all_stages(unbroken: Experiment) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{unbroken.folder / 'outputs' / 'mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if e.name == "smoke"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    names = set(run.data.metrics)
    for name in (
        "probe/pass_rate",
        "select/pool_size",
        "select/expected_mixed_rate",
        "train/reward_mean",
        "eval/pass_at_1",
    ):
        assert name in names
    assert [m.step for m in client.get_metric_history(run.info.run_id, "train/reward_mean")] == [1, 2]
    config = yaml.safe_load((unbroken.run / "config.yaml").read_text())
    assert float(run.data.params["optimizer.lr"]) == config["optimizer"]["lr"]
    assert run.data.params["probe.attempts"] == str(config["probe"]["attempts"])


def test_a_run_that_shares_a_finished_training_has_its_curve_too(unbroken: Experiment) -> None:
    from mlflow.tracking import MlflowClient

    command = [sys.executable, "-m", "tbexp", "experiment=smoke", "name=another", "stages=[probe,select,train]"]
    done = subprocess.run(command, cwd=unbroken.folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stderr.count("finished before, nothing to do") == 2, done.stderr
    client = MlflowClient(f"sqlite:///{unbroken.folder / 'outputs' / 'mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if e.name == "another"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert [m.step for m in client.get_metric_history(run.info.run_id, "train/reward_mean")] == [1, 2]


def test_the_same_command_again_does_nothing_again_and_says_so(unbroken: Experiment) -> None:
    before = {f: f.stat().st_mtime_ns for f in (unbroken.folder / "outputs" / "stages").rglob("*.jsonl")}
    said = unbroken.finish()
    assert said.count("nothing to do") >= 4
    assert {f: f.stat().st_mtime_ns for f in before} == before


def test_killed_in_each_stage_it_goes_on_to_the_same_counts_pool_and_steps(
    unbroken: Experiment, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    experiment = Experiment(tmp_path / "killed")
    for number in range(KILLS):
        stage, seconds = STAGES[number % len(STAGES)]
        process, said = experiment.start()
        moment = chance.uniform(0, seconds)
        if wait_for(process, said, stage):
            try:
                process.wait(timeout=moment)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        assert process.returncode in (-9, 0), said.read_text()[-3000:]
        assert not left_over(experiment.folder), f"kill {number} in {stage}"
    experiment.finish()
    assert experiment.pools() == unbroken.pools()
    assert digest(experiment.rows("probe")) == digest(unbroken.rows("probe"))
    assert digest(experiment.rows("evaluate/base")) == digest(unbroken.rows("evaluate/base"))
    assert experiment.steps() == unbroken.steps()
    assert len(experiment.rows("evaluate/trained")) == len(unbroken.rows("evaluate/trained"))


def wait_for(process: subprocess.Popen[bytes], said: Path, stage: str) -> bool:
    """Until stderr says that the stage begins; False if it never does, since it is finished."""
    while process.poll() is None:
        if re.search(rf"^{re.escape(stage)}", said.read_text(), re.MULTILINE):
            return True
        time.sleep(0.05)
    return False


def left_over(folder: Path) -> list[str]:
    """Processes that still work in the folder, after a few seconds to end in."""
    for _ in range(200):
        found = []
        for place in Path("/proc").iterdir():
            if not place.name.isdigit() or int(place.name) == os.getpid():
                continue
            try:
                words = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                inside = (place / "cwd").resolve().is_relative_to(folder) or str(folder) in words
                state = (place / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if inside and state != "Z":
                found.append(words[:200])
        if not found:
            return []
        time.sleep(0.1)
    return found
