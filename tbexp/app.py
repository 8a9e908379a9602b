"""The command `tbexp`: Hydra composes, all is checked at once, then it runs; errors become exit codes.

Decided here: that nothing is written before all checks have passed, and how an ending looks: 0 done, 1 a defect of
tbexp (traceback in the log file), 2 the user can fix it, 3 the world failed, 130 interrupted. Of a sweep, a mistake in
some jobs leaves the others alone; what is wrong with every job ends the command. Left to others: what a stage does, and
what a sweep's jobs have in common (`pipeline`).
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tbexp import disk
from tbexp.errors import (
    DEFECT,
    DONE,
    INTERRUPTED,
    USER,
    WORLD,
    Ending,
    Problem,
    UserError,
    WorldFailure,
    one_line,
)
from tbexp.streams import watched

if TYPE_CHECKING:
    import argparse

    from omegaconf import DictConfig

    from tbexp.config.compose import Composer
    from tbexp.config.schema import Config
    from tbexp.pipeline.context import InSweep
    from tbexp.pipeline.inputs import Inputs
    from tbexp.pipeline.sweep import Job


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    logging.raiseExceptions = False  # a log file that takes nothing more is no reason for tracebacks
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
        if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # under nohup it stays ignored
            signal.signal(signal.SIGHUP, signal.default_int_handler)

    def work() -> int:
        code = command(words)
        sys.stdout.flush()
        return code

    with watched():
        return ending(work).code


def command(words: list[str]) -> int:
    if "--help" in words or "-h" in words:
        from tbexp.config.help import help_text

        sys.stdout.write(help_text())
        return DONE
    if "--version" in words:
        from importlib.metadata import version

        sys.stdout.write(f"tbexp {version('tbexp')}\n")
        return DONE
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    parser.prog = "tbexp"
    parser.error = not_understood  # type: ignore[method-assign]
    args = parser.parse_intermixed_args(words)  # so that -m may stand between overrides
    if args.info or args.hydra_help or args.shell_completion:
        from tbexp.config.show import hydra_itself

        hydra_itself(words)
        return DONE
    refused = [
        f"--{name}" for name in ("config_path", "config_name", "experimental_rerun") if getattr(args, name) is not None
    ]
    if refused:
        raise UserError(
            [
                Problem("is not for tbexp", flag.replace("_", "-"), "--config-dir=DIR adds options of your own")
                for flag in refused
            ]
        )
    return composed_command(args)


def not_understood(message: str) -> NoReturn:
    raise UserError(Problem(message, fix="tbexp --help shows what can be written, tbexp --hydra-help Hydra's flags"))


def composed_command(args: argparse.Namespace) -> int:
    from tbexp.config.compose import opened
    from tbexp.config.folders import conf_folder
    from tbexp.config.multirun import refuse_other_sweepers

    overrides = list(args.overrides)
    if args.config_dir is not None:
        folder = Path(args.config_dir).absolute()
        if not folder.is_dir():
            raise UserError(Problem(f"there is no folder {folder}", "--config-dir", "name a folder with config groups"))
        overrides.append(f"hydra.searchpath=[file://{folder}]")
    with opened(conf_folder(), overrides) as compose:
        multirun = args.multirun or "hydra.mode=MULTIRUN" in overrides
        if multirun:
            refuse_other_sweepers(compose, overrides)
        jobs = checked(compose, overrides, multirun=multirun, here=args.cfg is None)
        if args.cfg is not None:
            from tbexp.config.show import show

            show(args, overrides, jobs[0].hydra if jobs[0].of_run else None)
            return DONE
        inputs = new_inputs()
        jobs = readable(jobs, inputs)
        if multirun:
            return run_all(compose(overrides, multirun=True), overrides, jobs, inputs)
        return run_one(jobs[0], inputs)


# -- checks


@dataclass(frozen=True, slots=True)
class Composed:
    """One job: what Hydra composed of its overrides, None if it refused; what is wrong with it. of_run: it means a run
    that is there, whose settings are in what was composed.
    """

    overrides: tuple[str, ...]
    hydra: DictConfig | None
    config: Config | None
    run_dir: Path | None
    problems: tuple[Problem, ...]
    of_run: bool = False


def checked(compose: Composer, overrides: list[str], *, multirun: bool, here: bool) -> list[Composed]:
    """Each job with its problems. Raises UserError when the command is wrong or no job is right, with every problem of
    all of them. Writes nothing.

    here: whether this machine has to have what the config names.
    """
    from tbexp.config.compose import plain
    from tbexp.config.multirun import jobs_of
    from tbexp.config.overrides import judge

    judged = judge(compose, overrides, multirun=multirun)

    def shipped() -> dict[str, Any]:
        return plain(compose([]))

    good = [line for line in overrides if line in judged.good]  # in the order given, which is that of the jobs
    each = jobs_of(compose, good) if multirun else [good]
    master = compose(good, multirun=True) if multirun else None
    jobs = [compose_job(compose, job, shipped, master=master, number=n, here=here) for n, job in enumerate(each)]
    if judged.problems:
        raise UserError(dict.fromkeys([*judged.problems, *(problem for job in jobs for problem in job.problems)]))
    return unless_all_wrong(jobs)


def unless_all_wrong(jobs: list[Composed]) -> list[Composed]:
    if all(job.problems for job in jobs):
        raise UserError(dict.fromkeys(problem for job in jobs for problem in job.problems))
    return jobs


def compose_job(
    compose: Composer,
    job: list[str],
    shipped: Callable[[], Mapping[str, Any]],
    *,
    master: DictConfig | None,
    number: int,
    here: bool,
) -> Composed:
    """master: the multirun that the job is one of."""
    from omegaconf import OmegaConf, open_dict, read_write

    from tbexp.config.here import check_here
    from tbexp.config.overrides import composed_with
    from tbexp.config.validate import not_of, validate
    from tbexp.pipeline.existing import Existing, existing, nothing_there, refused, settings_on_top

    result = composed_with(compose, job)
    if isinstance(result, Problem):
        return Composed(tuple(job), None, None, None, (result,))
    made, values = result
    named = named_folder(made, job) if master is None else None
    run = existing(named, values.get("stages")) if named is not None else None
    if isinstance(run, Problem):
        return Composed(tuple(job), None, None, None, (run,))
    if isinstance(run, Existing):
        job, made, values = settings_on_top(compose, run, job)
        with read_write(made), open_dict(made), read_write(made.hydra.run):
            made.hydra.run.dir = str(run.folder)  # what names it may now mean another one: ${name}
            made.update(values)  # Hydra's callbacks and --cfg have to see what runs
    if master is not None:
        OmegaConf.set_cache(made, OmegaConf.get_cache(master))  # so that ${now:} is one time for all jobs
        with read_write(made.hydra.job), open_dict(made.hydra.job):
            made.hydra.job.id, made.hydra.job.num = str(number), number
    config, problems = validate(values, shipped)
    run_dir: Path | None = None
    if config is not None:
        folder = folder_of(made, config, multirun=master is not None)
        if isinstance(folder, Problem):
            problems.append(folder)
        else:
            run_dir = folder
            more = of_rooms(config, training=here and "train" in config.stages)
            more = not_of([problem.where for problem in problems], more)
            if isinstance(run, Existing):
                more += refused(run, config)
            if here and (lacking := nothing_there(config, folder, named=named is not None)) is not None:
                more.append(lacking)
            # The plan of a run lists what this machine lacks; that of a comparison of readers has to read the files.
            if here and (not config.dry_run or "parity" in config.stages):
                more += [*check_here(config, folder), *no_base(config)]
            told = " ".join(problem.where for problem in problems)
            problems += [problem for problem in more if problem.where not in told]
    return Composed(tuple(job), made, config, run_dir, tuple(problems), isinstance(run, Existing))


def named_folder(composed: DictConfig, lines: Sequence[str]) -> Path | None:
    """The run folder that a command names; None: it names none, or one that follows from its settings."""
    from omegaconf.errors import OmegaConfBaseException

    if not any(line.lstrip("+").startswith("hydra.run.dir=") for line in lines):
        return None
    try:
        return Path(selected(composed, "hydra.run.dir")).absolute()
    except (OmegaConfBaseException, ValueError):  # told with the rest; run_id of wrong settings is none
        return None


def readable(jobs: list[Composed], inputs: Inputs) -> list[Composed]:
    """The jobs with what is wrong with their tasks and rows; a plan may do without them, and says that they are
    missing. Raises UserError when no job is right.
    """
    from tbexp.config.here import inputs_absent
    from tbexp.pipeline.inputs import problems_of

    def read(job: Composed) -> Composed:
        if job.problems or job.config is None or (job.config.dry_run and inputs_absent(job.config)):
            return job
        return replace(job, problems=tuple(problems_of(job.config, inputs)))

    return unless_all_wrong([read(job) for job in jobs])


def new_inputs() -> Inputs:
    from tbexp.pipeline.inputs import Inputs

    return Inputs()


def of_rooms(config: Config, *, training: bool) -> list[Problem]:
    """What the tracker's address and verl's configuration cannot be, told before anything is probed. It reads verl's
    YAML only if there is something to check against it, and imports none of mlflow, verl and torch.
    """
    from tbexp.tracking.address import problems as of_address

    found = of_address(config.tracking)
    if not training:
        return found
    from tbexp.training import problems as of_training

    try:
        return [*found, *of_training(config)]
    except UserError as error:
        return [*found, *error.problems]


def no_base(config: Config) -> list[Problem]:
    """What the base policy is built from and this machine lacks. A cluster's jobs build it there; a plan lists it."""
    makes = {"probe", "train", "evaluate"} & set(config.stages)
    if config.dry_run or not makes or config.policy.kind != "local" or config.launcher.kind != "local":
        return []
    if config.model.kind != "warmed" or config.model.path is not None:  # of a path `check_here` tells
        return []
    from tbexp.samples.warmed import smollm2_file

    try:
        smollm2_file()
    except UserError as error:
        return list(error.problems)
    return []


def folder_of(composed: DictConfig, config: Config, *, multirun: bool) -> Path | Problem:
    """Where Hydra will run this job."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from tbexp.config.compose import register_resolvers, run_id_of

    keys = ("hydra.sweep.dir", "hydra.sweep.subdir") if multirun else ("hydra.run.dir",)
    # A config with wrong values has no identity of its own; the one made of mended values will do for the checks.
    OmegaConf.register_new_resolver("run_id", lambda: run_id_of(config), replace=True)
    try:
        return Path(*(selected(composed, key) for key in keys)).absolute()
    except OmegaConfBaseException as error:
        return Problem(str(error).splitlines()[0], keys[0], "only keys that exist can stand in ${...}")
    finally:
        register_resolvers()


def selected(composed: DictConfig | None, key: str) -> str:
    """A value of Hydra's own, resolved."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    assert composed is not None
    HydraConfig.instance().set_config(composed)
    return str(OmegaConf.select(composed, key))


def is_alone(config: Config) -> bool:
    """Stages that look at things or serve them, and leave no run folder."""
    from tbexp.config.schema import STAGES

    return not set(config.stages) & set(STAGES)


# -- running


def run_one(job: Composed, inputs: Inputs) -> int:
    assert job.run_dir is not None
    if not leaves_nothing(job):
        make(job.run_dir, "hydra.run.dir")
    with callbacks(job.hydra, "run") as called:
        return in_hydra(job, inputs, called, "hydra.run.dir").code


def run_all(master: DictConfig, overrides: list[str], jobs: Sequence[Composed], inputs: Inputs) -> int:
    """A job that fails leaves the others alone; the worst of their exit codes is the command's."""
    from tbexp.config.multirun import ready_sweep
    from tbexp.pipeline.sweep import Job, heading, run_sweep, sweep_name, worst

    told = [Job(job.overrides, job.config, job.run_dir, job.problems) for job in jobs]
    tell_of_mistakes(told)
    right = [job for job in jobs if not job.problems]
    with callbacks(master, "multirun") as called:

        def run_job(job: Composed, place: InSweep | None = None) -> Ending:
            return in_hydra(job, inputs, called, "hydra.sweep.dir", "hydra.sweep.subdir", place)

        if all(leaves_nothing(job) for job in right):
            codes: list[int] = []
            for number, job in enumerate(jobs):
                if not job.problems and job.config is not None and job.config.dry_run:
                    sys.stdout.write(("\n" if codes else "") + f"{heading(told, number)}\n")  # where its plan stands
                codes.append(USER if job.problems else run_job(job).code)
            return worst(codes)
        place = Path(selected(right[0].hydra, "hydra.sweep.dir")).absolute()
        folder = place / sweep_name(told, ready_sweep(overrides))
        make(folder, "hydra.sweep.dir")
        return run_sweep(
            told, folder=folder, overrides=overrides, run_job=lambda number, place: run_job(jobs[number], place)
        )


def tell_of_mistakes(jobs: Sequence[Job]) -> None:
    """Each mistake once, with the jobs that have it."""
    from tbexp.pipeline.sweep import job_name, swept_names

    names = swept_names(jobs)
    wrong: dict[Problem, list[str]] = {}
    for job in jobs:
        for problem in job.problems:
            wrong.setdefault(problem, []).append(job_name(job, names))
    if wrong:
        count = sum(bool(job.problems) for job in jobs)
        lines = [f"  - {problem}\n      in: {'; '.join(each)}" for problem, each in wrong.items()]
        say("\n".join([f"tbexp: {count} of {len(jobs)} jobs cannot run, the others go on", *lines]))


def leaves_nothing(job: Composed) -> bool:
    """Whether it writes into no run folder."""
    return job.config is not None and (is_alone(job.config) or job.config.dry_run)


@contextmanager
def callbacks(config: DictConfig | None, what: str) -> Iterator[Any]:
    """Hydra's callbacks, told of the start and the end of a run or a multirun."""
    from hydra._internal.callbacks import Callbacks

    called = Callbacks(config)
    getattr(called, f"on_{what}_start")(config=config, config_name="config")
    yield called
    ended = {"job_return": None} if what == "run" else {}
    getattr(called, f"on_{what}_end")(config=config, config_name="config", **ended)


def make(folder: Path, key: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(Problem(f"{folder} cannot be made: {error.strerror}", key, "name another folder")) from error


def in_hydra(
    job: Composed,
    inputs: Inputs,
    called: Any,
    dir_key: str,
    subdir_key: str | None = None,
    place: InSweep | None = None,
) -> Ending:
    """Runs one job as Hydra would: in its folder, with its log file and the callbacks `called`."""
    from hydra.core.utils import run_job
    from hydra.types import HydraContext

    from tbexp.config.show import hydra

    assert job.hydra is not None
    overrides = [str(line) for line in job.hydra.hydra.overrides.task]
    more = {} if place is None else {"sweep": place}

    def work() -> int:
        pipeline_run()(job.config, run_dir=job.run_dir, overrides=overrides, inputs=inputs, **more)
        return DONE

    if leaves_nothing(job):
        return ending(work, catch_interrupts=False)
    endings: list[Ending] = []
    run_job(
        # Hydra would print a traceback of what its task raises, so it is given nothing to catch.
        task_function=lambda _: endings.append(ending(work, catch_interrupts=False)),
        config=job.hydra,
        job_dir_key=dir_key,
        job_subdir_key=subdir_key,
        hydra_context=HydraContext(config_loader=hydra().config_loader, callbacks=called),
    )
    return endings[0]


def pipeline_run() -> Callable[..., None]:
    from tbexp.pipeline import run

    return run


# -- endings


def ending(work: Callable[[], int], *, catch_interrupts: bool = True) -> Ending:
    """The exit code of what `work` does, its error told in one message."""
    try:
        return Ending(work())
    except UserError as error:
        many = len(error.problems) > 1
        head = f"tbexp: {len(error.problems)} problems\n" if many else "tbexp: "
        bullet = "  - " if many else ""
        say(head + "\n".join(f"{bullet}{problem}" for problem in error.problems))
        keep(error)
        return Ending(USER, "; ".join(problem.short for problem in error.problems))
    except WorldFailure as error:
        say(f"tbexp: {error}")
        keep(error)
        return Ending(WORLD, str(error))
    except KeyboardInterrupt:
        if not catch_interrupts:
            raise
        say("tbexp: interrupted; the same command goes on from here")
        return Ending(INTERRUPTED)
    except Exception as error:
        if full := out_of_space(error):
            say(f"tbexp: {full}")
            return Ending(USER, full.short)
        log_file = keep(error) or keep_aside(error)
        first = (str(error).splitlines() or [""])[0]
        said = f"unexpected {type(error).__name__}: {first[:300]} (traceback: {log_file})"
        say(f"tbexp: {said}")
        return Ending(DEFECT, said)


UNKNOWN = "the store or the run's folder"  # where an error has no file


def out_of_space(error: BaseException) -> Problem | None:
    """What to tell when the disk is full or has become read-only, wherever that was noticed."""
    seen: BaseException | None = error
    while seen is not None:
        fix = "make room; the same command goes on from here"
        if isinstance(seen, OSError) and seen.errno in (*disk.CODES, errno.EROFS):
            return Problem(f"cannot be written: {seen.strerror}", str(seen.filename or UNKNOWN), fix)
        if disk.says_full(str(seen)):
            return Problem(f"cannot be written: {os.strerror(errno.ENOSPC)}", UNKNOWN, fix)
        seen = seen.__cause__ or seen.__context__
    return None


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def keep(error: BaseException) -> str | None:
    """Puts the error with its traceback into the run's log file, and nowhere else; None if there is none."""
    root = logging.getLogger()
    files = [handler for handler in root.handlers if isinstance(handler, logging.FileHandler)]
    files = [handler for handler in files if handler.baseFilename != os.devnull]
    exc_info = (type(error), error, error.__traceback__)
    record = root.makeRecord("tbexp", logging.ERROR, __file__, 0, "%s", (str(error),), exc_info)
    for handler in files:
        handler.handle(record)
    return files[0].baseFilename if files else None


def keep_aside(error: BaseException) -> str:
    """The traceback in a file of its own, for what fails before a run has a folder."""
    with tempfile.NamedTemporaryFile("w", prefix="tbexp-", suffix=".log", delete=False, encoding="utf-8") as file:
        file.write("".join(traceback.format_exception(error)))
    return file.name


class OneLine(logging.Formatter):
    """For the console: the message on one line and without its traceback, which the log file has."""

    def format(self, record: logging.LogRecord) -> str:
        record = logging.makeLogRecord({**record.__dict__, "exc_info": None, "exc_text": None, "stack_info": None})
        return one_line(super().format(record))
