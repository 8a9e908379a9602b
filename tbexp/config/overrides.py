"""The command line, judged override by override, so that all mistakes are told at once (Hydra stops at the first).

Decided here: which overrides are fit for composing, and what is wrong with the others. Wrong values of right keys are
`validate.py`'s.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tbexp.config.compose import Composer, defaults_of, known_keys, open_mappings, plain
from tbexp.config.nearest import did_you_mean, mended, nearest, nearest_keys
from tbexp.config.schema import Config
from tbexp.config.secrets import NAME_IT, looks_secret, secret_name
from tbexp.errors import Problem


@dataclass(slots=True)
class Judged:
    """good: fit for composing, as given. problems: of the others."""

    good: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def judge(compose: Composer, lines: Sequence[str], *, multirun: bool) -> Judged:
    """Which of these overrides Hydra can compose with; options of groups first, since they decide which keys exist."""
    judged = Judged()
    parser = OverridesParser.create(compose.loader)
    groups = Groups(compose)
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
    if not judged.problems and not multirun and fits_as_it_is(compose, groups, parsed):
        judged.good += lines
        return judged
    chosen: dict[str, str] = {}
    judged.good += compose.searched
    for line, override in parsed:
        if groups.is_choice(override):
            problem = groups.problem(override, chosen, multirun=multirun)
            if problem is None:
                judged.good.append(line)
            else:
                judged.problems.append(problem)
    choices = fitting(compose, judged.good, judged.problems, multirun=multirun)
    # Options decide which keys there are; of options that are swept over, those of the default experiment count.
    keys = Keys(compose(choices, multirun=multirun), groups.names)
    settings = []
    for line, override in parsed:
        if not groups.is_choice(override) and line not in compose.searched:
            problem = keys.problem(override)
            if problem is None:
                settings.append(line)
            else:
                judged.problems.append(problem)
    judged.good = fitting(compose, [*choices, *settings], judged.problems, multirun=multirun)
    return judged


def fits_as_it_is(compose: Composer, groups: Groups, parsed: Sequence[tuple[str, Override]]) -> bool:
    """Whether these set keys and choose options that are there already, and Hydra takes them all. It refuses what is
    unknown itself, so a command without a mistake is composed once; where one is plain to see, that is not tried.
    """
    chosen = set()
    for _, override in parsed:
        key = override.key_or_group
        if override.type is not OverrideType.CHANGE or override.package is not None:
            return False
        if groups.is_choice(override):
            if key in chosen or str(override.value()) not in compose.options(key):
                return False
            chosen.add(key)
        elif not key.startswith("hydra.") and not ours(key):
            return False
    return not isinstance(composed_with(compose, [line for line, _ in parsed]), Problem)


def ours(key: str) -> bool:
    """Whether the schema has the key, or a mapping above it whose keys are the user's."""
    known, open_ones = _schema()
    return key in known or key.startswith(open_ones)


def below_open(key: str, known: Sequence[str]) -> list[str]:
    """For a key whose parts above one of our open mappings, such as training.verl, are misspelled: the key as it would
    be below that mapping.
    """
    parts = key.split(".")
    found = []
    for path in _schema()[1]:
        depth = path.count(".")
        if len(parts) > depth and path[:-1] in mended(parts[:depth], list(known)):
            found.append(path + ".".join(parts[depth:]))
    return found


@functools.cache
def _schema() -> tuple[frozenset[str], tuple[str, ...]]:
    known = frozenset(known_keys(defaults_of(Config)))
    return known, tuple(f"{path}." for path in open_mappings(Config))


def fitting(compose: Composer, lines: list[str], problems: list[Problem], *, multirun: bool) -> list[str]:
    """The overrides that compose and resolve together; what Hydra says about each of the others goes to `problems`."""
    if not isinstance(composed_with(compose, lines, multirun=multirun), Problem):
        return lines
    good: list[str] = []
    for line in lines:
        result = composed_with(compose, [*good, line], multirun=multirun)
        if isinstance(result, Problem):
            problems.append(result)
        else:
            good.append(line)
    return good


def composed_with(
    compose: Composer, lines: Sequence[str], *, multirun: bool = False
) -> tuple[DictConfig, dict[str, Any]] | Problem:
    """The composed config, and its job's part as plain values; or why Hydra refuses these overrides."""
    try:
        composed = compose(lines, multirun=multirun)
        return composed, plain(composed)
    except (HydraException, OmegaConfBaseException) as error:
        return refused(error)
    except (yaml.YAMLError, UnicodeDecodeError) as error:  # of a file in a folder of the user's
        return unreadable_file(error)
    except ValueError as error:  # of a key below a list
        return Problem(
            f"a key below a list is a place in it, a whole number: {error}", fix="write the list as one value"
        )


def unreadable_file(error: yaml.YAMLError | UnicodeDecodeError) -> Problem:
    """A config file that is no YAML, or no text; which one is no text Hydra does not tell."""
    if isinstance(error, UnicodeDecodeError):
        return Problem(f"a config file is not UTF-8: {error}", "--config-dir", "save it as UTF-8 text")
    mark = getattr(error, "problem_mark", None)
    where = "--config-dir" if mark is None else f"{mark.name}:{mark.line + 1}"
    return Problem(f"is no YAML: {getattr(error, 'problem', None) or error}", where)


def refused(error: Exception) -> Problem:
    """What Hydra says when it cannot compose, in one line, at the key that it says it of."""
    told = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    first = (str(told).strip().splitlines() or [type(told).__name__])[0]
    key = str(getattr(told, "full_key", None) or "")
    if first.startswith("Cannot merge"):
        return Problem("a list and a mapping meet", key, "give the one or the other")
    return Problem(first.rstrip(":."), key)


class Groups:
    """The config groups that Hydra finds, Hydra's own included."""

    def __init__(self, compose: Composer):
        self._compose = compose
        self.names = compose.groups()

    @cached_property
    def by_default(self) -> Mapping[str, Any]:
        """The chosen option of each group in the defaults list."""
        return {str(group): option for group, option in self._compose([]).hydra.runtime.choices.items()}

    def is_choice(self, override: Override) -> bool:
        """Whether it chooses an option of a group; `optimizer={lr:1}` sets keys."""
        key = override.key_or_group
        looks = "/" in key or override.package is not None or key in self.names
        return looks and key != "hydra" and not isinstance(first_value(override), dict)

    def problem(self, override: Override, chosen: dict[str, str], *, multirun: bool) -> Problem | None:
        group = override.key_or_group
        line = override.input_line or ""
        options = self._compose.options(group)
        if not options:
            known = [*self.names, *(f"hydra/{name}" for name in self._compose.groups("hydra"))]
            return Problem("there is no such config group", group, did_you_mean(nearest(group, known)))
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
        for option in choices_of(override):
            if option is not None and option not in options:
                near = nearest(str(option), options, count=1)
                listed = f"options are {', '.join(options)}"
                fix = f"did you mean {near[0]}? The {listed}" if near else f"the {listed}"
                return Problem(f"there is no option {option!r}", group, fix)
        if group == "sweep" and not multirun:
            return Problem("a sweep runs several jobs", line, f"tbexp -m {line}")
        return None


class Keys:
    """The keys of a composed config, and those that may be added."""

    def __init__(self, composed: DictConfig, groups: Iterable[str]):
        self._composed = composed
        self._groups = list(groups)

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
            return self.other_kind(override)
        if self.is_open(key, adding=override.is_add() or override.is_force_add()):
            return None
        if secret_name(key.rpartition(".")[2]):
            return Problem("there is no such key; secrets are named, never held", key, NAME_IT)
        near = below_open(key, self.job) or nearest_keys(key, [*self.job, *self._groups, "hydra", *self.hydra])
        return Problem("there is no such key", key, did_you_mean(near) or "tbexp --cfg job shows all keys")

    def other_kind(self, override: Override) -> Problem | None:
        """A list where a mapping stands, or a mapping where a list does, neither of which Hydra can merge."""
        kinds = {type(value) for value in values_of(override)}
        if not kinds & {list, dict}:
            return None
        key, text = override.key_or_group, (override.input_line or "").partition("=")[2]
        node: Any = OmegaConf.select(self._composed, key, throw_on_resolution_failure=False)
        if isinstance(node, DictConfig) and list in kinds:
            return Problem(f"{shown(text)} must be a mapping", key, f"set the keys below it: {key}.<name>=...")
        if isinstance(node, ListConfig) and dict in kinds:
            return Problem(f"{shown(text)} must be a list", key, f"write {key}=[...]")
        return None

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
    return {str(key) for key in node}


def first_value(override: Override) -> Any:
    if override.is_sweep_override():
        return None
    return None if override.is_delete() else override.value()


def values_of(override: Override) -> list[Any]:
    """What an override sets, in each of its jobs; of a range its numbers are not spelled out."""
    value = None if override.is_delete() else override.value()
    return list(value.list) if isinstance(value, ChoiceSweep) else [value]


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
    where = f"{key}=..." if "://" in value and "?" in value else line  # an address may carry a key in its query
    return Problem(f"cannot be read: {str(error).splitlines()[0]}", where, f"quote the value: '{key}=\"...\"'")


def shown(line: str) -> str:
    return "(an argument that looks like a secret)" if looks_secret(line) else line


def several_values(override: Override) -> Problem:
    line = override.input_line or ""
    key, _, value = line.partition("=")
    return Problem(
        "has several values, and this is a single run", line, f"{key}=[{value}] for a list, or tbexp -m to run each"
    )
