"""What `training.verl` changes of what tbexp has told verl already, checked as if the config's own keys had said it.

Decided here: which of verl's keys are keys of ours in other words. A value for one of these goes through the same
checks as ours would (`effective`), with the same words. What other parts of tbexp go by as well, such as how many nodes
a job has, is refused and said where it belongs; so is what is tbexp's own or has no effect (`own_keys`). Every other
value has to be of the kind of verl's own default, or of ours where verl has none, and one of the names that verl knows
(`choices`). Nothing is imported of verl; where it is not installed, its defaults are not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tbexp.config import checks
from tbexp.config.schema import Config
from tbexp.errors import Problem
from tbexp.training import choices, estimates, mapping, own_keys

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
OURS = {
    f"{ACTOR}.ulysses_sequence_parallel_size": "topology.sequence_parallel",
    f"{ACTOR}.ppo_max_token_len_per_gpu": "topology.micro_batch_tokens",
    f"{ACTOR}.fsdp_config.param_offload": "topology.offload",
    f"{ACTOR}.clip_ratio_low": "training.clip_low",
    f"{ACTOR}.clip_ratio_high": "training.clip_high",
    f"{ACTOR}.optim.lr": "optimizer.lr",
    f"{ACTOR}.optim.weight_decay": "optimizer.weight_decay",
    f"{ACTOR}.optim.betas": "optimizer.betas",
    f"{ACTOR}.optim.clip_grad": "optimizer.clip_grad",
    f"{ACTOR}.optim.lr_warmup_steps": "optimizer.warmup_steps",
    f"{ROLLOUT}.tensor_model_parallel_size": "topology.rollout_tensor_parallel",
    f"{ROLLOUT}.gpu_memory_utilization": "topology.gpu_memory_utilization",
    f"{ROLLOUT}.agent.num_workers": "topology.agent_workers",
}
# The same, and other parts of a run go by our key too: jobs, groups, checkpoints, the report.
ALONE_OURS = {
    "trainer.nnodes": "topology.nodes",
    "trainer.n_gpus_per_node": "topology.gpus_per_node",
    "trainer.device": "topology.device",
    "trainer.total_training_steps": "training.steps",
    "trainer.test_freq": "training.validate_every",
    "trainer.save_freq": "training.save_every",
    "data.train_batch_size": "group.groups_per_update",
    "data.max_prompt_length": "training.max_prompt_tokens",
    f"{ROLLOUT}.n": "group.size",
    f"{ROLLOUT}.name": "topology.rollout",
    f"{ROLLOUT}.val_kwargs.n": "training.validation_attempts",
    # Probe and evaluation sample by ours, and it decides what is computed again (`mapping.recomputes_old_logprobs`).
    f"{ROLLOUT}.temperature": "policy.sampling.temperature",
    f"{ROLLOUT}.top_p": "policy.sampling.top_p",
    f"{ROLLOUT}.top_k": "policy.sampling.top_k",
    f"{ROLLOUT}.val_kwargs.temperature": "policy.sampling.temperature",
    f"{ROLLOUT}.val_kwargs.top_p": "policy.sampling.top_p",
    f"{ROLLOUT}.val_kwargs.top_k": "policy.sampling.top_k",
    # The episode ends a conversation by ours.
    f"{ROLLOUT}.max_model_len": "model.max_context",
    "data.max_response_length": "model.max_context",  # less the prompt's
    f"{ROLLOUT}.seed": "seed",
    f"{ROLLOUT}.dtype": "topology.dtype",
    "data.seed": "seed",
    "actor_rollout_ref.model.path": "model.path",
    "actor_rollout_ref.model.override_config.attn_implementation": "topology.attention",
    "algorithm.norm_adv_by_std_in_grpo": "training.normalise_by_std",
}
# What verl takes from another of its keys, whose value is ours.
FOLLOWING = {
    f"{ROLLOUT}.prompt_length": "data.max_prompt_length",
    f"{ROLLOUT}.response_length": "data.max_response_length",
    f"{ROLLOUT}.n_gpus_per_node": "trainer.n_gpus_per_node",
    f"{ACTOR}.rollout_n": f"{ROLLOUT}.n",
}
COUNTS = re.compile(r"(^|_)(n|num|size|rank|steps|freq|epochs|workers|nnodes|seed|len|length|tokens)($|_)")
MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"  # groups; ours is the number of mini-batches


def problems(config: Config, base: Any | None) -> list[Problem]:
    """All that is wrong with the values of `training.verl`. base: verl's own composed config, None: not installed."""
    given = dict(mapping.passed_through(config.training.verl))
    right = not any(checks.training(config))  # else what verl would be told cannot be said yet
    ours = mapping.settings(config, model_folder=Path("/model"), folder=Path("/train")) if right else {}
    told = dict(mapping.passed_through(ours))
    found = [] if base is None else mapping.check_passed_through(config.training.verl, base)
    unknown = {problem.where for problem in found}
    given = {key: value for key, value in given.items() if place(key) not in unknown}
    found += elsewhere(config, given, told)
    refused = {problem.where for problem in found}
    for key, value in given.items():
        like = kind_of(key, base, told)
        if place(key) in refused:
            continue
        wrong = no_group(key, value, like, told) or own_keys.replaced(key, value, told.get(key, like))
        wrong = (
            wrong
            or nothing(key, value, told)
            or misfit(key, value, like)
            or (None if base is None else choices.unknown(key, value))
        )
        if wrong:
            found.append(Problem(wrong[0], place(key), wrong[1]))
    refused = {problem.where for problem in found}
    usable = {key: value for key, value in given.items() if place(key) not in refused}
    return [*found, *effective(config, usable)]


def place(key: str) -> str:
    return f"training.verl.{key}"


def elsewhere(config: Config, given: Mapping[str, Any], told: Mapping[str, Any]) -> Iterator[Problem]:
    """What has to be said by a key of ours."""
    for key in given:
        leading = FOLLOWING.get(key, key)
        ours = ALONE_OURS.get(leading)
        if ours is not None and leading in told and given[key] != told[leading]:
            what = f"{given[key]!r} is not what {ours} leads to ({told[leading]!r}), which other parts of the run go by"
            yield Problem(what, place(key), f"set {ours} instead")


def kind_of(key: str, base: Any | None, told: Mapping[str, Any]) -> Any:
    """A value of the kind that the key takes: verl's default, or what we tell it; None: not known."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    default = None
    if base is not None:
        try:
            default = OmegaConf.select(base, key)
        except OmegaConfBaseException:  # an interpolation that needs what is not composed yet
            default = None
    return told.get(key) if default is None else default


def no_group(key: str, value: Any, like: Any, told: Mapping[str, Any]) -> tuple[str, str] | None:
    """Why nothing cannot stand where verl has a group."""
    if value is None and (isinstance(like, Mapping) or any(each.startswith(f"{key}.") for each in (*told, *OURS))):
        return "is null, and verl has a group of keys there", "name the keys below it, or leave it out"
    return None


def nothing(key: str, value: Any, told: Mapping[str, Any]) -> tuple[str, str] | None:
    """Why nothing cannot stand where tbexp says a value."""
    if value is None and told.get(key) is not None:
        return f"is null, and tbexp tells verl {told[key]!r} there", "give a value, or leave it out"
    return None


def misfit(key: str, value: Any, like: Any) -> tuple[str, str] | None:
    """Why a value cannot stand where verl has one such as `like`, and what can; None: it can, as far as is known."""
    if value is None or like is None or like == "auto":
        return None
    shown = f"{value!r}, and verl has {like!r} there"
    if isinstance(like, bool):
        return None if isinstance(value, bool) else (f"is {shown}", "true or false")
    if isinstance(like, int | float):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # verl's files write the fractions 0.0 and 1.0 without their point too.
        whole = isinstance(like, int) and (like not in (0, 1) or bool(COUNTS.search(key.rpartition(".")[2])))
        right = number and (not whole or isinstance(value, int))
        return None if right else (f"is {shown}", "a whole number" if whole else "a number")
    if isinstance(like, str):
        return None if isinstance(value, str | list | tuple) else (f"is {shown}", "a text")
    if isinstance(like, Mapping):
        return None if isinstance(value, Mapping) else (f"is {value!r}, and verl has keys below it", "name one of them")
    return None if isinstance(value, list | tuple) else (f"is {value!r}, and verl has a list there", "a list")


def effective(config: Config, given: Mapping[str, Any]) -> list[Problem]:
    """What the checks of our keys say to these values, told of verl's keys."""
    values, found = config.model_dump(), []
    names: dict[str, str] = {}
    for key, ours in OURS.items():
        if key in given:
            names[ours] = key
            put(values, ours, given[key])
    if MINI_BATCH in given:
        groups, size = config.group.groups_per_update, given[MINI_BATCH]
        if not isinstance(size, int) or size < 1 or groups % size:
            what = f"group.groups_per_update is {groups}, which does not divide into mini-batches of {size} groups"
            found.append(Problem(what, place(MINI_BATCH), f"a divisor of {groups}"))
        else:
            names["training.mini_batches"] = MINI_BATCH
            put(values, "training.mini_batches", groups // size)
    try:
        changed = Config.model_validate(values)
    except ValidationError as error:
        wrong = {}
        for one in error.errors(include_url=False):
            ours = ".".join(str(part) for part in one["loc"])
            key = next((key for name, key in names.items() if ours.startswith(name)), ours)
            wrong[key] = Problem(f"is {one['input']!r}: {one['msg']}", place(key), f"what {ours} can be")
        if not wrong.keys() & given.keys():
            return [*found, *wrong.values()]
        return [*wrong.values(), *effective(config, {key: value for key, value in given.items() if key not in wrong})]
    before = {str(problem) for problem in (*checks.training(config), *estimates.problems(config))}
    told: dict[str, Problem] = {}  # the first of each key
    for problem in (*checks.training(changed), *estimates.problems(changed)):
        if str(problem) not in before:
            named = names.get(problem.where)
            told.setdefault(problem.where, problem if named is None else replace(problem, where=place(named)))
    return [*found, *told.values(), *copies(changed, given)]


def copies(config: Config, given: Mapping[str, Any]) -> Iterator[Problem]:
    """Whether the devices divide by those of one copy of the weights, when not the tensors alone are divided."""
    more = {key: given.get(f"{ROLLOUT}.{key}", 1) for key in ("data_parallel_size", "pipeline_model_parallel_size")}
    world = config.topology.nodes * config.topology.gpus_per_node
    for key, size in more.items():
        if not isinstance(size, int) or size < 1:
            yield Problem(f"is {size!r}", place(f"{ROLLOUT}.{key}"), "a whole number of 1 or more")
            return
    each = config.topology.rollout_tensor_parallel * more["data_parallel_size"] * more["pipeline_model_parallel_size"]
    if each != config.topology.rollout_tensor_parallel and world % each:
        key = next(key for key, size in more.items() if size != 1)
        what = f"{world} devices is not a multiple of {each}, those of one copy (tensor x data x pipeline parallel)"
        yield Problem(what, place(f"{ROLLOUT}.{key}"), f"a divisor of {world}")


def put(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        values = values[parent]
    values[last] = value
