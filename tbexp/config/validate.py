"""From plain values to a `Config`, or to the list of all that is wrong with them.

A value that cannot be read keeps nobody from hearing about the rest: it is replaced by the one that conf/ gives, and
the cross-checks are made on that.
"""

from __future__ import annotations

import copy
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from tbexp.config.checks import check
from tbexp.config.nearest import did_you_mean, nearest, nearest_keys
from tbexp.config.schema import Config
from tbexp.config.secrets import planted, secret_name
from tbexp.errors import Problem, UserError

MISSING = "???"


def validated(values: Mapping[str, Any]) -> Config:
    """The config of these plain values. Raises UserError with every problem of schema and cross-checks."""
    config, problems = validate(values)
    if config is None or problems:
        raise UserError(problems)
    return config


def validate(
    values: Mapping[str, Any], shipped: Callable[[], Mapping[str, Any]] = dict
) -> tuple[Config | None, list[Problem]]:
    """The config, None if it can't be made even with `shipped` values in place of wrong ones, and all problems.

    shipped: asked only when a value cannot be read.
    """
    found = without_missing(values)
    problems = [
        Problem("has no value", key, f"set it: {key}=...") for key in keys_of_missing(values) if not is_group(key)
    ]
    problems += planted(found)
    wrong: list[str] = []
    try:
        config = Config.model_validate(found)
    except ValidationError as error:
        ours = shipped()
        told = {problem.where for problem in problems}
        for entry in error.errors(include_url=False, include_context=True):
            problem = problem_of(entry, ours)
            wrong.append(problem.where)
            if problem.where not in told:
                problems.append(problem)
        mended = mend(found, ours, [entry["loc"] for entry in error.errors(include_url=False)])
        try:
            config = Config.model_validate(mended)
        except ValidationError:
            return None, problems
    wrong += [problem.where for problem in problems]
    problems += not_of(wrong, check(config))
    return config, list(dict.fromkeys(problems))


def not_of(wrong: Sequence[str], found: Sequence[Problem]) -> list[Problem]:
    """Without the problems that were found by values in place of the user's. wrong: the keys of these values."""

    def judged_on(problem: Problem, key: str) -> bool:
        text = f"{problem.where} {problem.what} {problem.fix}"
        named = re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", text) is not None
        return named or any(f"{each}.".startswith(f"{key}.") for each in problem.of)

    return [problem for problem in found if not any(judged_on(problem, key) for key in wrong if key)]


def problem_of(entry: Mapping[str, Any], shipped: Mapping[str, Any]) -> Problem:
    """One pydantic error in our words."""
    loc: Sequence[str | int] = entry["loc"]
    # Union branches add their names to the location; keys of the config are what can be walked.
    path = [part for part in loc if not (isinstance(part, str) and ("[" in part or part in ("str", "list")))]
    key = ".".join(str(part) for part in path if isinstance(part, str))
    value = entry.get("input")
    kind = entry["type"]
    if kind == "extra_forbidden":
        return unknown_key(key)
    if kind == "missing" and any(isinstance(part, int) for part in path):
        return Problem(f"{list(at(shipped, key) or [])} is the default, and fewer values were given", key)
    if kind == "missing":
        return Problem("has no value", key, f"set it: {key}=...")
    if kind == "literal_error":
        allowed = allowed_at(key)
        near = nearest(str(value), allowed, count=1)
        known = f"nown are {', '.join(allowed)}"
        fix = f"did you mean {near[0]}? K{known}" if near else f"k{known}"
        return Problem(f"{value!r} is unknown", key, fix)
    if kind in ("list_type", "tuple_type") and isinstance(value, str):
        return Problem(f"{value!r} must be a list", key, f"write {key}=[{value}]")
    if kind in ("model_type", "dict_type"):
        return Problem(f"{value!r} must be a mapping", key, f"set the keys below it: {key}.<name>=...")
    message = str(entry["msg"]).replace("Input should be", "must be").replace("Value error, ", "")
    message = message.replace("a valid number", "a number").replace("a valid integer", "a whole number")
    message = message.replace("a valid string", "a text").replace("a valid boolean", "true or false")
    example = at(shipped, key)
    fix = f"for example {key}={example}" if isinstance(example, int | float | str) else ""
    return Problem(f"{value!r} {message}", key, fix)


def at(values: Any, key: str) -> Any:
    """What stands at a dotted key; None if there is nothing."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def unknown_key(key: str) -> Problem:
    """The problem of a key that the schema does not have."""
    if secret_name(key.rpartition(".")[2]):
        fix = "keys are named, never held: put it into the environment and its variable's name into api_key_env"
    else:
        fix = did_you_mean(nearest_keys(key, schema_keys())) or "see tbexp --cfg job for all keys"
    return Problem("there is no such key", key, fix)


def schema_keys(model: type[BaseModel] = Config, prefix: str = "") -> list[str]:
    """All dotted keys of the schema."""
    keys = []
    for name, field in model.model_fields.items():
        keys.append(f"{prefix}{name}")
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += schema_keys(field.annotation, f"{prefix}{name}.")
    return keys


def allowed_at(key: str) -> list[str]:
    """The values of a Literal field."""
    annotation: Any = Config
    for part in key.split("."):
        annotation = annotation.model_fields[part].annotation
    return literals(annotation)


def literals(annotation: Any) -> list[str]:
    if isinstance(annotation, str):
        return [annotation]
    if get_origin(annotation) in (list, Union, types.UnionType):
        return [value for part in get_args(annotation) for value in literals(part)]
    return [value for value in get_args(annotation) if isinstance(value, str)]


def is_group(key: str) -> bool:
    """Whether the key is a whole group."""
    field = Config.model_fields.get(key)
    return field is not None and isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def keys_of_missing(values: Any, prefix: str = "") -> list[str]:
    keys = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            keys += keys_of_missing(value, f"{prefix}{key}.")
        elif value == MISSING:
            keys.append(f"{prefix}{key}")
    return keys


def without_missing(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {key: without_missing(value) for key, value in values.items() if value != MISSING}
    return values


def mend(
    values: Mapping[str, Any], shipped: Mapping[str, Any], places: Sequence[Sequence[str | int]]
) -> dict[str, Any]:
    """A copy in which what stands at `places` is replaced by the shipped value, or left to the schema's default."""
    mended = copy.deepcopy(dict(values))
    for place in places:
        node: Any = mended
        ours: Any = shipped
        for depth, part in enumerate(place):
            inside = isinstance(node, dict) and part in node
            ours = ours.get(part) if isinstance(ours, Mapping) else None
            if not inside:
                if isinstance(node, dict) and depth == len(place) - 1 and ours is not None:
                    node[part] = copy.deepcopy(ours)
                break
            if depth == len(place) - 1 or not isinstance(node[part], dict):
                del node[part]
                if ours is not None and ours != MISSING:
                    node[part] = copy.deepcopy(ours)
                break
            node = node[part]
    return mended
