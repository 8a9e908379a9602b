"""The command line, judged override by override, so that all mistakes are told at once (Hydra stops at the first).

Decided here: which overrides are fit for composing, and what is wrong with the others. Wrong values of right keys are
`validate.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tbexp.config.compose import compose, known_keys
from tbexp.config.nearest import did_you_mean, nearest, nearest_keys
from tbexp.config.secrets import NAME_IT, looks_secret, secret_name
from tbexp.errors import Problem


@dataclass(slots=True)
class Judged:
    """good: fit for composing, as given. problems: of the others."""

    good: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def judge(loader: ConfigLoader, lines: Sequence[str], *, multirun: bool) -> Judged:
    """Which of these overrides Hydra can compose with; options of groups first, since they decide which keys exist."""
    judged = Judged()
    parser = OverridesParser.create(loader)
    groups = Groups(loader)
    parsed: list[tuple[str, Override]] = []
    for line in lines:
        try:
            override = parser.parse_override(line)
        except HydraException as error:
            judged.problems.append(unreadable(line, error))
            continue
        if override.is_sweep_override() and not multirun:
            judged.problems.append(several_values(override))
        elif override.is_sweep_override() and override.key_or_group.startswith("hydra."):
            judged.problems.append(Problem("Hydra's own settings cannot be swept over", override.key_or_group))
        else:
            parsed.append((line, override))
    chosen: dict[str, str] = {}
    for line, override in parsed:
        if groups.is_choice(override):
            problem = groups.problem(override, chosen, multirun=multirun)
            if problem is None:
                judged.good.append(line)
            else:
                judged.problems.append(problem)
    # Options change which keys there are; sweeping over options, the keys of the first of each count.
    composed, problem = composed_with(loader, judged.good, multirun=multirun)
    if composed is None:
        judged.good.clear()
        if not judged.problems and problem is not None:
            judged.problems.append(problem)
        composed, _ = composed_with(loader, [], multirun=multirun)
        assert composed is not None, "conf/ itself cannot be composed"
    keys = Keys(composed, groups.options)
    choices, judged.good = set(judged.good), []
    for line, override in parsed:
        if groups.is_choice(override):
            if line in choices:
                judged.good.append(line)
            continue
        problem = keys.problem(override)
        if problem is None:
            judged.good.append(line)
        else:
            judged.problems.append(problem)
    return judged


def composed_with(
    loader: ConfigLoader, lines: Sequence[str], *, multirun: bool
) -> tuple[DictConfig | None, Problem | None]:
    try:
        return compose(loader, lines, multirun=multirun), None
    except (HydraException, OmegaConfBaseException) as error:
        return None, refused(error)


def refused(error: Exception) -> Problem:
    """What Hydra says when it cannot compose, in one line."""
    text = str(error).strip() or str(error.__cause__ or type(error).__name__)
    first = text.splitlines()[0].rstrip(":.")
    cause = str(error.__cause__).splitlines()[0] if error.__cause__ is not None and str(error.__cause__) else ""
    where = getattr(error.__cause__ or error, "full_key", None) or ""
    return Problem(f"{first} ({cause})" if cause and cause not in first else first, str(where))


class Groups:
    """The config groups that Hydra finds, Hydra's own included."""

    def __init__(self, loader: ConfigLoader):
        self._loader = loader

    @cached_property
    def options(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        waiting = list(self._loader.list_groups(""))
        while waiting:
            group = waiting.pop()
            waiting += [f"{group}/{name}" for name in self._loader.list_groups(group)]
            options = self._loader.get_group_options(group, results_filter=ObjectType.CONFIG)
            if options:
                found[group] = options
        return found

    @cached_property
    def by_default(self) -> Mapping[str, Any]:
        """The chosen option of each group in the defaults list."""
        composed = compose(self._loader, [], multirun=True)
        return {str(group): option for group, option in composed.hydra.runtime.choices.items()}

    def is_choice(self, override: Override) -> bool:
        """Whether it chooses an option of a group; `optimizer={lr:1}` sets keys."""
        key = override.key_or_group
        looks = "/" in key or override.package is not None or key in self.options
        return looks and key != "hydra" and not isinstance(first_value(override), dict)

    def problem(self, override: Override, chosen: dict[str, str], *, multirun: bool) -> Problem | None:
        group = override.key_or_group
        line = override.input_line or ""
        if group not in self.options:
            return Problem("there is no such config group", group, did_you_mean(nearest(group, self.options)))
        if group in chosen and override.package is None:
            return Problem(f"an option is chosen twice: {chosen[group]} and {line}", group, "choose one")
        chosen[group] = line
        if override.is_delete():
            return None
        present = group in self.by_default
        if override.is_add() and present and override.package is None:
            return Problem(
                f"the group has an option already, {self.by_default[group]}", line, f"write {line.lstrip('+')}"
            )
        if not present and not override.is_add() and override.package is None:
            return Problem("the group is not part of the default experiment", line, f"write +{line}")
        if group == "sweep" and not multirun:
            return Problem("a sweep runs several jobs", line, f"tbexp -m {line}")
        for option in choices_of(override):
            if option is not None and option not in self.options[group]:
                near = nearest(str(option), self.options[group], count=1)
                known = f"options are {', '.join(self.options[group])}"
                return Problem(
                    f"there is no option {option!r}",
                    group,
                    f"did you mean {near[0]}? The {known}" if near else f"the {known}",
                )
        return None


class Keys:
    """The keys of a composed config, and those that may be added."""

    def __init__(self, composed: DictConfig, groups: Iterable[str]):
        self._composed = composed
        self._groups = [group for group in groups if "/" not in group]

    @cached_property
    def job(self) -> list[str]:
        values = OmegaConf.to_container(self._composed)
        assert isinstance(values, dict)
        return list(known_keys({key: value for key, value in values.items() if key != "hydra"}))

    @cached_property
    def hydra(self) -> list[str]:
        return [f"hydra.{key}" for key in known_keys(OmegaConf.to_container(self._composed.hydra))]

    def problem(self, override: Override) -> Problem | None:
        key = override.key_or_group
        if self.exists(key):
            if override.is_add() and not isinstance(override.value(), dict | list):
                return Problem("the key is there already", f"+{key}", f"write {key}=...")
            return None
        if self.is_open(key, adding=override.is_add() or override.is_force_add()):
            return None
        if secret_name(key.rpartition(".")[2]):
            return Problem("there is no such key; secrets are named, never held", key, NAME_IT)
        known = self.hydra if key.split(".")[0] in ("hydra", *nearest(key.split(".")[0], ["hydra"])) else self.job
        near = nearest_keys(key, known) or nearest_keys(key, [*self.job, *self._groups])
        return Problem("there is no such key", key, did_you_mean(near) or "tbexp --cfg job shows all keys")

    def exists(self, key: str) -> bool:
        node: Any = self._composed
        for part in key.split("."):
            if isinstance(node, ListConfig):
                return part.isdigit() and int(part) < len(node)
            if not isinstance(node, DictConfig) or node._is_none() or node._is_missing() or part not in keys_in(node):
                return False
            node = node._get_node(part)
        return True

    def is_open(self, key: str, *, adding: bool) -> bool:
        """Whether a mapping above takes any key: one of ours without `+`, one of Hydra's with it."""
        parts = key.split(".")
        node: Any = self._composed
        for depth, part in enumerate(parts):
            if not isinstance(node, DictConfig) or node._is_none() or node._is_missing():
                return False
            if OmegaConf.is_struct(node) is False and depth > 0:
                return True
            if part not in keys_in(node):
                # A mapping without a type, such as hydra.job.env_set, in which Hydra itself wants the plus.
                return adding and depth > 1 and parts[0] == "hydra" and OmegaConf.get_type(node) is dict
            node = node._get_node(part)
        return False


def keys_in(node: DictConfig) -> set[str]:
    """All keys of a node, those without a value included."""
    return {str(key) for key in OmegaConf.to_container(node)}  # type: ignore[union-attr]


def first_value(override: Override) -> Any:
    if override.is_sweep_override():
        return None
    return None if override.is_delete() else override.value()


def choices_of(override: Override) -> list[Any]:
    """The options that an override names; those of a glob are found by Hydra, so none is unknown."""
    if override.is_discrete_sweep():
        return [str(value) for value in override.sweep_iterator()]
    value = override.value()
    return list(value) if isinstance(value, list) else [value if value is None else str(value)]


def unreadable(line: str, error: Exception) -> Problem:
    key, equals, value = line.partition("=")
    if not equals:
        return Problem("is not of the form key=value", shown(line), "tbexp --help shows examples")
    if secret_name(key.rpartition(".")[2]) or looks_secret(value):
        return Problem("cannot be read", f"{key}=...")
    return Problem(f"cannot be read: {str(error).splitlines()[0]}", line, f"quote the value: '{key}=\"...\"'")


def shown(line: str) -> str:
    return "(an argument that looks like a secret)" if looks_secret(line) else line


def several_values(override: Override) -> Problem:
    line = override.input_line or ""
    key, _, value = line.partition("=")
    return Problem(
        "has several values, and this is a single run", line, f"{key}=[{value}] for a list, or tbexp -m to run each"
    )
