"""What all stages of one run share: its config and folders, its tasks, its base model, what was found out so far."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tbexp.config.schema import Config
from tbexp.errors import Problem, UserError
from tbexp.pipeline import identity
from tbexp.pipeline.elsewhere import Span
from tbexp.pipeline.inputs import Inputs, root_of
from tbexp.pipeline.progress import Progress
from tbexp.pipeline.waiting import alone
from tbexp.tasks import Task

if TYPE_CHECKING:
    from tbexp.pipeline import policies
    from tbexp.policy import Policy
    from tbexp.sandbox import Server

log = logging.getLogger(__name__)


class Tracker(Protocol):
    """What stages tell a tracker; `tbexp.tracking.Run` is one."""

    def metric(self, name: str, value: float, step: int = 0) -> None: ...
    def metrics(self, values: Mapping[str, float], step: int = 0) -> None: ...
    def tag(self, name: str, value: str) -> None: ...
    def artifact(self, path: Path | str, folder: str | None = None) -> None: ...
    def model(self, folder: Path, *, name: str, key: str, tags: Mapping[str, Any], upload: bool = False) -> None: ...


class Untracked:
    """Keeps nothing: for a plan, which writes no file."""

    def metric(self, name: str, value: float, step: int = 0) -> None:
        return None

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        return None

    def tag(self, name: str, value: str) -> None:
        return None

    def artifact(self, path: Path | str, folder: str | None = None) -> None:
        return None

    def model(self, folder: Path, *, name: str, key: str, tags: Mapping[str, Any], upload: bool = False) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Place:
    """Where stages run, as far as they have to know.

    attempts: may missing attempts be made here; in a job of one CPU they are not, other jobs have made them.
    ray: address of a running Ray for training. left: seconds until this process will be ended, None: not announced.
    finished: told the name of each stage that has ended well.
    """

    attempts: bool = True
    ray: str | None = None
    left: Callable[[], float | None] = lambda: None
    finished: Callable[[str], None] = lambda stage: None


HERE = Place()


@dataclass(frozen=True, slots=True)
class InSweep:
    """A run's place among the jobs of a sweep. sweep: the sweep's name. name: what tells the run from the others, which
    the tracker shows instead of the folder's name.
    """

    parent_run_id: str | None
    sweep: str
    name: str


@dataclass
class Context:
    """One run. `seconds` by stage and `facts` end in the manifest, `results` in the summary table."""

    config: Config
    run_dir: Path
    progress: Progress
    tracker: Tracker
    inputs: Inputs = field(default_factory=Inputs)
    given: str = ""  # hash of what the stages are given
    seconds: dict[str, float] = field(default_factory=dict)
    by_jobs: dict[str, float] = field(default_factory=dict)  # of `seconds`, those of jobs that made attempts before
    spans: list[Span] = field(default_factory=list)  # of the stage under way, when such jobs worked
    worked: bool = False  # whether the stage under way made anything, and did not find all of it finished
    building: float = 0.0  # seconds spent on the base policy, within whichever stage needed it first
    results: list[tuple[str, str]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    place: Place = HERE
    sweep: InSweep | None = None
    unknown: bool = False  # for a plan: tasks or weights are not on this machine, so no result can be named or found

    @property
    def store(self) -> Path:
        return Path(self.config.store)

    # -- tasks

    @property
    def root(self) -> Path:
        """The dataset's folder."""
        return root_of(self.config)

    @property
    def held_out(self) -> list[Task]:
        return self.inputs.held_out(self.config)

    @cached_property
    def candidates(self) -> list[Task]:
        """The tasks that are probed, never a held-out one."""
        return self.inputs.candidates(self.config)

    @property
    def servers(self) -> dict[str, Server]:
        return self.inputs.servers(self.config)

    def servers_digest(self, tasks: Sequence[Task]) -> str:
        """Identity of the servers that tasks need: their entries and source files."""
        return self.inputs.servers_digest(self.config, tasks)

    # -- the base model

    @cached_property
    def model_key(self) -> str:
        """Identity of the base model's weights."""
        model = self.config.model
        if model.kind != "folder":
            from tbexp.samples.bases import base_key

            return base_key(model)
        assert model.path is not None  # checked with the config
        folder = Path(model.path)
        if not (folder / "config.json").exists():
            fix = "it needs a config.json"
            raise UserError(Problem(f"{folder} is no Hugging Face model folder", "model.path", fix))
        return identity.weights_digest(folder)

    @property
    def model_place(self) -> Path:
        """Where the base model's folder is, or will be once it is built."""
        model = self.config.model
        if model.kind == "folder":
            assert model.path is not None
            return Path(model.path)
        return place_of_base(self.store, model.name, self.model_key)

    @cached_property
    def model_folder(self) -> Path:
        """The base model's Hugging Face folder; those of the sample domain are built on first use."""
        model = self.config.model
        folder = self.model_place
        if model.kind == "folder":
            return folder.resolve()
        from tbexp.samples import build_base

        bar = self.progress.stage("build base policy", None, "steps")

        def show(done: int, total: int, figures: dict[str, float]) -> None:
            bar.total = total
            bar.update(done, **{name: round(value, 4) for name, value in figures.items()})

        if (folder / "config.json").exists():
            bar.done("built before")
        else:
            start = time.monotonic()
            mine = functools.partial(
                alone, what=f"the base policy in {folder}", run_dir=self.run_dir, say=self.progress.say
            )
            try:
                build_base(model, folder, device=self.config.topology.device, progress=show, alone=mine)
            finally:
                self.building += time.monotonic() - start
            bar.done(str(folder))
        return folder.resolve()

    # -- policies

    def base_policy(self) -> Policy:
        """The policy that is probed and trained from."""
        from tbexp.pipeline import policies

        if self.config.policy.kind == "chat":
            return policies.chat(self.config, self.start_of("policy"))
        return policies.local(self.config, self.model_folder, self.start_of("policy"))

    def reference_policy(self) -> Policy:
        """The stronger policy that screens the candidates."""
        from tbexp.pipeline import policies

        return policies.reference(self.config, self.start_of("reference"))

    def start_of(self, name: str) -> policies.Start:
        """How the server of a policy is started, if it has one of its own."""
        from tbexp.cluster import job_of
        from tbexp.pipeline import policies

        # Each job of a run has a server of its own, also on a node that it shares with another.
        job = job_of(os.environ) if self.config.launcher.kind == "slurm" else None
        return policies.Start(self.run_dir / "serve" / f"vllm-{name}{f'-{job}' if job else ''}.log", self.progress.say)

    @cached_property
    def base_identity(self) -> Any:
        return identity.policy_identity(self.config, "" if self.config.policy.kind == "chat" else self.model_key)


def place_of_base(store: Path, name: str, key: str) -> Path:
    """Where a base policy of the sample domain is, once some run has built it."""
    return store / "models" / f"{name}-{key}"
