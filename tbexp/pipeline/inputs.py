"""What a run reads before it makes anything: tasks, servers, rows made elsewhere.

Decided here: which of them a config's stages need, that all mistakes in them are told at once and before a run has a
folder, and that the jobs of a sweep read each of them once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tbexp.config.nearest import did_you_mean, nearest
from tbexp.config.schema import Config
from tbexp.errors import Problem, UserError, counted
from tbexp.pipeline.files import sha256_of
from tbexp.tasks import Task, Unhydrated, is_benchmark, load_tasks, right_selectors, servers_needed

if TYPE_CHECKING:
    from tbexp.attempts import AttemptRow, Counts
    from tbexp.config.schema import Fields
    from tbexp.sandbox import Server

NO_CANDIDATES = Problem("there are no candidate tasks to probe", "tasks.candidates")
NO_HELD_OUT = Problem("there are no held-out tasks to evaluate", "tasks.held_out", "name a test list")


class Inputs:
    """What the jobs of one command read. A file that is broken is read once too, and raises the same error again."""

    def __init__(self) -> None:
        self._read: dict[tuple[Any, ...], Any] = {}

    def _once(self, key: tuple[Any, ...], read: Callable[[], Any]) -> Any:
        if key not in self._read:
            try:
                self._read[key] = read()
            except UserError as error:
                self._read[key] = error
        found = self._read[key]
        if isinstance(found, UserError):
            raise found.with_traceback(None)
        return found

    def held_out(self, config: Config) -> list[Task]:
        return self._tasks(config, "held_out") if config.tasks.held_out else []

    def candidates(self, config: Config) -> list[Task]:
        """The tasks that are probed, never a held-out one."""
        chosen = self._tasks(config, "candidates")
        held_out = {task.uid for task in self.held_out(config)}
        if config.tasks.candidates is None:
            return [task for task in chosen if task.uid not in held_out]
        both = sorted(task.uid for task in chosen if task.uid in held_out)
        if both:
            raise UserError(
                Problem(
                    f"both candidates and held out: {counted(len(both), 'task')}, {', '.join(both[:5])}",
                    "tasks.candidates",
                    "take them out of one of the two lists",
                )
            )
        return chosen

    def _tasks(self, config: Config, name: str) -> list[Task]:
        settings, root = config.tasks, root_of(config)
        wanted = getattr(settings, name)
        named = wanted if wanted is None or isinstance(wanted, str) else tuple(wanted)
        key = ("tasks", name, named, str(root), settings.agent, settings.format_query)

        def read() -> list[Task]:
            selectors: list[str] | None = None
            within: Path | None = None
            problems: list[Problem] = []
            if isinstance(wanted, str):
                file = Path(wanted)
                places = [file, root / wanted, root / "dataset" / "test_case" / wanted]
                file = next((place for place in places if place.exists()), file)
                if not file.exists():
                    fix = "name a test list, a test file, or a folder of test files, from here or from tasks.root"
                    looked = ", ".join(str(place) for place in places)
                    raise UserError(
                        Problem(f"there is no test list {wanted}: looked for {looked}", f"tasks.{name}", fix)
                    )
                if file.is_dir() or file.suffix == ".py":
                    within = file
                else:
                    selectors = right_selectors(file, problems)
            elif wanted is not None:
                selectors = list(wanted)
            needs: Mapping[str, Sequence[str]] = {}
            try:
                tasks = load_tasks(root, settings.agent, selectors, within=within, format_query=settings.format_query)
                needs = servers_needed(tasks)
            except UserError as error:
                problems += error.problems
                needs = error.needs if isinstance(error, Unhydrated) else {}
            if problems:
                raise Unhydrated(problems, needs)
            return tasks

        tasks: list[Task] = self._once(key, read)
        return tasks

    def servers(self, config: Config) -> dict[str, Server]:
        from tbexp.sandbox import servers_of

        python = config.tasks.server_python
        key = ("servers", config.sandbox.model_dump_json(), str(root_of(config)), python)
        servers: dict[str, Server] = self._once(key, lambda: servers_of(config.sandbox, root_of(config), python))
        return servers

    def refuse_unknown_servers(self, config: Config) -> None:
        """UserError: tasks need servers that servers.yaml does not have. What is wrong elsewhere is told elsewhere, and
        hides none of this.
        """
        from tbexp.sandbox import WrongServers, servers_file

        if config.sandbox.kind in ("proxy", "openenv"):
            return
        known: Collection[str] = ()
        try:
            known = self.servers(config)
        except WrongServers as error:
            known = error.names
        except UserError:
            return
        needing: dict[str, list[str]] = {}
        lists = {"candidates": reads_candidates(config), "held_out": bool(config.tasks.held_out)}
        for name in (name for name, is_read in lists.items() if is_read):
            needs: Mapping[str, Sequence[str]] = {}
            try:
                needs = servers_needed(self._tasks(config, name))
            except UserError as error:
                needs = error.needs if isinstance(error, Unhydrated) else {}
            for server, uids in needs.items():
                named = needing.setdefault(server, [])
                named += [uid for uid in uids if uid not in named]
        problems = []
        for name, uids in needing.items():
            if name in known:
                continue
            near = did_you_mean(nearest(name, known))
            needed = f"{len(uids)} tasks need, such as {uids[0]}" if len(uids) > 1 else f"{uids[0]} needs"
            what = f"there is no server `{name}`, which {needed}"
            fix = near or f"servers.yaml has: {', '.join(known) or 'none'}; name it there, or mend world_state or init"
            problems.append(Problem(what, str(servers_file(config.sandbox, root_of(config))), fix))
        if problems:
            raise UserError(problems)

    def servers_digest(self, config: Config, tasks: Sequence[Task]) -> str:
        """Identity of the servers that tasks need: their entries and source files."""
        from tbexp.sandbox import servers_digest

        servers = self.servers(config)
        names = {name for task in tasks for name in task.server_names()}
        key = ("servers_digest", repr(sorted(servers.items())), *sorted(names))
        digest: str = self._once(key, lambda: servers_digest(servers, names))
        return digest

    def counts(self, files: Sequence[str], fields: Fields) -> Counts:
        from tbexp.attempts import read_counts

        counts: Counts = self._once(("counts", *_as_key(files, fields)), lambda: read_counts(files, fields))
        return counts

    def rows(self, files: Sequence[str], fields: Fields) -> list[AttemptRow]:
        from tbexp.attempts import read_rows

        def read() -> list[AttemptRow]:
            found = read_rows(files, fields)
            if not found:
                what = f"there are no rows in {', '.join(files)}"
                raise UserError(Problem(what, "evaluation.rows", "name files that hold attempts, a JSON object a line"))
            return found

        rows: list[AttemptRow] = self._once(("rows", *_as_key(files, fields)), read)
        return rows

    def digest(self, file: str) -> str:
        """SHA-256 of a file's bytes."""
        digest: str = self._once(("digest", file), lambda: sha256_of(Path(file)))
        return digest


def _as_key(files: Sequence[str], fields: Fields) -> tuple[Any, ...]:
    return (tuple(files), *fields.model_dump().values())


def root_of(config: Config) -> Path:
    """The dataset's folder."""
    if config.tasks.root is not None:
        return Path(config.tasks.root)
    from tbexp.samples import data_root

    return data_root()


def files_read(config: Config) -> list[str]:
    """The files made elsewhere that the config's stages read."""
    files = []
    if "select" in config.stages:
        files += [*config.probe.rows, *config.selection.reference.rows]
        if isinstance(config.selection.exclude, str):
            files.append(config.selection.exclude)
    if "evaluate" in config.stages:
        files += config.evaluation.rows
    return files


def reads_candidates(config: Config) -> bool:
    """Also of a pool of rows made elsewhere: its overlap with the held-out tasks is told, and of a named dataset the
    tasks' content is known.
    """
    compared = bool(config.tasks.held_out) or config.tasks.root is not None
    return _attempts_at_candidates(config) or ("select" in config.stages and compared)


def reads_held_out(config: Config) -> bool:
    return "evaluate" in config.stages or reads_candidates(config)


def reads_servers(config: Config) -> bool:
    """Also where no attempt is made: a result is known by the servers that its attempts had."""
    return _attempts_at_candidates(config) or ("evaluate" in config.stages and not config.evaluation.rows)


def _attempts_at_candidates(config: Config) -> bool:
    stages = set(config.stages)
    probed = bool(stages & {"probe", "select"}) and not config.probe.rows
    trained = "evaluate" in stages and not config.evaluation.rows and "trained" in config.evaluation.policies
    return probed or "train" in stages or trained


def problems_of(config: Config, inputs: Inputs) -> list[Problem]:
    """Everything that is wrong with what the config's stages will read. Writes nothing."""
    problems: list[Problem] = []
    for read in _reads(config, inputs):
        try:
            read()
        except UserError as error:
            problems += error.problems
    return list(dict.fromkeys(problems))


def refuse_no_tasks(config: Config, inputs: Inputs) -> None:
    """UserError: a stage would have nothing to work at, which is known before the attempts of any are paid for."""
    if "probe" in config.stages and not config.probe.rows:
        candidates = inputs.candidates(config)
        if not candidates:
            raise UserError(NO_CANDIDATES)
        # To probe alone is allowed: it evaluates.
        if "select" in config.stages and all(map(is_benchmark, candidates)):
            from tbexp.selection import nothing_kept

            raise nothing_kept(len(candidates), {"benchmark": len(candidates)})
    if "evaluate" in config.stages and not config.evaluation.rows and not inputs.held_out(config):
        raise UserError(NO_HELD_OUT)


def _reads(config: Config, inputs: Inputs) -> Iterator[Callable[[], object]]:
    if reads_held_out(config):
        yield lambda: inputs.held_out(config)
    if reads_candidates(config):
        yield lambda: inputs.candidates(config)
    yield lambda: refuse_no_tasks(config, inputs)
    if reads_servers(config):
        yield lambda: inputs.servers(config)
        yield lambda: inputs.refuse_unknown_servers(config)
    if "select" in config.stages:
        from tbexp.selection import read_exclusions

        fields, reference = config.probe.fields, config.selection.reference.rows
        if config.probe.rows:
            yield lambda: inputs.counts(config.probe.rows, fields)
        if reference:
            yield lambda: inputs.counts(reference, fields)
        yield lambda: read_exclusions(config.selection.exclude)
    if "evaluate" in config.stages and config.evaluation.rows:
        yield lambda: inputs.rows(config.evaluation.rows, config.evaluation.fields)
