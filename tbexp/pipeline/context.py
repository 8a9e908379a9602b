"""What all stages of one run share: its config and folders, its tasks, its base model, what was found out so far."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tbexp.config.schema import Config
from tbexp.errors import Problem, UserError
from tbexp.pipeline import identity
from tbexp.pipeline.progress import Progress
from tbexp.tasks import Task, load_tasks, read_selectors

if TYPE_CHECKING:
    from tbexp.policy import Policy
    from tbexp.sandbox import Server

log = logging.getLogger(__name__)


class Tracker(Protocol):
    """What stages tell a tracker; `tbexp.tracking.Run` is one."""

    def metric(self, name: str, value: float, step: int = 0) -> None: ...
    def metrics(self, values: Mapping[str, float], step: int = 0) -> None: ...
    def artifact(self, path: Path | str, folder: str | None = None) -> None: ...


class Untracked:
    """Keeps nothing: for a plan, which writes no file."""

    def metric(self, name: str, value: float, step: int = 0) -> None:
        return None

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        return None

    def artifact(self, path: Path | str, folder: str | None = None) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Place:
    """Where stages run, as far as they have to know.

    attempts: may missing attempts be made here; in a job of one CPU they are not, other jobs have made them.
    ray: address of a running Ray for training. left: seconds until this process will be ended, None: not announced.
    """

    attempts: bool = True
    ray: str | None = None
    left: Callable[[], float | None] = lambda: None


HERE = Place()


@dataclass
class Context:
    """One run. `seconds` by stage and `results` end in the manifest and the summary table."""

    config: Config
    run_dir: Path
    progress: Progress
    tracker: Tracker
    seconds: dict[str, float] = field(default_factory=dict)
    results: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    place: Place = HERE

    @property
    def store(self) -> Path:
        return Path(self.config.store)

    # -- tasks

    @cached_property
    def root(self) -> Path:
        """The dataset's folder."""
        if self.config.tasks.root is not None:
            return Path(self.config.tasks.root)
        from tbexp.samples import data_root

        return data_root()

    @cached_property
    def held_out(self) -> list[Task]:
        return self._tasks(self.config.tasks.held_out, "tasks.held_out") if self.config.tasks.held_out else []

    @cached_property
    def candidates(self) -> list[Task]:
        """The tasks that are probed, never a held-out one."""
        chosen = self._tasks(self.config.tasks.candidates, "tasks.candidates")
        held_out = {task.uid for task in self.held_out}
        if self.config.tasks.candidates is None:
            return [task for task in chosen if task.uid not in held_out]
        both = sorted(task.uid for task in chosen if task.uid in held_out)
        if both:
            raise UserError(
                Problem(
                    f"{len(both)} tasks are both candidates and held out: {', '.join(both[:5])}",
                    "tasks.candidates",
                    "take them out of one of the two lists",
                )
            )
        return chosen

    def _tasks(self, wanted: str | Sequence[str] | None, key: str) -> list[Task]:
        selectors: list[str] | None = None
        within: Path | None = None
        if isinstance(wanted, str):
            file = Path(wanted)
            places = [file, self.root / wanted, self.root / "dataset" / "test_case" / wanted]
            file = next((place for place in places if place.exists()), file)
            if not file.exists():
                fix = "name a test list, a test file, or a folder of test files"
                raise UserError(Problem(f"there is no test list {wanted}", key, fix))
            if file.is_dir() or file.suffix == ".py":
                within = file
            else:
                selectors = read_selectors(file)
        elif wanted is not None:
            selectors = list(wanted)
        settings = self.config.tasks
        return load_tasks(self.root, settings.agent, selectors, within=within, format_query=settings.format_query)

    @cached_property
    def servers(self) -> dict[str, Server]:
        from tbexp.sandbox import servers_of

        return servers_of(self.config.sandbox, self.root, self.config.tasks.server_python)

    def servers_digest(self, tasks: Sequence[Task]) -> str:
        """Identity of the servers that tasks need: their entries and source files."""
        from tbexp.sandbox import servers_digest

        return servers_digest(self.servers, {name for task in tasks for name in task.server_names()})

    # -- the base model

    @cached_property
    def model_key(self) -> str:
        """Identity of the base model's weights."""
        model = self.config.model
        if model.kind != "folder":
            from tbexp.samples.bases import base_key

            return base_key(model)
        assert model.path is not None  # checked with the config
        return identity.digest(_model_files(Path(model.path)))

    @cached_property
    def model_folder(self) -> Path:
        """The base model's Hugging Face folder; those of the sample domain are built on first use."""
        model = self.config.model
        if model.kind == "folder":
            assert model.path is not None
            return Path(model.path).resolve()
        from tbexp.samples import build_base

        folder = self.store / "models" / f"{model.name}-{self.model_key}"
        bar = self.progress.stage("build base policy", None, "steps")

        def show(done: int, total: int, figures: dict[str, float]) -> None:
            bar.total = total
            bar.update(done, **{name: round(value, 4) for name, value in figures.items()})

        if (folder / "config.json").exists():
            bar.done("built before")
        else:
            build_base(model, folder, device=self.config.topology.device, progress=show)
            bar.done(str(folder))
        return folder.resolve()

    # -- policies

    def base_policy(self) -> Policy:
        """The policy that is probed and trained from."""
        from tbexp.pipeline import policies

        if self.config.policy.kind == "chat":
            return policies.chat(self.config)
        return policies.local(self.config, self.model_folder)

    @cached_property
    def base_identity(self) -> Any:
        return identity.policy_identity(self.config, "" if self.config.policy.kind == "chat" else self.model_key)


def _model_files(folder: Path) -> list[list[Any]]:
    """A model folder's files with size and time: hashing 54 GB of weights at each start would take minutes."""
    if not (folder / "config.json").exists():
        raise UserError(Problem(f"{folder} is no Hugging Face model folder", "model.path", "it needs a config.json"))
    files = sorted(p for p in folder.iterdir() if p.is_file())
    return [[p.name, p.stat().st_size, int(p.stat().st_mtime)] for p in files]
