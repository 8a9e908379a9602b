"""Runs of another machine are compared through an MLflow server alone: their folders are gone."""

from __future__ import annotations

import csv
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tbexp

HELD_OUT = "[garden.py:test_peas,garden.py:test_leeks,garden.py:test_water]"
FOR_TRAINING = (
    "[garden.py:test_beans,garden.py:test_figs,garden.py:test_kale,garden.py:test_melons,garden.py:test_mint]"
)
# Compares, and says whether torch or a trainer was loaded.
PROGRAM = """
import sys
from tbexp.app import main
code = main(sys.argv[1:])
sys.stdout.write("loaded: %s" % sorted({"torch", "ray", "verl", "vllm", "transformers"} & set(sys.modules)))
sys.exit(code)
"""


def compare(server: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(tbexp.__file__).parent.parent)
    command = [sys.executable, "-c", PROGRAM, "stages=[compare]", f"tracking.uri={server}", "compare.bootstrap=200"]
    return subprocess.run([*command, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def runs(server: str, new_place: Callable[[], Any]) -> Any:
    """Two runs of the garden with different seeds, at the server alone; the counts that their stores had."""
    place = new_place()
    counts: dict[str, dict[str, list[int]]] = {}
    pools: dict[str, list[str]] = {}
    for seed in (1, 2):
        name = f"run{seed}"
        done = place.run(
            *("stages=[probe,select,evaluate]", f"tasks.held_out={HELD_OUT}", f"tasks.candidates={FOR_TRAINING}"),
            *("evaluation=base", "evaluation.attempts=5", "probe.attempts=4", f"seed={seed}", f"hydra.run.dir={name}"),
            *("tracking=mlflow", f"tracking.uri={server}", "selection.min_clean=1"),
        )
        assert done.returncode == 0, done.stderr
        mine: dict[str, list[int]] = {}
        for line in (place.folder / name / "evaluate/base/attempts.jsonl").open():
            row = json.loads(line)
            mine.setdefault(row["uid"], [0, 0])
            mine[row["uid"]][0] += row["passed"] is not None
            mine[row["uid"]][1] += row["passed"] is True
        counts[name] = mine
        rows = [json.loads(line) for line in (place.folder / name / "select/tasks.jsonl").open()]
        pools[name] = sorted(row["uid"] for row in rows if row["kept"])
    shutil.rmtree(place.folder)
    return counts, pools


@pytest.fixture(scope="module")
def compared(server: str, runs: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("elsewhere")
    words = ["compare.runs=[run1,run2,published:kimi-k3]", "hydra.run.dir=result", "tracking.experiment=laptop"]
    return compare(server, folder, *words), folder / "result"


def test_it_ends_well_without_loading_a_trainer(compared: Any) -> None:
    done, folder = compared
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("paired over shared tasks\n") and done.stdout.endswith("\nloaded: []")
    assert "Traceback" not in done.stderr
    assert (folder / "comparison.html").exists() and "comparison: " in done.stderr


def test_the_figures_are_those_of_the_deleted_runs(compared: Any, runs: Any) -> None:
    counts, pools = runs
    _, folder = compared
    found = json.loads((folder / "comparison.json").read_text())
    assert [side["letter"] for side in found["runs"]] == ["A", "B", "C"]
    assert [side["pool"] for side in found["runs"][:2]] == [len(pools["run1"]), len(pools["run2"])]
    for side, name in zip(found["runs"], counts, strict=False):
        rate = sum(passed / clean for clean, passed in counts[name].values()) / 3
        assert side["figures"]["base"]["pass_at_1"]["value"] == pytest.approx(rate)
    (test,) = found["tests"]
    assert test["shared"] == sorted(counts["run1"]) and test["changed"] == []
    both = [{uid: passed == 5 for uid, (_, passed) in counts[name].items()} for name in counts]
    assert test["gained"] == [uid for uid in sorted(both[0]) if both[1][uid] and not both[0][uid]]
    assert test["lost"] == [uid for uid in sorted(both[0]) if both[0][uid] and not both[1][uid]]
    with (folder / "tables/tasks.csv").open(newline="") as stream:
        rows = {row[0]: row[2:] for row in list(csv.reader(stream))[1:]}
    for uid, (clean, passed) in counts["run2"].items():
        assert rows[uid][1].split()[0] == f"{passed}/{clean}"


def test_the_settings_that_differ_are_known_from_the_server(compared: Any) -> None:
    _, folder = compared
    with (folder / "tables/settings.csv").open(newline="") as stream:
        assert list(csv.reader(stream))[1:] == [["seed", "1", "2"]]


def test_the_comparison_is_a_run_of_its_own_at_the_server(server: str, compared: Any) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(server)
    experiment = client.get_experiment_by_name("laptop")
    (run,) = client.search_runs([experiment.experiment_id], "attributes.run_name = 'result'")
    assert run.info.status == "FINISHED"
    assert "compare/B_minus_A/pass_at_1" in run.data.metrics
    files = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert files >= {"comparison.html", "comparison.json", "figures", "tables"}


def test_a_server_that_is_gone_is_the_world_s_failure(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        done = compare(address, tmp_path, "compare.runs=[run1]")
    assert done.returncode == 3 and "can't be read" in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("compare-*"))
