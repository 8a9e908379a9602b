"""The names that verl knows for a setting, read from its installed source, which is parsed and never imported."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path

ALGORITHMS = "trainer/ppo/core_algos.py"
ACTOR = "actor_rollout_ref.actor"

# By verl's key: the file, and what in it holds the names: a class or variable, a decorator's argument (@), or the
# variable that they are compared with (?).
READ = {
    "algorithm.adv_estimator": (ALGORITHMS, "AdvantageEstimator"),
    "algorithm.kl_penalty": (ALGORITHMS, "?kl_penalty"),
    "algorithm.kl_ctrl.type": (ALGORITHMS, "?type"),
    "algorithm.rollout_correction.rollout_is": ("trainer/ppo/rollout_corr_helper.py", "valid_is_levels"),
    "algorithm.rollout_correction.rollout_rs": (
        "trainer/ppo/rollout_corr_helper.py",
        "SUPPORTED_ROLLOUT_RS_OPTIONS",
    ),
    "algorithm.rollout_correction.loss_type": (ALGORITHMS, "?loss_type"),
    f"{ACTOR}.loss_agg_mode": ("workers/config/actor.py", "valid_loss_agg_modes"),
    f"{ACTOR}.policy_loss.loss_mode": (ALGORITHMS, "@register_policy_loss"),
    f"{ACTOR}.kl_loss_type": (ALGORITHMS, "?kl_penalty"),
    f"{ACTOR}.optim.lr_scheduler_type": ("workers/config/optimizer.py", "?warmup_style"),  # the same
    f"{ACTOR}.optim.warmup_style": ("workers/config/optimizer.py", "?warmup_style"),
    "actor_rollout_ref.model.fused_kernel_options.impl_backend": (
        "utils/experimental/torch_functional.py",
        "?impl_backend",
    ),
    "trainer.logger": ("utils/tracking.py", "supported_backend"),
}
WRITTEN = {f"{ACTOR}.strategy": ("fsdp2", "fsdp")}  # those that a checkpoint of ours is exported from
NOT_OURS = {  # what verl has and a training of tbexp cannot be made with
    "algorithm.adv_estimator": {
        "gae": "it needs a critic, which is not trained",
        "remax": "it needs an attempt without chance for each group, which is not made",
        "gdpo": "it needs rewards of several parts, and an attempt has one",
    },
    "algorithm.kl_penalty": {"full": "verl has not made it"},
    f"{ACTOR}.kl_loss_type": {"full": "verl has not made it"},
    f"{ACTOR}.policy_loss.loss_mode": {"bypass_mode": "verl chooses it itself, by algorithm.rollout_correction"},
}
NULL_TOO = {"algorithm.rollout_correction.rollout_is", "algorithm.rollout_correction.rollout_rs"}
NULL_TOO |= {f"{ACTOR}.optim.warmup_style"}


def unknown(key: str, value: object) -> tuple[str, str] | None:
    """What is wrong with the value of a key that has names for values, and those that it can have; None: nothing, or
    it has none. Of an installed verl that holds them elsewhere nothing is known.
    """
    names = known(key)
    if not names or (value is None and key in NULL_TOO):
        return None
    usable = [name for name in names if name not in NOT_OURS.get(key, {})]
    fix = f"one of {', '.join(usable)}"
    for name in value if isinstance(value, list | tuple) else split(key, value):
        if isinstance(name, str) and name in NOT_OURS.get(key, {}):
            return f"{name!r} cannot be used here: {NOT_OURS[key][name]}", fix
        if name not in usable and not (isinstance(name, str) and key.endswith(KL) and name.removesuffix("+") in usable):
            return f"{name!r} is not known there", fix
    return None


KL = ("kl_penalty", "kl_loss_type")


def split(key: str, value: object) -> list[object]:
    return [*value.split(",")] if key.endswith("rollout_rs") and isinstance(value, str) else [value]


def known(key: str) -> tuple[str, ...]:
    """The names in the installed source; none if it is not there."""
    if key in WRITTEN:
        return WRITTEN[key]
    if key not in READ:
        return ()
    file, where = READ[key]
    tree = parsed(file)
    return () if tree is None else tuple(dict.fromkeys(names_in(tree, where)))


@functools.cache
def parsed(file: str) -> ast.Module | None:
    spec = importlib.util.find_spec("verl")
    folders = spec.submodule_search_locations if spec is not None else None
    try:
        return None if not folders else ast.parse((Path(next(iter(folders))) / file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def names_in(tree: ast.Module, where: str) -> Iterator[str]:
    kind, name = (where[0], where[1:]) if where[0] in "@?" else ("", where)
    for node in ast.walk(tree):
        if kind == "@" and isinstance(node, ast.FunctionDef):
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and named(call.func) == name:
                    yield from strings(call)
        elif kind == "?" and isinstance(node, ast.Compare) and named(node.left) == name:
            if any(isinstance(how, ast.Eq | ast.In | ast.NotIn) for how in node.ops):
                yield from (text for right in node.comparators for text in strings(right))
        elif not kind and isinstance(node, ast.ClassDef) and node.name == name:
            for line in node.body:
                if isinstance(line, ast.Assign):
                    yield from strings(line.value)
        elif not kind and isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(named(target) == name for target in targets):
                yield from strings(node.value)


def named(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def strings(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value
