from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from tbexp.app import main
from tbexp.training.mapping import compose
from tbexp.training.overruled import misfit, problems

sys.path.insert(0, str(Path(__file__).parent))

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
INSTALLED = importlib.util.find_spec("verl") is not None


def found(verl: dict[str, Any], *, base: Any = None, of: str = "q38_rlft") -> dict[str, str]:
    from toy_config import composed_config

    config = composed_config([f"experiment={of}"])
    config = config.model_copy(update={"training": config.training.model_copy(update={"verl": verl})})
    told = {p.where.removeprefix("training.verl."): p.what for p in problems(config, base)}
    assert all(p.where.startswith("training.verl.") and p.fix for p in problems(config, base))
    return told


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        (f"{ROLLOUT}.tensor_model_parallel_size", 3, "8 is not a multiple of 3"),
        (f"{ROLLOUT}.tensor_model_parallel_size", 0, "greater than or equal to 1"),
        (f"{ROLLOUT}.tensor_model_parallel_size", "4", "is '4', and verl has"),
        (f"{ACTOR}.ulysses_sequence_parallel_size", 5, "24 devices (3 nodes x 8) is not a multiple of 5"),
        (f"{ACTOR}.ulysses_sequence_parallel_size", 16, "24 devices (3 nodes x 8) is not a multiple of 16"),
        (f"{ACTOR}.ppo_mini_batch_size", 5, "group.groups_per_update is 18, which does not divide into"),
        (f"{ACTOR}.ppo_mini_batch_size", 0, "group.groups_per_update is 18, which does not divide into"),
        (f"{ACTOR}.optim.lr", "fast", "is 'fast', and verl has"),
        (f"{ACTOR}.optim.lr", -1.0, "greater than 0"),
        (f"{ACTOR}.optim.betas", 0.9, "verl has a list there"),
        (f"{ACTOR}.use_kl_loss", "no", "is 'no', and verl has False there"),
        (f"{ROLLOUT}.gpu_memory_utilization", 7, ""),
        (f"{ROLLOUT}.pipeline_model_parallel_size", "2", "is '2'"),
        (f"{ROLLOUT}.pipeline_model_parallel_size", 4, "24 devices is not a multiple of 16"),
        (f"{ROLLOUT}.n", 4, "other parts of the run go by"),
        ("trainer.nnodes", 2, "topology.nodes"),
        ("data.train_batch_size", 17, "group.groups_per_update"),
    ],
)
def test_a_value_that_cannot_work_is_told_by_what_we_know_of_it_and_with_verl_s_files_too(
    key: str, value: object, what: str
) -> None:
    for base in [None, *([compose([])] if INSTALLED else [])]:
        told = found({key: value}, base=base)
        assert list(told) == [key] and what in told[key], told


def test_values_that_work_are_no_problem_nested_or_dotted() -> None:
    verl = {
        f"{ROLLOUT}.tensor_model_parallel_size": 8,
        "actor_rollout_ref": {"actor": {"entropy_coeff": 0.001, "optim": {"lr": 1, "betas": [0.9, 0.95]}}},
        "trainer": {"nnodes": 3, "total_epochs": 1},
        f"{ROLLOUT}.engine_kwargs.vllm.anything": {"a": 1},
        f"{ACTOR}.ppo_mini_batch_size": 9,
        "data.train_max_samples": 100,
        f"{ROLLOUT}.load_format": "auto",
    }
    for base in [None, *([compose([])] if INSTALLED else [])]:
        assert found(verl, base=base) == {}


@pytest.mark.skipif(not INSTALLED, reason="needs the train extra")
def test_every_value_of_verl_s_own_config_is_one_that_it_takes() -> None:
    from omegaconf import DictConfig

    from tbexp.training.mapping import dotted_keys
    from tbexp.training.overruled import kind_of

    base, refused, seen = compose([]), [], 0
    for key in dotted_keys(base):
        value = kind_of(key, base, {})
        if not isinstance(value, DictConfig):
            seen += value is not None
            plain = list(value) if hasattr(value, "_content") else value
            refused += [key] if misfit(key, plain, value) else []
    assert seen > 200 and refused == []


@pytest.mark.skipif(not INSTALLED, reason="needs the train extra")
def test_a_value_of_another_kind_than_verl_s_own_default_is_refused() -> None:
    base = compose([])
    told = found(
        {
            "trainer.balance_batch": "yes",
            f"{ROLLOUT}.max_num_batched_tokens": "many",
            "trainer.logger": 3,
            "trainer.project_name": 7,
            f"{ACTOR}.fsdp_config": 1,
            "actor_rollout_ref.model.lora_rank": 8.5,
            "trainer.no_such_key": 1,
        },
        base=base,
    )
    assert set(told) == {
        *("trainer.balance_batch", f"{ROLLOUT}.max_num_batched_tokens", "trainer.logger", "trainer.project_name"),
        *(f"{ACTOR}.fsdp_config", "actor_rollout_ref.model.lora_rank", "trainer.no_such_key"),
    }


def test_the_command_ends_with_all_of_it_in_one_message_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [f"+training.verl.{ROLLOUT}.tensor_model_parallel_size=3", f"+training.verl.{ACTOR}.optim.lr=fast"]
    assert main(["experiment=q38_rlft", "launcher=slurm", "dry_run=true", "group.groups_per_update=17", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tbexp: 3 problems")
    assert (
        f"training.verl.{ROLLOUT}.tensor_model_parallel_size: topology.gpus_per_node is 8: 8 is not a multiple" in said
    )
    assert "17 x 8 = 136 attempts per update is not a multiple of 6" in said and "optim.lr: is 'fast'" in said
    assert not list(tmp_path.iterdir())
