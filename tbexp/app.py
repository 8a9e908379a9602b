"""The command `tbexp`: Hydra composes, all is checked at once, then it runs; errors become exit codes.

Decided here: that nothing is written before all checks have passed, and how an ending looks: 0 done, 1 a defect of
tbexp (traceback in the log file), 2 the user can fix it, 3 the world failed, 130 interrupted. Left to others: what a
stage does (`pipeline`).
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tbexp.errors import Problem, UserError, WorldFailure, one_line

if TYPE_CHECKING:
    import argparse

    from omegaconf import DictConfig

    from tbexp.config.compose import Composer
    from tbexp.config.schema import Config

DONE, DEFECT, USER, WORLD, INTERRUPTED = 0, 1, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return ending(lambda: command(words))


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
    args = parser.parse_args(words)
    if args.info or args.hydra_help or args.shell_completion:
        return hydra_itself(words)
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

    overrides = list(args.overrides)
    if args.config_dir is not None:
        folder = Path(args.config_dir).absolute()
        if not folder.is_dir():
            raise UserError(Problem(f"there is no folder {folder}", "--config-dir", "name a folder with config groups"))
        overrides.append(f"hydra.searchpath=[file://{folder}]")
    with opened(conf_folder(), overrides) as compose:
        multirun = args.multirun or "hydra.mode=MULTIRUN" in overrides
        jobs = checked(compose, overrides, multirun=multirun, here=args.cfg is None)
        if args.cfg is not None:
            show(args, overrides)
            return DONE
        if multirun:
            return run_all(overrides, jobs)
        config, run_dir = jobs[0]
        if is_alone(config) or config.dry_run:  # neither writes into a run's folder
            pipeline_run()(config, run_dir=run_dir, overrides=overrides)
            return DONE
        return run_one(overrides, run_dir)


# -- checks


def checked(compose: Composer, overrides: list[str], *, multirun: bool, here: bool) -> list[tuple[Config, Path]]:
    """The config and folder of each job. Raises UserError with every problem of all of them. Writes nothing.

    here: whether this machine has to have what the config names.
    """
    from tbexp.config.checks import check_here
    from tbexp.config.compose import plain
    from tbexp.config.overrides import composed_with, judge
    from tbexp.config.validate import validate

    judged = judge(compose, overrides, multirun=multirun)
    problems = list(judged.problems)
    shipped = plain(compose([]))
    jobs: list[tuple[Config, Path]] = []
    for job in jobs_of(compose, judged.good) if multirun else [judged.good]:
        result = composed_with(compose, job)
        if isinstance(result, Problem):
            problems.append(result)
            continue
        composed, values = result
        config, found = validate(values, shipped)
        problems += found
        if config is None:
            continue
        run_dir = folder_of(composed, config, multirun=multirun)
        if isinstance(run_dir, Problem):
            problems.append(run_dir)
            continue
        if here and not config.dry_run:
            told = " ".join(problem.where for problem in problems)
            problems += [problem for problem in check_here(config, run_dir) if problem.where not in told]
        jobs.append((config, run_dir))
    if problems:
        raise UserError(dict.fromkeys(problems))
    return jobs


def jobs_of(compose: Composer, overrides: list[str]) -> list[list[str]]:
    """The overrides of each job of a multirun, by Hydra's own basic sweeper."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    sweeper = compose(overrides, multirun=True).hydra.sweeper
    swept = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
    parsed = OverridesParser.create(compose.loader).parse_overrides([*swept, *overrides])
    return [list(job) for batch in BasicSweeper.split_arguments(parsed, None) for job in batch]


def folder_of(composed: DictConfig, config: Config, *, multirun: bool) -> Path | Problem:
    """Where Hydra will run this job."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from tbexp.config.compose import register_resolvers, run_id_of

    HydraConfig.instance().set_config(composed)
    keys = ("hydra.sweep.dir", "hydra.sweep.subdir") if multirun else ("hydra.run.dir",)
    # A config with wrong values has no identity of its own; the one made of mended values will do for the checks.
    OmegaConf.register_new_resolver("run_id", lambda: run_id_of(config), replace=True)
    try:
        return Path(*(str(OmegaConf.select(composed, key)) for key in keys)).absolute()
    except OmegaConfBaseException as error:
        return Problem(str(error).splitlines()[0], keys[0], "only keys that exist can stand in ${...}")
    finally:
        register_resolvers()


def is_alone(config: Config) -> bool:
    """Stages that look at things or serve them, and leave no run folder."""
    from tbexp.config.schema import STAGES

    return not set(config.stages) & set(STAGES)


# -- what Hydra does


def show(args: argparse.Namespace, overrides: list[str]) -> None:
    """--cfg, --package, --resolve."""
    hydra().show_cfg(
        config_name="config", overrides=overrides, cfg_type=args.cfg, package=args.package, resolve=args.resolve
    )


def hydra() -> Any:
    from hydra.core.global_hydra import GlobalHydra

    return GlobalHydra.instance().hydra


def hydra_itself(words: list[str]) -> int:
    """--info, --hydra-help and --shell-completion, which tbexp adds nothing to."""
    import hydra as hydra_package

    from tbexp.config.compose import register
    from tbexp.config.folders import conf_folder

    register(conf_folder())
    before, sys.argv = sys.argv, ["tbexp", *words]
    try:
        hydra_package.main(version_base="1.3", config_path=str(conf_folder()), config_name="config")(
            lambda config: None
        )()
    finally:
        sys.argv = before
    return DONE


# -- running


def run_one(overrides: list[str], run_dir: Path) -> int:
    make(run_dir)
    codes: list[int] = []
    hydra().run(config_name="config", task_function=job(codes), overrides=[*overrides, "hydra.mode=RUN"])
    return codes[0]


def run_all(overrides: list[str], jobs: Sequence[tuple[Config, Path]]) -> int:
    """A job that fails leaves the others alone; the worst of their exit codes is the command's."""
    for _, run_dir in jobs:
        make(run_dir.parent)
    codes: list[int] = []
    hydra().multirun(config_name="config", task_function=job(codes), overrides=[*overrides, "hydra.mode=MULTIRUN"])
    failed = sum(code != DONE for code in codes)
    if failed:
        say(f"tbexp: {failed} of {len(codes)} jobs failed")
    return next((code for code in (DEFECT, WORLD, USER) if code in codes), DONE)


def make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            Problem(f"{folder} cannot be made: {error.strerror}", "hydra.run.dir", "name another folder")
        ) from error


def job(codes: list[int]) -> Callable[[DictConfig], None]:
    """What Hydra calls for each job; appends the exit code, since Hydra would print a traceback."""

    def work(values: DictConfig) -> None:
        from hydra.core.hydra_config import HydraConfig

        from tbexp.config.compose import plain
        from tbexp.config.validate import validated

        settings = HydraConfig.get()
        overrides = [str(line) for line in settings.overrides.task]

        def run() -> int:
            pipeline_run()(validated(plain(values)), run_dir=Path(settings.runtime.output_dir), overrides=overrides)
            return DONE

        codes.append(ending(run, catch_interrupts=False))

    return work


def pipeline_run() -> Callable[..., None]:
    from tbexp.pipeline import run

    return run


# -- endings


def ending(work: Callable[[], int], *, catch_interrupts: bool = True) -> int:
    """The exit code of what `work` does, its error told in one message."""
    try:
        return work()
    except UserError as error:
        many = len(error.problems) > 1
        head = f"tbexp: {len(error.problems)} problems\n" if many else "tbexp: "
        bullet = "  - " if many else ""
        say(head + "\n".join(f"{bullet}{problem}" for problem in error.problems))
        keep(error)
        return USER
    except WorldFailure as error:
        say(f"tbexp: {error}")
        keep(error)
        return WORLD
    except KeyboardInterrupt:
        if not catch_interrupts:
            raise
        say("tbexp: interrupted; the same command goes on from here")
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has gone
        sys.stderr.close()
        return DONE
    except Exception as error:
        log_file = keep(error) or keep_aside(error)
        first = (str(error).splitlines() or [""])[0]
        say(f"tbexp: unexpected {type(error).__name__}: {first[:300]} (traceback: {log_file})")
        return DEFECT


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
