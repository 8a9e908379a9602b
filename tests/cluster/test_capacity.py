"""What a job asks for against what sinfo tells of a site, and what sbatch says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tbexp.cluster import JobSpec, NodeJob, misfits, submit
from tbexp.cluster.capacity import gpus_in, minutes_in, read
from tbexp.config.schema import Launcher
from tbexp.errors import UserError

SITE = """\
n1|gpu*|gpu:h100:8(S:0-1)|64|2-00:00:00
n2|gpu*|gpu:h100:8(S:0-1)|64|2-00:00:00
n3|gpu*|gpu:h100:4|64|2-00:00:00
n3|debug|gpu:h100:4|64|30:00
c1|cpu|(null)|16|infinite
"""
KEYS = {"nodes": "topology.nodes", "gpus": "topology.gpus_per_node"}


def problems(
    site: str = SITE, *, small: bool = False, environment: Any = None, **settings: Any
) -> list[tuple[str, str]]:
    job = {"nodes": settings.pop("nodes", 1), "gpus": settings.pop("gpus", 0)}
    launcher = Launcher(name="slurm", kind="slurm", **settings)
    work = (NodeJob(plan="p", folder="f"),)
    spec = JobSpec("train", "t", work, Path("f"), gpu_nodes=job["gpus"] > 0 or not small, small=small, **job)
    found = misfits(spec, launcher, read(site), KEYS, environment or {})
    assert all(problem.fix for problem in found)
    return [(problem.where, problem.what) for problem in found]


@pytest.mark.parametrize(
    ("asked", "where", "what"),
    [
        ({"nodes": 4}, "topology.nodes", "asks for 4 nodes, and the partition gpu has 3"),
        ({"nodes": 3, "gpus": 8}, "topology.nodes", "3 nodes with 8 GPUs, and the partition gpu has 2 such of 3"),
        ({"gpus": 9, "cpus_per_gpu": 1}, "topology.gpus_per_node", "9 GPUs a node, and the nodes of"),
        ({"gpus": 1, "partition": "cpu"}, "topology.gpus_per_node", "no node of the partition cpu counts any"),
        ({"gpus": 8, "cpus_per_gpu": 12}, "launcher.cpus_per_gpu", "96 CPUs a node"),
        ({"cpus_per_node": 65}, "launcher.cpus_per_node", "65 CPUs"),
        ({"partition": "debug"}, "launcher.minutes", "1440 minutes, and the partition debug gives 30"),
        ({"partition": "debug", "minutes": 20, "small": True}, "launcher.cpu_minutes", "60 minutes"),
        ({"partition": "gone"}, "launcher.partition", "no partition gone"),
        ({"cpu_partition": "gone", "small": True}, "launcher.cpu_partition", ""),
        ({"environment": {"SBATCH_PARTITION": "debug"}, "minutes": 31}, "launcher.minutes", "debug"),
    ],
)
def test_what_no_node_of_the_partition_has_is_told_with_both_numbers(
    asked: dict[str, Any], where: str, what: str
) -> None:
    ((key, said),) = problems(**asked)
    assert key == where and what in said, said


@pytest.mark.parametrize(
    "asked",
    [
        {"nodes": 3, "gpus": 4},
        {"nodes": 2, "gpus": 8},
        {"nodes": 2, "gpus": 8, "minutes": 2880},
        {"nodes": 3, "gpus": 0},
        {"partition": "debug,gpu"},  # one of them has it
        {"partition": "debug", "qos": "long"},
        {"nodes": 9, "site": ""},  # sinfo cannot be asked
        {"nodes": 9, "sbatch": {"reservation": "mine"}},
    ],
)
def test_what_a_partition_has_is_no_problem_nor_what_nobody_can_tell(asked: dict[str, Any]) -> None:
    assert problems(asked.pop("site", SITE), **asked) == []


def test_gpus_and_limits_are_read_as_slurm_writes_them() -> None:
    table = {"gpu:8": 8, "gpu:h100:8(S:0-1)": 8, "gpu:a:4,gpu:b:2": 6, "(null)": 0, "nvme:1,gpu:2": 2, "mygpu:3": 0}
    assert {text: gpus_in(text) for text in table} == table
    limits = {"infinite": None, "30:00": 30, "1:00:00": 60, "2-00:00:00": 2880, "n/a": None, "0:30": 1}
    assert {text: minutes_in(text) for text in limits} == limits


@pytest.mark.parametrize(
    ("said", "answers", "fix"),
    [
        ("sbatch: error: Batch job submission failed: Invalid account", True, "a key of launcher"),
        ("sbatch: fatal: Could not establish a configuration source", False, "slurm.conf, or by SLURM_CONF"),
    ],
)
def test_what_sbatch_says_is_told_once_with_what_helps(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    said: str,
    answers: bool,
    fix: str,
) -> None:
    for name, code in {"sbatch": 1, "squeue": 0 if answers else 1}.items():
        (program := tmp_path / name).write_text(f"#!/bin/sh\necho '{said}' >&2\nexit {code}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    spec = JobSpec("probe", "t", (NodeJob(plan="p", folder=str(tmp_path)),), tmp_path)
    with pytest.raises(UserError) as refused:
        submit(spec, Launcher(name="slurm", kind="slurm"), ())
    (problem,) = refused.value.problems
    assert said in problem.what and fix in problem.fix
    assert capfd.readouterr().err == ""
