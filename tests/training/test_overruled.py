from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tbexp.app import main
from tbexp.training.mapping import verls_own
from tbexp.training.overruled import misfit, problems

sys.path.insert(0, str(Path(__file__).parent))

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
INSTALLED = importlib.util.find_spec("verl") is not None


def found(verl: dict[str, Any], *, base: Any = None, of: str = "q38_rlft") -> dict[str, str]:
    from toy_config import composed_config

    config = composed_config([f"experiment={of}"])
    config = config.model_copy(update={"training": config.training.model_copy(update={"verl": verl})})
    told = problems(config, base)
    assert all(p.where.startswith("training.verl.") and p.fix for p in told)
    return {p.where.removeprefix("training.verl."): p.what for p in told}


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
    for base in [None, *([verls_own()] if INSTALLED else [])]:
        told = found({key: value}, base=base)
        assert list(told) == [key] and what in told[key], told


def test_values_that_work_are_no_problem_nested_or_dotted() -> None:
    verl = {
        f"{ROLLOUT}.tensor_model_parallel_size": 8,
        "actor_rollout_ref": {"actor": {"entropy_coeff": 0.001, "optim": {"lr": 1, "betas": [0.9, 0.95]}}},
        "trainer": {"nnodes": 3, "total_epochs": 1},
        f"{ROLLOUT}.engine_kwargs.vllm.anything": {"a": 1},
        f"{ACTOR}.ppo_mini_batch_size": 9,
        "data.val_batch_size": 100,
        f"{ROLLOUT}.load_format": "auto",
    }
    for base in [None, *([verls_own()] if INSTALLED else [])]:
        assert found(verl, base=base) == {}


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        # tbexp's own
        ("trainer.default_local_dir", "/elsewhere", "hydra.run.dir"),
        ("trainer.logger", ["console"], "file"),
        ("trainer.logger", None, "file"),
        ("trainer.total_epochs", 0, "training.steps"),
        ("trainer.total_epochs", 30, "training.steps"),  # verl's own default
        ("trainer.total_epochs", None, "training.steps"),
        ("trainer.resume_mode", "auto", "same command"),
        ("trainer.resume_from_path", "/a/global_step_5", "same command"),
        ("trainer.val_only", True, "stages=[evaluate]"),
        ("trainer.max_actor_ckpt_to_keep", 2, "training.keep_checkpoints"),
        ("trainer.v1.trainer_mode", "separate_async", "leave it out"),
        ("trainer.v1.sampler.custom_sampler.path", "mine.py", "training.refill_rounds"),
        ("trainer.v1.sampler.sampler_kwargs.rounds", 3, "training.refill_rounds"),
        ("trainer.v1.sampler.max_off_policy_threshold", 3, "training.refill_rounds"),
        ("data.train_files", "mine.parquet", "tasks.root"),
        ("data.val_files", None, "tasks.root"),
        ("data.custom_cls.path", "mine.py", "tasks.root"),
        ("data.custom_cls", None, "keys below"),
        ("data.sampler.class_path", "mine.py", "seed"),
        ("data.shuffle", True, "seed"),
        (f"{ROLLOUT}.agent.agent_loop_config_path", "mine.yaml", "policy.limits"),
        ("reward.num_workers", 4, "judge"),
        ("critic.enable", True, "leave it out"),
        ("actor_rollout_ref.model.external_lib", "mine", "tbexp.training.upstream"),
        (f"{ACTOR}.checkpoint.save_contents", ["model"], "optimizer"),
        # what other parts of a run go by
        ("data.max_response_length", 1000, "model.max_context"),
        ("data.max_prompt_length", 1000, "training.max_prompt_tokens"),
        (f"{ROLLOUT}.prompt_length", 1000, "training.max_prompt_tokens"),
        (f"{ROLLOUT}.response_length", 1000, "model.max_context"),
        (f"{ROLLOUT}.max_model_len", 1000, "model.max_context"),
        (f"{ROLLOUT}.n", 4, "group.size"),
        (f"{ACTOR}.rollout_n", 4, "group.size"),
        (f"{ROLLOUT}.temperature", 0.5, "policy.sampling.temperature"),
        (f"{ROLLOUT}.val_kwargs.n", 5, "training.validation_attempts"),
        (f"{ROLLOUT}.val_kwargs.temperature", 0.5, "policy.sampling.temperature"),
        (f"{ROLLOUT}.val_kwargs.top_k", 1, "policy.sampling.top_k"),
        (f"{ROLLOUT}.seed", 9, "seed"),
        (f"{ROLLOUT}.dtype", "float16", "topology.dtype"),
        ("actor_rollout_ref.model.path", "/elsewhere", "model.path"),
        # what nothing reads
        (f"{ROLLOUT}.multi_turn.enable", True, "policy.limits"),
        (f"{ROLLOUT}.multi_turn.max_assistant_turns", 5, "policy.limits"),
        (f"{ROLLOUT}.multi_turn.format", "qwen", "model.format"),
        (f"{ROLLOUT}.val_kwargs.do_sample", False, "policy.sampling.temperature"),
        (f"{ROLLOUT}.ignore_eos", True, "policy.sampling.max_tokens"),
        ("data.train_max_samples", 100, "tasks.root"),
        ("data.truncation", "left", "training.max_prompt_tokens"),
        ("data.filter_overlong_prompts", True, "training.max_prompt_tokens"),
        ("reward.custom_reward_function.path", "mine.py", "judge"),
        ("algorithm.filter_groups.enable", True, "training.refill_rounds"),
        ("ray_kwargs.ray_init.num_cpus", 4, "Ray"),
        ("critic.optim.lr", 0.1, "critic"),
        # nothing for a group, or for what has a value
        ("actor_rollout_ref.rollout", None, "keys below"),
        ("actor_rollout_ref.actor", None, "keys below"),
        ("actor_rollout_ref", None, "keys below"),
        ("algorithm", None, "keys below"),
        (f"{ACTOR}.optim", None, "keys below"),
        (f"{ACTOR}.optim.lr", None, "give a value"),
        (f"{ACTOR}.ppo_mini_batch_size", None, "give a value"),
        (f"{ROLLOUT}.tensor_model_parallel_size", None, "give a value"),
    ],
)
def test_what_is_tbexp_s_own_or_has_no_effect_is_refused_with_what_to_use(key: str, value: object, fix: str) -> None:
    from toy_config import composed_config

    config = composed_config(["experiment=q38_rlft"])
    parents, node = key.split("."), value
    nested: Any = node
    for part in reversed(parents):
        nested = {part: nested}
    for verl in ({key: value}, nested):
        asked = config.model_copy(update={"training": config.training.model_copy(update={"verl": verl})})
        for base in [None, *([verls_own()] if INSTALLED else [])]:
            if base is not None and key == "data.sampler.class_path" and "sampler" not in base.data:
                continue  # told as a key that verl does not have
            told = [problem for problem in problems(asked, base) if problem.where == f"training.verl.{key}"]
            assert len(told) == 1 and fix in f"{told[0].what} {told[0].fix}", told


def test_what_tbexp_says_itself_or_verl_by_default_is_no_change() -> None:
    from toy_config import composed_config

    from tbexp.training import mapping

    config = composed_config(["experiment=q38_rlft"])
    ours = mapping.settings(config, model_folder=Path("/model"), folder=Path("/train"))
    assert found(ours) == {}
    verl = {"trainer.logger": ["console", "file"], "trainer.val_only": False, f"{ROLLOUT}.multi_turn.enable": False}
    verl |= {"actor_rollout_ref.model.external_lib": ["mine", "tbexp.training.upstream"]}
    if INSTALLED:
        assert found(ours, base=verls_own()) == {} and found(verl, base=verls_own()) == {}


@pytest.mark.skipif(not INSTALLED, reason="needs the train extra")
@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        ("algorithm.adv_estimator", "nonsense", "rloo"),
        ("algorithm.adv_estimator", "gae", "grpo_passk"),
        ("algorithm.adv_estimator", "remax", "grpo"),
        ("algorithm.kl_penalty", "full", "low_var_kl"),
        ("algorithm.kl_ctrl.type", "none", "adaptive"),
        ("algorithm.rollout_correction.rollout_is", "step", "token"),
        ("algorithm.rollout_correction.rollout_rs", "token_k1,step", "token_k1,seq_max_k2"),
        ("algorithm.rollout_correction.loss_type", "ppo", "reinforce"),
        (f"{ACTOR}.loss_agg_mode", "nonsense", "seq-mean-token-sum-norm"),
        (f"{ACTOR}.policy_loss.loss_mode", "nonsense", "gspo"),
        (f"{ACTOR}.kl_loss_type", "nonsense", "k3+"),
        (f"{ACTOR}.optim.lr_scheduler_type", "linear", "cosine"),
        (f"{ACTOR}.strategy", "megatron", "fsdp"),
        ("actor_rollout_ref.model.fused_kernel_options.impl_backend", "cuda", "torch"),
        ("trainer.logger", ["file", "nonsense"], ["file", "tensorboard"]),
    ],
)
def test_a_name_that_verl_does_not_know_is_told_with_those_that_it_does(key: str, value: object, right: object) -> None:
    told = found({key: value}, base=verls_own())
    assert list(told) == [key], told
    assert list(found({ROLLOUT: {"multi_turn": None}}, base=verls_own())) == [f"{ROLLOUT}.multi_turn"]
    assert found({key: right}, base=verls_own()) == {}


@pytest.mark.skipif(not INSTALLED, reason="needs the train extra")
def test_the_names_are_those_of_the_installed_verl_and_read_without_importing_it() -> None:
    code = "import sys; from tbexp.training.choices import READ, known; print(*[k for k in READ if not known(k)]);"
    code += "assert not {'torch', 'verl', 'ray'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == "", done
    pytest.importorskip("torch")
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

    from tbexp.training.choices import known

    assert set(ADV_ESTIMATOR_REGISTRY) == set(known("algorithm.adv_estimator"))
    assert set(POLICY_LOSS_REGISTRY) == set(known(f"{ACTOR}.policy_loss.loss_mode"))


@pytest.mark.skipif(not INSTALLED, reason="needs the train extra")
def test_every_value_of_verl_s_own_config_is_one_that_it_takes() -> None:
    from omegaconf import DictConfig

    from tbexp.training.mapping import dotted_keys
    from tbexp.training.overruled import kind_of

    base, refused, seen = verls_own(), [], 0
    for key in dotted_keys(base):
        value = kind_of(key, base, {})
        if not isinstance(value, DictConfig):
            seen += value is not None
            plain = list(value) if hasattr(value, "_content") else value
            refused += [key] if misfit(key, plain, value) else []
    assert seen > 200 and refused == []


@pytest.mark.skipif(not INSTALLED, reason="needs the train extra")
def test_a_value_of_another_kind_than_verl_s_own_default_is_refused() -> None:
    base = verls_own()
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
