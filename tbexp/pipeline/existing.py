"""A run folder that is there already: whose settings count, and which of them may still change.

Decided here, for every stage: a command that names the folder of a run (hydra.run.dir) means that run. Its settings are
those of the folder's config.yaml, with the command's own on top; what to do (stages, force, dry_run) is the command's
alone. So is where an evaluation or a report is made (launcher): a run that was made on a cluster is looked at here,
unless the command says otherwise. What decides a result (`identity.deciding`) cannot change while a result that it
decides is there, since the folder would then hold results of different settings under one config. A folder without
results is none of a run yet.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from pydantic import BaseModel, ValidationError

from tbexp.config.compose import Composer, submodel
from tbexp.config.overrides import composed_with
from tbexp.config.schema import STAGES, Config
from tbexp.errors import Problem
from tbexp.pipeline.identity import deciding

RESULTS = {  # any of these is a result of the stage
    "probe": ("probe", "reference"),
    "select": ("select/manifest.json",),
    "train": ("train",),
    "evaluate": ("evaluate",),
}
TO_DO = ("stages", "force", "dry_run", "compare", "parity", "serve")  # of a command, never of a run
OF_A_RUN = (*STAGES, "regrade", "serve", "status", "cancel")
CHANGES_NOTHING = ("serve", "status", "cancel")
LOOKING = {"evaluate", "report"}  # stages that are done here, wherever the run was
PLACE = ("launcher.name", "launcher.kind")
NEW_VERDICTS = ("judge.", "sandbox.")  # regrade: by whom and how a check is run may be new
KEY = "hydra.run.dir"


@dataclass(frozen=True, slots=True)
class Existing:
    """A run's folder with its settings: as they were composed (lines), and as they were (values)."""

    folder: Path
    overrides: tuple[str, ...]
    values: Mapping[str, Any]
    config: Config


def results_in(folder: Path) -> set[str]:
    """The stages that have a result in a run's folder."""
    return {stage for stage, names in RESULTS.items() if any((folder / name).exists() for name in names)}


def is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() and bool(results_in(folder) or (folder / "slurm").is_dir())


def existing(folder: Path, stages: object) -> Existing | Problem | None:
    """The run in a folder that a command with these stages means; None: there is none, or the stages are of no run.

    A problem where the run's settings cannot be read.
    """
    if not isinstance(stages, list) or not set(stages) & set(OF_A_RUN) or not is_run(folder):
        return None
    file = folder / "config.yaml"
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        config = Config.model_validate(values)
        recorded = folder / "overrides.txt"
        lines = recorded.read_text(encoding="utf-8").splitlines() if recorded.is_file() else []
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        what = f"{file} holds no settings that this version reads: {where}: {first['msg']}"
        return Problem(what, KEY, "use the version that made the run (its manifest.json), or another folder")
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        return Problem(f"{file} cannot be read: {str(error).splitlines()[0]}", KEY, "name another folder")
    return Existing(folder, tuple(line for line in lines if line), values, config)


def settings_on_top(compose: Composer, run: Existing, given: Sequence[str]) -> tuple[list[str], Any, dict[str, Any]]:
    """The run's settings with a command's overrides on top: the overrides that say so, what Hydra composes of them, and
    the values. given: overrides that compose.

    What the command leaves as the run's own overrides made it is as config.yaml has it, whatever conf/ says today.
    """
    parser = OverridesParser.create(compose.loader)
    ours = {override.key_or_group for override in parser.parse_overrides(list(given))}
    here = place_is_the_command_s(compose, given)
    kept = [line for line in run.overrides if keeps(parser, line, ours | ({"launcher"} if here else set()))]
    lines = [*kept, *given]
    before, after = composed_with(compose, [*compose.searched, *kept]), composed_with(compose, lines)
    if isinstance(before, Problem) or isinstance(after, Problem):  # its own options are not here, such as --config-dir
        lines = list(given)
        before, after = composed_with(compose, compose.searched), composed_with(compose, lines)
    assert not isinstance(before, Problem) and not isinstance(after, Problem)
    made, new = after
    values = copy.deepcopy(new)
    for leaf in leaves(Config):
        if leaf.split(".")[0] in TO_DO or (here and leaf in PLACE):
            continue
        named = any(f"{leaf}.".startswith(f"{key}.") or key.startswith(f"{leaf}.") for key in ours)
        if not named and at(new, leaf) == at(before[1], leaf) and has(run.values, leaf):
            put(values, leaf, copy.deepcopy(at(run.values, leaf)))
    return lines, made, values


def place_is_the_command_s(compose: Composer, given: Sequence[str]) -> bool:
    """Whether the stages only look at what a run has made, or make its evaluation."""
    composed = composed_with(compose, list(given))
    return not isinstance(composed, Problem) and set(composed[1]["stages"]) <= LOOKING


def keeps(parser: OverridesParser, line: str, ours: set[str]) -> bool:
    """Whether a recorded override still counts: not what a run was to do, nor what the command says anew."""
    try:
        key = parser.parse_override(line).key_or_group
    except Exception:
        return False
    return key.split(".")[0] not in TO_DO and not any(f"{key}.".startswith(f"{each}.") for each in ours)


def refused(run: Existing, config: Config) -> list[Problem]:
    """Each key that decides a result which is there, and that `config` has otherwise than the run."""
    have = results_in(run.folder) - set(config.force)
    if not have or set(config.stages) & set(CHANGES_NOTHING):
        return []
    old, new = run.config.model_dump(mode="json"), config.model_dump(mode="json")
    changed = [leaf for leaf in leaves(Config) if at(old, leaf) != at(new, leaf)]
    if config.stages == ["regrade"]:
        changed = [leaf for leaf in changed if not leaf.startswith(NEW_VERDICTS)]
    before = deciding(run.config)
    problems = []
    for leaf in changed:
        trial = copy.deepcopy(old)
        put(trial, leaf, at(new, leaf))
        after = deciding(Config.model_validate(trial))
        touched = [stage for stage in STAGES if stage in have and before[stage] != after[stage]]
        if touched:
            what = f"is {shown(at(old, leaf))} in the run of {run.folder}, and {shown(at(new, leaf))} here"
            problems.append(Problem(f"{what}; it decides {' and '.join(touched)}, finished or begun there", leaf))
    if problems:
        fix = f"leave {'it' if len(problems) == 1 else 'them'} out, or name another folder; `store` keeps what is done"
        problems[-1] = replace(problems[-1], fix=fix)
    return problems


def shown(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def nothing_there(config: Config, folder: Path, *, named: bool) -> Problem | None:
    """What a command needs of a run's folder and is not in it. named: by hydra.run.dir."""
    stages = list(config.stages)
    if stages == ["report"] and not config.dry_run and not results_in(folder):
        what = "there is no run" if not folder.is_dir() else "there are no results"
        fix = "give the settings or the folder (hydra.run.dir) of a run, or the stages that make results"
        return Problem(f"{what} in {folder}, so there is nothing to report", KEY if named else "stages", fix)
    weights = config.serve.kind == "proxy" and config.serve.upstream is None and config.policy.vllm.model is None
    if stages == ["serve"] and weights and named and not is_run(folder):
        what = f"there is no run in {folder}, and policy.vllm.model names no weights"
        return Problem(what, KEY, "name the folder of a run, weights, or a server that runs already (serve.upstream)")
    return None


# -- dotted keys of the schema


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted keys of the settings. A mapping whose keys are the user's is one setting."""
    for name, field in model.model_fields.items():
        part = submodel(field.annotation)
        if part is None:
            yield f"{prefix}{name}"
        else:
            yield from leaves(part, f"{prefix}{name}.")


def has(values: Mapping[str, Any], key: str) -> bool:
    node: Any = values
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True


def at(values: Mapping[str, Any], key: str) -> Any:
    """None where there is no such key."""
    node: Any = values
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def put(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    node = values
    for part in parents:
        node = node.setdefault(part, {})
    node[last] = value
