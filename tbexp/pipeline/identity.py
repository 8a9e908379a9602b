"""The key of a stage: a hash of what decides its result, and of nothing else.

What is left out is left out on purpose: how many attempts or steps (more continue fewer), where and how fast it runs,
what is tracked. So a sweep over `buckets` finds one probe, and a longer training goes on from a shorter one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tbexp.config.schema import Config, PolicyConfig
from tbexp.tasks import Task

FORMAT = 1  # raised when the same settings begin to mean something else


def digest(value: Any, length: int = 16) -> str:
    """Hash of a JSON value, independent of the order of keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def tasks_digest(tasks: Sequence[Task]) -> str:
    """Hash of tasks with all that an attempt at them depends on, whatever their order."""
    return digest(sorted((task.uid, task.content_hash()) for task in tasks))


def attempt_settings(config: Config) -> Mapping[str, Any]:
    """What decides one attempt besides task, policy and seed."""
    elsewhere = {"environment": config.sandbox.environment.url} if config.sandbox.kind == "openenv" else {}
    return {
        "format": FORMAT,
        **elsewhere,
        "sampling": config.policy.sampling.model_dump(),
        "limits": config.policy.limits.model_dump(),
        "user": _person(config.user),
        "judge": _person(config.judge),
        "max_result_chars": config.sandbox.max_result_chars,
        "call_timeout_s": config.sandbox.call_timeout_s,
        "search": config.sandbox.search,
        "grade_numbers": config.sandbox.grade_numbers,
        "seed": config.seed,
    }


def _person(config: Any) -> dict[str, Any]:
    settings: dict[str, Any] = config.model_dump(exclude={"name", "spending_cap_usd"})
    settings["endpoint"] = _endpoint(config.endpoint)
    return settings


def _endpoint(config: Any) -> dict[str, Any]:
    """An endpoint without what does not change its answers: patience, parallelism, the name of a key."""
    found: dict[str, Any] = config.model_dump(include={"base_url", "model", "extra_body"})
    return found


def policy_identity(config: Config, model_key: str) -> Any:
    """Who the base policy is."""
    if config.policy.kind == "chat":
        return {"kind": "chat", **_chat(config, config.policy), "format": config.model.format}
    model: dict[str, Any] = {"model": model_key, "format": config.model.format, "max_context": config.model.max_context}
    if config.policy.serve == "vllm":  # it draws other samples from the same weights
        model["vllm"] = config.policy.vllm.model_dump(include={"dtype", "max_model_len", "flags"})
    return {"kind": config.policy.kind, **model}


def reference_identity(config: Config) -> Any:
    """Who `selection.reference.policy` is."""
    policy = config.selection.reference.policy
    return {"kind": policy.kind, **_chat(config, policy), "format": policy.format}


def _chat(config: Config, part: PolicyConfig) -> dict[str, Any]:
    """Who answers at a policy's endpoint; of a server that is started here its weights, and not its address."""
    if part.serve == "none":
        return _endpoint(part.endpoint)
    weights = served_weights(config, part)
    folder = Path(weights)
    known: Any = weights_digest(folder) if (folder / "config.json").exists() else weights
    return {"weights": known, "vllm": _server(part), "extra_body": part.endpoint.extra_body}


def _server(part: PolicyConfig) -> dict[str, Any]:
    """What of a `vllm serve` changes its answers."""
    found: dict[str, Any] = part.vllm.model_dump(
        include={"dtype", "max_model_len", "tool_call_parser", "reasoning_parser", "flags"}
    )
    return found


def served_weights(config: Config, part: PolicyConfig) -> str:
    """What a policy's `vllm serve` is given: the folder or name in `vllm.model`, else the model's folder."""
    weights = part.vllm.model or config.model.path
    assert weights is not None  # checked with the config
    return weights


def weights_digest(folder: Path) -> str:
    """Of a model folder's files with size and time: hashing 54 GB of weights at each start would take minutes."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return digest([[path.name, path.stat().st_size, int(path.stat().st_mtime)] for path in files])


def campaign_key(config: Config, policy: Any, tasks: Sequence[Task], servers: str) -> str:
    """Key of attempts of one policy at some tasks; probe and evaluate share this form. servers: their digest."""
    return digest(
        {"attempts": attempt_settings(config), "policy": policy, "tasks": tasks_digest(tasks), "servers": servers}
    )


def training_key(
    config: Config, model_key: str, train: Sequence[Task], validation: Sequence[Task], servers: str
) -> str:
    """Key of a training, without its length and its retention. servers: the digest of those that the tasks need."""
    return digest(
        {
            "attempts": attempt_settings(config),
            "model": model_key,
            "max_context": config.model.max_context,
            "servers": servers,
            "train": tasks_digest(train),
            "validation": tasks_digest(validation),
            "group": config.group.model_dump(exclude={"name"}),
            "optimizer": config.optimizer.model_dump(exclude={"name"}),
            "topology": config.topology.model_dump(include={"device", "dtype", "rollout"}),
            "training": config.training.model_dump(exclude={"name", "steps", "keep_checkpoints", "save_every"}),
        }
    )


def deciding(config: Config) -> dict[str, Any]:
    """What of a config decides the result of each stage, from the config alone: what its files hold is in the keys
    above. Hence how many attempts or steps, prices and the intervals' bootstrap are not here.
    """
    model = None if config.policy.kind == "chat" else config.model.model_dump(exclude={"name", "shape"})
    attempts = {
        "name": config.name,  # a tracker knows the run by it
        "settings": attempt_settings(config),
        "policy": {"endpoint": _chat_settings(config, config.policy), "format": config.model.format}
        if model is None
        else model,
        "tasks": config.tasks.model_dump(exclude={"name", "server_python"}),
        "servers": config.sandbox.servers,
    }
    screen, probe, evaluation = config.selection.reference, config.probe, config.evaluation
    reference = screen.policy
    probed = {
        **attempts,
        "probe": probe.model_dump(include={"kind", "level", "least", "rows", "fields"}),
        "reference": [
            screen.rows,
            *(reference.kind, reference.format, _chat_settings(config, reference)),
            *(reference.sampling.model_dump(), reference.limits.model_dump()),
        ],
    }
    kept = config.selection.model_dump(exclude={"name": True, "reference": {"rows", "policy", "attempts"}})
    selected = {
        "buckets": config.buckets.model_dump(exclude={"name"}),
        "selection": kept,
        "group": config.group.model_dump(exclude={"name"}),
    }
    trained = {
        "max_context": config.model.max_context,
        "optimizer": config.optimizer.model_dump(exclude={"name"}),
        "topology": config.topology.model_dump(include={"device", "dtype", "rollout"}),
        "training": config.training.model_dump(exclude={"name", "steps", "keep_checkpoints", "save_every"}),
    }
    return {
        "probe": probed,
        "select": [probed, selected],
        "train": [probed, selected, trained],
        "evaluate": [attempts, evaluation.rows, evaluation.fields.model_dump()],
        "report": None,
    }


def _chat_settings(config: Config, part: PolicyConfig) -> Any:
    if part.serve == "none":
        return _endpoint(part.endpoint)
    return [part.vllm.model or config.model.path, _server(part), part.endpoint.extra_body]


def attempt_seed(seed: int, uid: str, attempt: int) -> int:
    """Seed of one attempt: the same whatever ran before it. 31 bits, since endpoints take no more."""
    data = f"{seed}\0{uid}\0{attempt}".encode()
    return int.from_bytes(hashlib.sha256(data).digest()[:4], "big") >> 1
