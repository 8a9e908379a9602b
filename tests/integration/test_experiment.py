"""The whole experiment on a small scale, with verl: from start to end, again, and killed in each stage.

`TBEXP_KILLS=all pytest tests/integration/test_experiment.py -k killed` kills at 20 seeded moments; the suite at a few.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("verl")
pytest.importorskip("ray")

from tbexp.attempts import AttemptStore, digest

pytestmark = [pytest.mark.train, pytest.mark.end_to_end, pytest.mark.timeout(3600)]

SEED = 11
ALL_KILLS = os.environ.get("TBEXP_KILLS") == "all"
PROGRAM = str(Path(__file__).parent / "data" / "killed_while_writing.py")


@dataclass(frozen=True)
class Writing:
    """A write of this process, to a file that fits the pattern, in the middle of which it is killed; `first` to `last`
    writes of such files are made before that one.
    """

    name: str
    pattern: str
    first: int
    last: int
    few: bool = False  # whether it is one of those that the suite does


@dataclass(frozen=True)
class Seen:
    """Something that is seen in the folder of the training or said; it is killed then, or within so many seconds."""

    name: str
    sign: Callable[[Path, str], object]
    seconds: float = 0.0
    few: bool = False


def whole(step: int) -> Callable[[Path, str], object]:
    return lambda folder, said: (folder / "checkpoints" / f"global_step_{step}" / "manifest.json").exists()


def begun(step: int) -> Callable[[Path, str], object]:
    """verl has begun to write this checkpoint, and not ended."""
    return lambda folder, said: (
        (folder / "checkpoints" / f"global_step_{step}").exists() and not whole(step)(folder, "")
    )


def drawing(folder: Path, said: str) -> bool:
    """A report is being drawn."""
    fresh = folder.parent.glob("outputs/smoke/*/.report.new/figures/*")
    return "evaluate trained: done" in said and any(fresh)


# In the order in which they come: each is inside a stage that the ones before have left unfinished.
MOMENTS = (
    Seen("building the base policy", lambda folder, said: "build base policy: steps" in said, 4.0),
    Writing("probe: a row", "*/probe/*.jsonl", 1, 20, few=True),
    Writing("probe: a row", "*/probe/*.jsonl", 1, 20),
    Writing("probe: a row", "*/probe/*.jsonl", 1, 20),
    Writing("select: a file", "*/select/*", 1, 1),
    Writing("select: a file", "*/select/*", 2, 4, few=True),
    Seen("training: verl starts", lambda folder, said: (folder / "verl" / "plan.json").exists(), 8.0),
    Seen("training: first validation", lambda folder, said: list(folder.glob("verl/rows-*")), 6.0),
    Seen("training: the first checkpoint", begun(1), few=True),
    Seen("training: between two updates", whole(1), 0.5),
    Seen("training: the second checkpoint", begun(2)),
    Seen("training: the export", lambda folder, said: list(folder.glob("chosen-step-*.new"))),
    Writing("training: its result", "*/train/*/result*", 1, 2),
    Writing("evaluate base: a row", "*/evaluate/*.jsonl", 1, 6),  # of 12 attempts, each with two writes
    Writing("evaluate base: a row", "*/evaluate/*.jsonl", 1, 6),
    Writing("evaluate trained: a row", "*/evaluate/*.jsonl", 26, 36, few=True),  # the base policy's come first
    Writing("evaluate trained: a row", "*/evaluate/*.jsonl", 1, 2),
    Writing("evaluate: the figures", "*/evaluate/summary.json", 1, 1),
    Seen("report: its first figure", drawing),
    Seen("report: its figures", drawing, 0.2, few=True),
)


class Experiment:
    """`tbexp experiment=smoke` in a folder of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True)
        self.runs = 0

    def start(self, *program: str) -> tuple[subprocess.Popen[bytes], Path]:
        self.runs += 1
        said = self.folder / f"stderr-{self.runs}"
        with said.open("wb") as stderr:
            command = [sys.executable, *(program or ("-m", "tbexp")), "experiment=smoke"]
            return subprocess.Popen(command, cwd=self.folder, stderr=stderr, stdout=stderr), said

    def finish(self) -> str:
        process, said = self.start()
        assert process.wait(timeout=1800) == 0, said.read_text()[-3000:]
        return said.read_text()

    def killed(self, moment: Writing | Seen, chance: random.Random) -> None:
        """Starts it and kills it at the moment, which has to come."""
        if isinstance(moment, Writing):
            number, share = chance.randint(moment.first, moment.last), chance.uniform(0.05, 0.95)
            process, said = self.start(PROGRAM, moment.pattern, str(number), f"{share:.3f}")
            process.wait(timeout=1800)
        else:
            process, said = self.start()
            wait, now = chance.uniform(0, moment.seconds), time.time()
            while process.poll() is None and not self.seen(moment, said, now):
                time.sleep(0.002)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=wait)
            process.kill()
            process.wait()
        assert process.returncode == -signal.SIGKILL, f"{moment.name}: {said.read_text()[-3000:]}"
        assert not left_over(self.folder), moment.name

    def seen(self, moment: Seen, said: Path, since: float) -> bool:
        """In what this start has made."""
        for folder in (self.folder / "outputs" / "stages" / "train").glob("*"):
            plan = folder / "verl" / "plan.json"
            if plan.exists() and plan.stat().st_mtime >= since and moment.sign(folder, ""):
                return True
        return bool(moment.sign(self.folder / "nowhere", said.read_text()))

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
    for moment in MOMENTS:
        if ALL_KILLS or moment.few:
            experiment.killed(moment, chance)
    experiment.finish()
    assert experiment.pools() == unbroken.pools()
    assert digest(experiment.rows("probe")) == digest(unbroken.rows("probe"))
    assert digest(experiment.rows("evaluate/base")) == digest(unbroken.rows("evaluate/base"))
    assert experiment.steps() == unbroken.steps()
    assert len(experiment.rows("evaluate/trained")) == len(unbroken.rows("evaluate/trained"))


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
