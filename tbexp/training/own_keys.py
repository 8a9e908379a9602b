"""Keys of verl that no value of `training.verl` can stand at: tbexp's own, and those that nothing reads.

Decided here: which they are. A training of tbexp brings its own dataset, sampler, agent loop and verdicts, and keeps
checkpoints and metrics itself; a value there would break a run late, or change nothing. verl's default, or what tbexp
says there itself, is no change and is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
TASKS = "tasks.root, tasks.candidates and selection say which tasks"
PLACES = "hydra.run.dir and store say where results are"
VERDICT = "the checks of the tasks and `judge` give the verdict"
EPISODE = "policy.limits ends an attempt, and the tasks' servers are its tools"

# A key and all below it: what it is of tbexp's, and what to use.
OWN = {
    "data.train_files": ("the run's pool", TASKS),
    "data.val_files": ("the run's validation tasks", TASKS),
    "data.custom_cls": ("the dataset of the run's tasks", TASKS),
    "data.sampler": ("the order of the tasks, which a resumed run goes on with", "seed gives another order"),
    "data.shuffle": ("the order of the tasks, which a resumed run goes on with", "seed gives another order"),
    "data.dataloader_num_workers": ("the place in the stream of tasks, which one process counts", "leave it out"),
    "data.gen_batch_size": ("how groups are replaced, one by one", "training.refill_rounds says how often"),
    "trainer.v1.trainer_mode": ("the synchronous trainer", "leave it out"),
    "trainer.use_v1": ("the synchronous trainer", "leave it out"),
    "trainer.v1.sampler": ("how groups are replaced", "training.refill_rounds says how often"),
    "trainer.checkpoint_callback_class": ("what makes a checkpoint known as whole", "leave it out"),
    "trainer.default_local_dir": ("where checkpoints are looked for", PLACES),
    "trainer.total_epochs": ("one epoch, whatever the number of updates", "training.steps"),
    "trainer.resume_mode": ("where a training goes on", "run the same command again: it goes on"),
    "trainer.resume_from_path": ("where a training goes on", "run the same command again: it goes on"),
    "trainer.val_before_train": ("whether the base policy is validated first", "leave it out"),
    "trainer.val_only": ("a training", "stages=[evaluate]"),
    "trainer.max_actor_ckpt_to_keep": ("which checkpoints are kept", "training.keep_checkpoints"),
    "trainer.del_local_ckpt_after_load": ("which checkpoints are kept", "training.keep_checkpoints"),
    "actor_rollout_ref.hybrid_engine": ("one set of devices for training and generation", "leave it out"),
    f"{ROLLOUT}.agent.agent_loop_config_path": ("the agent loop", EPISODE),
    f"{ROLLOUT}.calculate_log_probs": ("what rollout and trainer are compared by", "leave it out"),
    f"{ROLLOUT}.mode": ("how episodes ask the rollout", "leave it out"),
    f"{ROLLOUT}.nnodes": ("where the rollout runs", "topology.nodes"),
    "reward.num_workers": ("the verdict, which the agent loop has", VERDICT),
    "critic.enable": ("GRPO, which has no critic", "leave it out"),
}
# A key and all below it: what decides in its place.
WITHOUT_EFFECT = {
    f"{ROLLOUT}.multi_turn.format": "model.format says how tool calls are written",
    f"{ROLLOUT}.multi_turn": EPISODE,
    f"{ROLLOUT}.agent.default_agent_loop": EPISODE,
    f"{ROLLOUT}.do_sample": "policy.sampling.temperature",
    f"{ROLLOUT}.val_kwargs.do_sample": "policy.sampling.temperature",
    f"{ROLLOUT}.repetition_penalty": "policy.sampling",
    f"{ROLLOUT}.val_kwargs.repetition_penalty": "policy.sampling",
    f"{ROLLOUT}.ignore_eos": "policy.sampling.max_tokens and policy.limits end a completion",
    f"{ROLLOUT}.over_sample_rate": "training.refill_rounds",
    "actor_rollout_ref.model.custom_chat_template": "model.format says what is written",
    "reward.custom_reward_function": VERDICT,
    "reward.reward_manager": VERDICT,
    "reward.reward_model": VERDICT,
    "reward.sandbox_fusion": VERDICT,
    "reward_model": VERDICT,
    "custom_reward_function": VERDICT,
    "reward_manager": VERDICT,
    "sandbox_fusion": VERDICT,
    "algorithm.filter_groups": "training.refill_rounds: groups of equal rewards are always replaced",
    "trainer.v1.colocate_async": "the trainer is the synchronous one",
    "trainer.v1.separate_async": "the trainer is the synchronous one",
    "ray_kwargs.ray_init": "tbexp starts Ray itself, or joins that of a Slurm job",
    "critic": "GRPO has no critic",
    **{
        f"data.{name}": TASKS
        for name in (
            *("prompt_key", "reward_fn_key", "image_key", "video_key", "audio_key", "tool_config_path"),
            *("function_tool_path", "train_max_samples", "val_max_samples", "return_raw_input_ids", "return_raw_chat"),
            *("return_full_prompt", "return_multi_modal_inputs", "image_patch_size", "apply_chat_template_kwargs"),
            *("mm_processor_kwargs", "validation_shuffle"),
        )
    },
    **{
        f"data.{name}": "a prompt that is too long is an error: training.max_prompt_tokens"
        for name in ("filter_overlong_prompts", "filter_overlong_prompts_workers", "truncation")
    },
}
# Lists that may have more in them, and must have these.
AT_LEAST = {
    "trainer.logger": (("file",), "metrics are read from its file; tracking says where they go besides"),
    f"{ACTOR}.checkpoint.save_contents": (("model", "optimizer", "extra"), "a training goes on from all of them"),
    f"{ACTOR}.checkpoint.load_contents": (("model", "optimizer", "extra"), "a training goes on from all of them"),
}


def replaced(key: str, value: Any, same: Any) -> tuple[str, str] | None:
    """Why nothing can be said at this key, and what to use; None: something can. same: what would change nothing."""
    if key == "actor_rollout_ref.model.external_lib":
        return lacking(value, same if isinstance(same, list) else [], "without it verl does not train here")
    if key in AT_LEAST:
        return lacking(value, *AT_LEAST[key])
    if value == plain(same) and type(value) is type(plain(same)):
        return None
    for prefix, (what, fix) in OWN.items():
        if below(key, prefix):
            return f"{value!r} would replace what is tbexp's own: {what}", fix
    for prefix, instead in WITHOUT_EFFECT.items():
        if below(key, prefix):
            return f"{value!r} would have no effect in a training of tbexp's", instead
    return None


def below(key: str, prefix: str) -> bool:
    return f"{key}.".startswith(f"{prefix}.")


def lacking(value: Any, needed: Sequence[str], why: str) -> tuple[str, str] | None:
    given = list(value) if isinstance(value, list | tuple) else [value]
    missing = [name for name in needed if name not in given]
    if not missing:
        return None
    return f"{value!r} is without {' and '.join(missing)}: {why}", f"[{', '.join(needed)}], or leave it out"


def plain(value: Any) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
