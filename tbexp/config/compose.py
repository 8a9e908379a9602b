"""From conf/ and a command line to plain values, by Hydra: which keys exist, and what a resolver means.

Every key of the schema stands in the composed config with its default, so that each can be overridden without `+` and
is shown by `--cfg job`. Whether values make sense is `validate.py`'s and `checks.py`'s.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from tbexp.config.deciding import deciding_values
from tbexp.config.folders import sweeps_folder
from tbexp.config.schema import Config

MISSING = "???"
# Pickled, of conf/ (which no command changes), whether it is a multirun, and the lines that choose options.
_OF_CHOICES: dict[tuple[Path, bool, tuple[str, ...]], bytes] = {}
KEPT = 256  # of 50 kB


@contextmanager
def opened(conf: Path, overrides: Sequence[str] = ()) -> Iterator[Composer]:
    """Hydra, ready to compose from `conf` and the folders that `overrides` add. Hydra is one for the process: within
    another one of these this is the one, and after it the other again.
    """
    register(conf)
    hydra = GlobalHydra.instance()
    outer, hydra.hydra = hydra.hydra, None
    try:
        with initialize_config_dir(str(conf), job_name="tbexp", version_base="1.3"):
            searched = [line for line in overrides if line.lstrip("+").startswith("hydra.searchpath=")]
            loader = GlobalHydra.instance().config_loader()
            assert isinstance(loader, ConfigLoaderImpl)
            yield Composer(loader, conf, searched)
    finally:
        GlobalHydra.instance().hydra = outer


def register(conf: Path) -> None:
    """The schema's defaults as the config `schema`, a checkout's sweeps as the group `sweep`, and our resolvers."""
    _store(conf)
    register_resolvers()


@functools.cache
def _store(conf: Path) -> None:
    """Into Hydra's store, which is one for the process and hands out copies."""
    store = ConfigStore.instance()
    store.store(name="schema", node=schema_defaults(), provider="tbexp")
    sweeps = sweeps_folder(conf)
    for file in sorted(sweeps.glob("*.yaml")) if sweeps else ():
        store.store(group="sweep", name=file.stem, node=OmegaConf.load(file), package="_global_", provider="tbexp")


def register_resolvers() -> None:
    """`${run_id:}`: name of the run's folder."""

    def run_id(*, _root_: DictConfig) -> str:
        return run_id_of(Config.model_validate(plain(_root_)))

    OmegaConf.register_new_resolver("run_id", run_id, replace=True)


class Composer:
    """Composes lists of overrides, each once, since checks ask for the same ones again. To read and merge the files of
    conf/ takes Hydra a sixth of a second, so what the same options compose to is kept for the process and values are
    set in copies of it (10 ms): the jobs of a sweep over values read conf/ once.
    """

    def __init__(self, loader: ConfigLoaderImpl, conf: Path, searched: Sequence[str] = ()):
        self.loader = loader
        self.searched = list(searched)  # overrides that say where else options are
        self._conf = conf
        self._composed: dict[tuple[bool, tuple[str, ...]], DictConfig] = {}
        self._lists: dict[tuple[str, ObjectType], list[str]] = {}

    def __call__(self, overrides: Sequence[str], *, multirun: bool = False) -> DictConfig:
        """The config with its `hydra` part, read only. In a multirun, what is swept over keeps its default."""
        key = (multirun, tuple(overrides))
        if key not in self._composed:
            parsed = OverridesParser.create(self.loader).parse_overrides(list(overrides))
            sweeps = any(line.is_sweep_override() for line in parsed)
            if self.searched or (sweeps and not multirun) or any(decides_more(line) for line in parsed):
                self._composed[key] = self.from_files(overrides, multirun=multirun)
            else:
                self._composed[key] = self._with_values(parsed, multirun=multirun)
        return self._composed[key]

    def from_files(self, overrides: Sequence[str], *, multirun: bool = False) -> DictConfig:
        """The same by Hydra alone."""
        return self.loader.load_configuration(
            "config",
            overrides=list(overrides),
            run_mode=RunMode.MULTIRUN if multirun else RunMode.RUN,
            validate_sweep_overrides=not multirun,
        )

    def _with_values(self, parsed: Sequence[Override], *, multirun: bool) -> DictConfig:
        """What the chosen options compose to, with the values set and noted as Hydra's loader does it."""
        choices: list[Override] = []
        values: list[Override] = []
        for line in parsed:
            if not line.is_sweep_override():
                (choices if self._is_choice(line) else values).append(line)
        key = (self._conf, multirun, tuple(str(line.input_line) for line in choices))
        if key not in _OF_CHOICES:
            if len(_OF_CHOICES) == KEPT:
                del _OF_CHOICES[next(iter(_OF_CHOICES))]
            _OF_CHOICES[key] = pickle.dumps(self.from_files(key[2], multirun=multirun))
        made: DictConfig = pickle.loads(_OF_CHOICES[key])  # a tenth of the time that copy.deepcopy takes
        ConfigLoaderImpl._apply_overrides_to_config(values, made)
        ours = [line for line in parsed if not line.is_hydra_override()]
        hydra, named = made.hydra, made.hydra.job.config.override_dirname
        hydra.overrides.task = [line.input_line for line in ours]
        hydra.overrides.hydra = [line.input_line for line in parsed if line.is_hydra_override()]
        hydra.runtime.cwd = os.getcwd()  # noqa: PTH109  # as Hydra has it
        hydra.job.override_dirname = get_overrides_dirname(ours, named.exclude_keys, named.item_sep, named.kv_sep)
        return made

    def _is_choice(self, override: Override) -> bool:
        """Whether Hydra takes it for an option of a group, and not for a value."""
        return self.loader.repository.group_exists(override.key_or_group) and not isinstance(override.value(), dict)

    def options(self, group: str) -> list[str]:
        """The options of a group, none if there is no such group."""
        return self._listed(group, ObjectType.CONFIG)

    def groups(self, inside: str = "") -> list[str]:
        return self._listed(inside, ObjectType.GROUP)

    def _listed(self, inside: str, kind: ObjectType) -> list[str]:
        """Asked of the loader only where there are more folders than its own: it copies all that it knows each time."""
        if not self.searched:
            return self.loader.repository.get_group_options(inside, kind)
        if (inside, kind) not in self._lists:
            self._lists[inside, kind] = self.loader.get_group_options(inside, kind, "config", self.searched)
        return self._lists[inside, kind]


def decides_more(override: Override) -> bool:
    """Whether it sets what others of Hydra's own values follow from, as the place of a run does not."""
    is_place = override.key_or_group.startswith(("hydra.run.", "hydra.sweep.")) and override.type is OverrideType.CHANGE
    return override.key_or_group.startswith("hydra.") and not is_place


def plain(composed: DictConfig) -> dict[str, Any]:
    """The job's part as plain values, resolved. A key without a value keeps `???`."""
    job = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    found = OmegaConf.to_container(job, resolve=True)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def run_id_of(config: Config) -> str:
    """Such as `seed1-3fa9c1d2`: the same for every command that asks for the same results."""
    text = json.dumps(deciding_values(config.model_dump(mode="json")), sort_keys=True)
    return f"seed{config.seed}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def schema_defaults() -> DictConfig:
    """The schema's defaults; a mapping whose keys the schema leaves open takes any key without `+`."""
    node = OmegaConf.create(defaults_of(Config))
    for path in open_mappings(Config):
        OmegaConf.set_struct(OmegaConf.select(node, path), False)
    return node


def defaults_of(model: type[BaseModel]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        part = submodel(field.annotation)
        default = field.get_default(call_default_factory=True)
        if part is not None:
            values[name] = defaults_of(part) if default is PydanticUndefined else default.model_dump(mode="json")
        else:
            values[name] = MISSING if default is PydanticUndefined else default
    return values


def open_mappings(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted paths of the fields whose keys are the user's."""
    for name, field in model.model_fields.items():
        part = submodel(field.annotation)
        if part is not None:
            yield from open_mappings(part, f"{prefix}{name}.")
        elif getattr(field.annotation, "__origin__", None) is dict:
            yield f"{prefix}{name}"


def submodel(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def known_keys(values: Any, prefix: str = "") -> Iterator[str]:
    """Dotted keys of nested plain mappings, inner ones included."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield f"{prefix}{key}"
            yield from known_keys(value, f"{prefix}{key}.")
