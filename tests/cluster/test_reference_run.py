"""`experiment=q38_rlft` on a machine that has neither GPU nor model nor tasks.

`TBEXP_GOLDEN=1 pytest tests/cluster/test_reference_run.py` writes the golden file anew.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tbexp
from tbexp.app import main

GOLDEN = Path(__file__).parent / "golden" / "q38_rlft.txt"
ROOT = Path(tbexp.__file__).resolve().parent.parent
PLAN = ["experiment=q38_rlft", "launcher=slurm", "dry_run=true"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")


@pytest.mark.parametrize("below", ["", "a" * 90])
def test_the_plan_of_the_published_run_is_as_written_down_wherever_one_is(
    below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / below
    here.mkdir(exist_ok=True)
    monkeypatch.chdir(here)
    assert main(PLAN) == 0
    text = capsys.readouterr().out.partition("\n# ---- reference")[0]  # sbatch's text is test_dry_run's
    text = re.sub(r"seed1-[0-9a-f]{8}", "<run>", text.replace(str(here), "<here>"))
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines() if not line.startswith("verl "))
    if os.environ.get("TBEXP_GOLDEN") and not below:
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    assert not list(here.iterdir())


def test_the_plan_has_a_job_for_each_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(PLAN) == 0
    out = capsys.readouterr().out
    assert out.count("#!/bin/bash") == 7
    assert "train             3 nodes, 8 GPUs, 64 CPUs, 768 GB each, after select" in out
    assert "reference         3 x 1 node, 8 CPUs, 32 GB each\n" in out  # an endpoint elsewhere: no GPUs
    assert "#SBATCH --nodes=3" in out and "#SBATCH --gpus-per-node=8" in out


def test_shapes_that_do_not_divide_are_told_together_with_their_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "topology.rollout_tensor_parallel=3", "group.groups_per_update=17"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tbexp: 2 problems")
    assert "8 is not a multiple of 3" in said
    assert "17 x 8 = 136 attempts per update is not a multiple of 6" in said


def test_what_does_not_fit_is_told_before_anything_is_queued(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "topology.nodes=1", "training.verl={}"]) == 2
    assert "of a GPU that has 79.6" in capsys.readouterr().err


def test_without_the_plan_what_is_missing_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(PLAN[:2]) == 2
    said = capsys.readouterr().err
    assert all(key in said for key in ("tasks.root", "model.path", "user.endpoint.api_key_env"))


def test_a_plan_imports_no_heavy_package(tmp_path: Path) -> None:
    code = (
        "import sys; from tbexp.app import main; code = main(sys.argv[1:]); "
        "heavy = [n for n in ('torch', 'verl', 'ray', 'vllm', 'mlflow') if n in sys.modules]; "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *PLAN], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["topology.nodes=0"],
        ["topology.gpus_per_node=0"],
        ["topology.nodes=0", "topology.gpus_per_node=-1", "group.size=1", "group.groups_per_update=0"],
        ["topology.nodes=three", "topology.gpu_memory_gib=none"],
        ["model.max_context=0"],
        ["topology.micro_batch_tokens=0"],
    ],
)
def test_a_value_that_cannot_be_read_is_one_problem_and_nothing_is_judged_by_another_in_its_place(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["experiment=q38_rlft", "launcher=slurm", "dry_run=true", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"tbexp: {len(words)} problems" if len(words) > 1 else f"tbexp: {words[0].split('=')[0]}: ")
    assert said.count(" must be ") == len(words) and all(word.partition("=")[0] in said for word in words)
