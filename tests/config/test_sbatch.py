"""What launcher.sbatch may say, and what tbexp says itself."""

from __future__ import annotations

from typing import Any

import pytest

from tbexp.config import sbatch
from tbexp.config.schema import Launcher


def slurm(**changes: Any) -> Launcher:
    return Launcher(name="slurm", kind="slurm", **changes)


@pytest.mark.parametrize(
    ("option", "value", "fix"),
    [
        ("array", "0-9", "launcher.shards"),
        ("a", "0-9", "launcher.shards"),
        ("dependency", "singleton", "stages"),
        ("kill_on_invalid_dep", "no", "stages"),
        ("time", 5, "launcher.minutes"),
        ("t", 5, "launcher.minutes"),
        ("time_min", 5, "launcher.minutes"),
        ("nodes", 2, "topology.nodes"),
        ("N", 2, "topology.nodes"),
        ("ntasks-per-node", 4, "one task"),
        ("tasks_per_node", 4, "one task"),
        ("output", "/tmp/log", "stages=[status]"),
        ("e", "/tmp/log", "stages=[status]"),
        ("signal", "TERM@60", "launcher.signal_seconds"),
        ("sig", "TERM@60", "launcher.signal_seconds"),  # sbatch reads the beginning of a long option
        ("export", "NONE", "launcher.setup"),
        ("export-file", "f", "launcher.secrets_file"),
        ("requeue", True, "launcher.requeue"),
        ("no_requeue", True, "launcher.requeue"),
        ("job-name", "x", "`name`"),
        ("--job-name", "x", "`name`"),
        ("J", "x", "`name`"),
        ("gpus", 4, "launcher.gpus_per_node"),
        ("G", 4, "launcher.gpus_per_node"),
        ("gpus_per_node", 4, "topology.gpus_per_node"),
        ("gpus-per-task", 4, "topology.gpus_per_node"),
        ("gres", "gpu:h100:4", "launcher.gpus_per_node=0"),
        ("tres-per-node", "gres/gpu:4", "launcher.gpus_per_node=0"),
        ("mem", "0", "launcher.memory_gb"),
        ("mem-per-gpu", "1G", "launcher.memory_gb_per_gpu"),
        ("cpus_per_task", 3, "launcher.cpus_per_node"),
        ("partition", "p", "launcher.partition"),
        ("p", "p", "launcher.partition"),
        ("account", "p", "launcher.account"),
        ("exclude", "n1", "launcher.exclude"),
        ("wait", True, "returns at once"),
        ("clusters", "c2", "login node"),
        ("comment", "a\n#SBATCH --array=0-9", "one line"),
        ("constraint", ["a", "b"], "one line"),
        ("constraint", {"a": "b"}, "one line"),
    ],
)
def test_an_option_that_tbexp_sets_itself_is_refused_with_the_key_that_says_it(
    option: str, value: object, fix: str
) -> None:
    (problem,) = sbatch.problems(slurm(sbatch={option: value}))
    assert problem.where == f"launcher.sbatch.{option}" and fix in problem.fix, problem


def test_all_are_told_and_each_key_named_is_one_of_the_schema() -> None:
    assert len(list(sbatch.problems(slurm(sbatch=dict.fromkeys(sbatch.MANAGED, 1))))) == len(sbatch.MANAGED)
    named = {word.strip(",") for fix in sbatch.MANAGED.values() for word in fix.split() if "launcher." in word}
    assert {word.removeprefix("launcher.") for word in named} <= set(Launcher.model_fields)


@pytest.mark.parametrize(
    "options",
    [
        {"constraint": "h100", "begin": "now+1hour", "comment": "tbexp", "mail-type": "END", "reservation": "r"},
        {
            "exclusive": True,
            "exclusive_": None,
            "nodelist": "n[1-3]",
            "gres": "nvme:1",
            "gres-flags": "enforce-binding",
        },
        {"wckey": "w", "chdir": "/x", "deadline": "now+2days", "hold": True, "nice": 10, "C": "h100", "switches": "1"},
    ],
)
def test_any_other_option_is_the_user_s(options: dict[str, Any]) -> None:
    assert list(sbatch.problems(slurm(sbatch=options))) == []


def test_gpus_of_a_kind_can_be_asked_for_where_tbexp_asks_for_none() -> None:
    assert list(sbatch.problems(slurm(gpus_per_node=0, sbatch={"gres": "gpu:h100:8"}))) == []


def test_null_and_false_are_no_options() -> None:
    given = sbatch.given(slurm(sbatch={"constraint": None, "exclusive": False, "mail_type": "END", "hold": True}))
    assert given == {"mail-type": "END", "hold": True}


def test_what_a_shell_has_set_for_sbatch_counts_only_where_the_site_has_the_choice() -> None:
    shell = {"SBATCH_ARRAY_INX", "SBATCH_TIMELIMIT", "SBATCH_EXPORT", "SBATCH_MEM_PER_NODE", "SBATCH_GPUS_PER_NODE"}
    site = {"SBATCH_PARTITION", "SBATCH_ACCOUNT", "SBATCH_RESERVATION", "SBATCH_CONSTRAINT"}
    environment = dict.fromkeys(shell | site, "1")
    assert set(sbatch.overriding(slurm(), environment)) == shell
    assert set(sbatch.overriding(slurm(partition="gpu"), environment)) == shell | {"SBATCH_PARTITION"}
