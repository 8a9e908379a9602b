"""Config -> the overrides of verl 0.9.1's own config (`verl.trainer.main_ppo`); reads verl's YAML, never imports it.
 Decided here: what our groups mean in verl's words. GRPO with the token mean and no KL; zero-variance groups and
failed ones are `refill`'s. `training.verl` passes anything through, last, and is checked against verl's own composed
config, all unknown keys in one error.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tbexp.config.nearest import did_you_mean, mended
from tbexp.config.schema import Config
from tbexp.errors import Problem, UserError
from tbexp.training import estimates
from tbexp.training.failures import FAILURES

FEW = 4  # keys with one last part, of which two are worth a suggestion
CPU_ROWS = 16  # most conversations of one pass on a CPU
RAY_ENVIRONMENT_CPUS = 4  # TransferQueue's two actors, and one each for tasks and the agent loop to be placed


def save_every(config: Config) -> int:
    """Steps between checkpoints: every step that validates has one, since one of them is chosen."""
    return math.gcd(config.training.save_every, config.training.validate_every)


def prompt_limit(config: Config) -> int:
    """Tokens of the first prompt (system message, tools, query)."""
    return config.training.max_prompt_tokens or config.model.max_context // 2


def recomputes_old_logprobs(config: Config) -> bool:
    """Whether the trainer computes the old log-probabilities again.

    With one optimiser step per update, one precision, and sampling from the whole distribution, the rollout's are the
    same numbers (measured: they differ by 1e-6 at most), and a third of the update's time is saved.
    """
    sampling = config.policy.sampling
    exact = config.topology.rollout == "transformers" and config.topology.dtype == "float32"
    whole = sampling.temperature == 1.0 and sampling.top_p == 1.0 and sampling.top_k <= 0
    return not (exact and whole and config.training.mini_batches == 1)


def ray_cpus(config: Config) -> int:
    """Logical CPUs of a local Ray: verl asks for 3 per trainer rank, and Ray starts as many workers ahead."""
    ranks = config.topology.nodes * config.topology.gpus_per_node
    return RAY_ENVIRONMENT_CPUS + 3 * ranks + (config.topology.agent_workers if config.topology.device == "cuda" else 0)


def ray_cpus_of_a_node(config: Config) -> int | None:
    """Logical CPUs of each node of a Ray of several, None: as many as it has.

    On the CPU, devices are logical too, and verl would pack all trainer ranks onto one node: so a node gets the CPUs
    for its own ranks, and a share of the others' that is too small for more ranks.
    """
    topology = config.topology
    if topology.device != "cpu":
        return None
    return 3 * topology.gpus_per_node + math.ceil(RAY_ENVIRONMENT_CPUS / topology.nodes)


def settings(config: Config, *, model_folder: Path, folder: Path) -> dict[str, Any]:
    """verl's keys (dotted) and our values for them. `folder`: the stage's; `run` writes the files named here."""
    cpu = config.topology.device == "cpu"
    groups, size = config.group.groups_per_update, config.group.size
    ranks = config.topology.nodes * config.topology.gpus_per_node
    prompt = prompt_limit(config)
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    sampling = config.policy.sampling
    values: dict[str, Any] = {
        "algorithm.adv_estimator": "grpo",
        "algorithm.use_kl_in_reward": False,
        "algorithm.norm_adv_by_std_in_grpo": config.training.normalise_by_std,
        "algorithm.rollout_correction.bypass_mode": not recomputes_old_logprobs(config),
        "data.train_files": str(folder / "verl" / "train.json"),
        "data.val_files": str(folder / "verl" / "validation.json"),
        "data.custom_cls.path": "pkg://tbexp.training.dataset",
        "data.custom_cls.name": "TaskDataset",
        "data.train_batch_size": groups,
        "data.gen_batch_size": 1,  # groups are replaced one by one
        "data.max_prompt_length": prompt,
        "data.max_response_length": config.model.max_context - prompt,
        "data.dataloader_num_workers": 0,
        "data.shuffle": False,  # the dataset is a shuffled stream
        "data.seed": config.seed,
        "actor_rollout_ref.model.path": str(model_folder),
        "actor_rollout_ref.model.use_remove_padding": not cpu and config.topology.attention == "flash_attention_2",
        "actor_rollout_ref.model.enable_gradient_checkpointing": not cpu,
        f"{actor}.strategy": "fsdp2",
        f"{actor}.use_kl_loss": False,
        f"{actor}.entropy_coeff": 0,
        f"{actor}.calculate_entropy": False,  # known from the old log-probabilities, or from the samples (groups)
        f"{actor}.loss_agg_mode": "token-mean",
        f"{actor}.clip_ratio_low": config.training.clip_low,
        f"{actor}.clip_ratio_high": config.training.clip_high,
        f"{actor}.ppo_mini_batch_size": groups // config.training.mini_batches,
        f"{actor}.ppo_epochs": 1,
        f"{actor}.data_loader_seed": config.seed,
        f"{actor}.ulysses_sequence_parallel_size": config.topology.sequence_parallel,
        f"{actor}.grad_clip": config.optimizer.clip_grad,
        f"{actor}.optim.lr": config.optimizer.lr,
        f"{actor}.optim.weight_decay": config.optimizer.weight_decay,
        f"{actor}.optim.betas": list(config.optimizer.betas),
        f"{actor}.optim.clip_grad": config.optimizer.clip_grad,
        f"{actor}.optim.lr_warmup_steps": config.optimizer.warmup_steps,
        f"{actor}.fsdp_config.param_offload": config.topology.offload,
        f"{actor}.fsdp_config.optimizer_offload": config.topology.offload,
        f"{rollout}.n": size,
        f"{rollout}.temperature": sampling.temperature,
        f"{rollout}.top_p": sampling.top_p,
        f"{rollout}.top_k": sampling.top_k,
        f"{rollout}.seed": config.seed,
        f"{rollout}.calculate_log_probs": True,
        f"{rollout}.max_model_len": config.model.max_context,
        f"{rollout}.tensor_model_parallel_size": config.topology.rollout_tensor_parallel,
        f"{rollout}.gpu_memory_utilization": config.topology.gpu_memory_utilization,
        f"{rollout}.dtype": config.topology.dtype,
        f"{rollout}.val_kwargs.n": config.training.validation_attempts,
        f"{rollout}.val_kwargs.do_sample": True,
        f"{rollout}.val_kwargs.temperature": sampling.temperature,
        f"{rollout}.val_kwargs.top_p": sampling.top_p,
        f"{rollout}.val_kwargs.top_k": sampling.top_k,
        f"{rollout}.agent.num_workers": config.topology.agent_workers,
        f"{rollout}.agent.agent_loop_config_path": str(folder / "verl" / "agents.yaml"),
        "reward.num_workers": 0,  # the agent loop has the verdict
        "trainer.v1.trainer_mode": "sync",
        "trainer.v1.sampler.custom_sampler.path": "pkg://tbexp.training.refill",
        "trainer.v1.sampler.custom_sampler.name": "RefillingSampler",
        "trainer.v1.sampler.sampler_kwargs": {
            "poll_interval": 0.05 if cpu else 0.1,
            "rounds": config.training.refill_rounds,
            "group_size": size,
            "failures": str(folder / "verl" / FAILURES),
            "stall_seconds": 1800.0 + 2 * config.policy.limits.generation_seconds,
            "by_length": cpu and config.training.mini_batches == 1,  # micro batches with little padding
        },
        "trainer.checkpoint_callback_class": "tbexp.training.callback.WriteManifest",
        "trainer.device": config.topology.device,
        "trainer.nnodes": config.topology.nodes,
        "trainer.n_gpus_per_node": config.topology.gpus_per_node,
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": config.training.steps,
        "trainer.save_freq": save_every(config),
        "trainer.test_freq": config.training.validate_every,
        "trainer.val_before_train": True,
        "trainer.resume_mode": "disable",
        "trainer.default_local_dir": str(folder / "checkpoints"),
        "trainer.project_name": config.name,
        "trainer.experiment_name": "train",
        "trainer.logger": ["file"],
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": config.topology.nodes,
    }
    if cpu:
        at_once = cpu_rows(config, model_folder)
        values |= {
            "actor_rollout_ref.model.external_lib": ["tbexp.training.rollout_cpu", "tbexp.training.trainer_cpu"],
            "actor_rollout_ref.model.override_config.attn_implementation": "tbexp_right_padded",  # of trainer_cpu
            f"{actor}.use_torch_compile": False,
            f"{actor}.use_dynamic_bsz": False,
            f"{actor}.ppo_micro_batch_size_per_gpu": micro_batch(
                groups * size // (ranks * config.training.mini_batches), at_once
            ),
            f"{actor}.fsdp_config.use_torch_compile": False,
            f"{actor}.fsdp_config.mixed_precision.param_dtype": "fp32",
            f"{rollout}.name": "transformers",
            f"{rollout}.max_num_seqs": max(config.policy.concurrency, groups * size),
            f"{rollout}.log_prob_micro_batch_size_per_gpu": micro_batch(groups * size // ranks, at_once),
            "ray_kwargs.ray_init.num_cpus": ray_cpus(config),
            "ray_kwargs.ray_init.num_gpus": ranks,  # logical
        }
    else:
        values |= {
            "actor_rollout_ref.model.external_lib": ["tbexp.training.upstream"],
            "actor_rollout_ref.model.override_config.attn_implementation": config.topology.attention,
            "actor_rollout_ref.model.use_fused_kernels": True,  # the logits of a large vocabulary are never in memory
            "actor_rollout_ref.model.fused_kernel_options.impl_backend": "torch",
            f"{actor}.use_dynamic_bsz": True,
            f"{actor}.ppo_max_token_len_per_gpu": estimates.tokens_per_gpu(config),
            f"{rollout}.name": "vllm",
            f"{rollout}.enforce_eager": config.topology.cuda_graphs == "none",
            # What stays on the GPU beside the trainer's state need not be given back and taken again at each update;
            # verl empties vLLM's prefix cache after new weights either way.
            f"{rollout}.free_cache_engine": config.topology.offload,
        }
        if config.topology.cuda_graphs == "decode":
            graphs = json.dumps({"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"})
            values[f"{rollout}.engine_kwargs.vllm.compilation_config"] = graphs
    return values


def cpu_rows(config: Config, model_folder: Path) -> int:
    """Conversations of model.max_context tokens that one pass of the trainer takes on a CPU, one at least."""
    shape = estimates.of_folder(model_folder) or estimates.shape_of(config)
    tokens = estimates.cpu_tokens_per_pass(config, shape)
    return max(1, math.floor(min(CPU_ROWS, tokens / config.model.max_context)))


def micro_batch(rows: int, limit: int) -> int:
    """The largest divisor of `rows` up to `limit`: padding is to the longest row of a micro batch."""
    return max(d for d in range(1, min(rows, limit) + 1) if rows % d == 0)


def passed_through(verl: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`training.verl`, nested or dotted, as dotted keys. An empty mapping is a value."""
    for key, value in verl.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from passed_through(value, f"{path}.")
        else:
            yield path, value


def compose(overrides: list[str]) -> Any:
    """verl's config with these overrides, from the installed YAML, without importing verl or torch.

    Raises UserError when verl is not installed or refuses an override.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(Problem("verl is not installed", "topology", "pip install 'tbexp[train]'"))
    folder = Path(next(iter(spec.submodule_search_locations))) / "trainer" / "config"
    outer, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None  # of our own command; there is one only
    try:
        with initialize_config_dir(str(folder), version_base=None):
            return hydra_compose("ppo_trainer", overrides=overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(Problem(f"verl refuses its configuration: {error}", "training.verl")) from error
    finally:
        GlobalHydra.instance().hydra = outer


@functools.cache
def verls_own() -> Any:
    """verl's config as it ships, to be read only: it takes half a second, and each job of a sweep asks."""
    return compose([])


def check_passed_through(verl: Mapping[str, Any], base: Any) -> list[Problem]:
    """Every key of `training.verl` that verl's config `base` does not have, with the nearest that it has."""
    known = list(dotted_keys(base))
    problems = []
    for key, _ in passed_through(verl):
        if key in known or is_open(base, key):
            continue
        near = did_you_mean(f"training.verl.{name}" for name in nearest(key, known))
        fix = near or "its keys are those of verl/trainer/config/ppo_trainer.yaml"
        problems.append(Problem(f"verl has no key {key}", f"training.verl.{key}", fix))
    return problems


def nearest(key: str, known: list[str]) -> list[str]:
    """Up to two near keys: with each part mended in its place; else, where few have it, with the same last part."""
    same_leaf = [name for name in known if name.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
    return mended(key.split("."), known) or (same_leaf[:2] if len(same_leaf) <= FEW else [])


def dotted_keys(node: Any, prefix: str = "") -> Iterator[str]:
    from omegaconf import DictConfig

    for key in node:
        path = f"{prefix}{key}"
        yield path
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_interpolation():
            yield from dotted_keys(child, f"{path}.")


def is_open(base: Any, key: str) -> bool:
    """Whether `key` lies below a mapping that verl leaves empty for others to fill, such as engine_kwargs.vllm."""
    from omegaconf import DictConfig

    parts = key.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        node: Any = base
        for part in parts[:depth]:
            node = node._get_node(part) if isinstance(node, DictConfig) and part in node else None
            if node is None:
                break
        if isinstance(node, DictConfig) and not node._is_none():
            return len(node) == 0
    return False


def overrides(config: Config, *, model_folder: Path, folder: Path, last: Mapping[str, Any] | None = None) -> list[str]:
    """The command line of `python -m verl.trainer.main_ppo`: ours, `training.verl`, then `last` (resuming)."""
    values = settings(config, model_folder=model_folder, folder=folder)
    values |= dict(passed_through(config.training.verl))
    values |= last or {}
    return [override(key, value) for key, value in values.items()]


def override(key: str, value: Any) -> str:
    """One Hydra override; `++` sets a key that exists and adds one below an open mapping."""
    return f"++{key}={quoted(value)}"


def quoted(value: Any) -> str:
    """A value in Hydra's override grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return (
            value if re.fullmatch(r"[A-Za-z_][\w./:-]*", value) and value.lower() not in _WORDS else json.dumps(value)
        )
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{quoted(str(k))}:{quoted(v)}" for k, v in value.items()) + "}"
    return "[" + ",".join(quoted(v) for v in value) + "]"


_WORDS = {"true", "false", "null", "nan", "inf"}
