"""One training, start to end: plan, verl in a process of its own, metrics, checkpoints, the chosen weights.

Decided here: the same call with the same folder goes on from the newest whole checkpoint, and does nothing when all
is done; the parent, not verl, keeps `metrics.jsonl`, hands rows to whoever tracks them, and removes checkpoints that
are no longer needed; no process outlives the call, nor the caller's death. What verl is told is `mapping`'s, what an
attempt is `agent_loop`'s, which checkpoint is whole `checkpoints`'.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tbexp import disk
from tbexp.config.schema import Config
from tbexp.config.whole import write_whole
from tbexp.errors import Problem, Stopped, UserError, WorldFailure
from tbexp.training import (
    checkpoints,
    device_failures,
    environment,
    estimates,
    keeping,
    mapping,
    nonfinite,
    overruled,
    processes,
    rows,
    stopping,
    weights,
)
from tbexp.training.failures import FAILURES
from tbexp.training.reporter import Metrics, Progress, Reporter

log = logging.getLogger(__name__)

CHOSEN = "chosen"
LOOP = "tbexp.training.episode_loop.EpisodeLoop"
POLL_SECONDS = 0.2
OBJECT_STORE_BYTES = 256 * 2**20
JOIN_SECONDS = 120.0  # for a Ray that served a training before

KILLED = "verl's process was killed (SIGKILL): out of memory? The same command goes on from the newest checkpoint"

Left = Callable[[], float | None]  # seconds until the end that someone has announced


@dataclass(frozen=True, slots=True)
class TrainResult:
    """folder: the chosen weights, a Hugging Face folder. history: metrics by step; 0 is the base model's validation."""

    folder: Path
    step: int
    steps: int
    history: dict[int, dict[str, float]]
    skipped: tuple[str, ...] = ()  # checkpoints that were passed over, one sentence each

    @property
    def validation_pass_rate(self) -> float:
        """Of the chosen step."""
        return self.history[self.step][rows.VALIDATION]

    @property
    def best(self) -> tuple[int, float]:
        """The step that validated best, and its pass rate; the chosen one where it did as well (`checkpoints.best_step`
        takes the latest that cannot be told from the best).
        """
        rates = {
            step: row[rows.VALIDATION] for step, row in self.history.items() if step > 0 and rows.VALIDATION in row
        }
        step = max(rates, key=lambda step: (rates[step], step == self.step, -step))
        return step, rates[step]


def train(
    config: Config,
    *,
    model_folder: Path,
    train_uids: Sequence[str],
    validation_uids: Sequence[str],
    folder: Path,
    progress: Progress | None = None,
    metrics: Metrics | None = None,
    root: Path | None = None,
    loop: str = LOOP,
    ray_address: str | None = None,
    left: Left = lambda: None,
) -> TrainResult:
    """Trains to `config.training.steps` and exports the step that validation chooses; `folder/chosen` is a link to it.

    folder: the stage's own; continued when it holds a part of this training. root: the dataset's folder, by default
    `config.tasks.root`. loop: the agent loop's class. ray_address: a running Ray to use instead of a local one. left:
    seconds until this process will be ended, None as long as nobody has said so. Call it from a thread that lives as
    long as the training. Raises Stopped (because of `left`), UserError (configuration, verl missing, a checkpoint of
    another number of ranks), WorldFailure (system errors past the bound, a loss or gradient that is not finite),
    RuntimeError (verl broke).
    """
    check(config, train_uids, validation_uids)
    work = folder / "verl"
    work.mkdir(parents=True, exist_ok=True)
    mark = run_mark(folder)
    processes.end(mark)  # of a run that was killed
    processes.remove_abandoned()  # and its keeper
    temp = processes.temp_folder(mark)
    if ray_address is not None:
        temp = Path(tempfile.gettempdir()) / temp.name  # the job's: it goes with the job, however that ends
    trials = config.training.validation_attempts * len(validation_uids)
    report = Reporter(
        folder,
        steps=config.training.steps,
        keep=config.training.keep_checkpoints,
        trials=trials,
        progress=progress,
        metrics=metrics,
    )
    point, skipped = checkpoints.resume_point(folder / "checkpoints", rows.trained_steps(report.rows))
    for sentence in skipped:
        log.warning(sentence)
    start = point.step if point else 0
    if start >= config.training.steps:
        log.info(
            "0 steps are to be made: the checkpoint of step %d is there, and %d are asked for",
            start,
            config.training.steps,
        )
    if start < config.training.steps:
        if point is not None:
            checkpoints.check_ranks(point, nodes=config.topology.nodes, devices=config.topology.gpus_per_node)
        for torn in checkpoints.found(folder / "checkpoints"):
            if torn.step > start:
                checkpoints.remove(torn.folder)
        report.begin(start)
        plan = write_plan(
            config,
            model_folder=model_folder.resolve(),
            folder=folder.resolve(),
            train_uids=train_uids,
            validation_uids=validation_uids,
            root=root,
            loop=loop,
            resume=point,
            validate_first=start not in rows.validation(report.rows, trials)
            and start % config.training.validate_every == 0,
        )
        watch = nonfinite.Watch(folder, mapping.save_every(config))
        log_file = work / "driver.log"
        drive = functools.partial(run_verl, plan, report=report, log_file=log_file, left=left, watch=watch)
        try:
            if ray_address is None and config.topology.warm_workers:
                with_keeper(config, drive, plan, report.fragment.resolve(), log_file)
            else:
                alone(config, drive, plan, report.fragment.resolve(), mark=mark, temp=temp, ray_address=ray_address)
        except Stopped as stopped:
            raise stopped_at(folder, report, start, str(stopped)) from None
    return finish(config, model_folder=model_folder, folder=folder, history=report.rows, skipped=skipped, trials=trials)


def run_mark(folder: Path) -> str:
    """What the processes of this folder's training are found by."""
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]


def problems(config: Config) -> list[Problem]:
    """What only training can tell about a config: whether a prompt leaves room for an answer, whether verl is there
    (for a run on this machine), whether the model fits the GPUs, and what is wrong with `training.verl`. Cheap: verl's
    YAML is read only when there is something to check against it.
    """
    found = []
    installed = importlib.util.find_spec("verl") is not None
    if not installed and config.launcher.kind == "local" and not config.dry_run:
        found.append(Problem("train needs verl", "stages", "pip install 'tbexp[train]', or leave train out of stages"))
    if mapping.prompt_limit(config) >= config.model.max_context:
        limit = (
            f"a prompt may have {mapping.prompt_limit(config)} tokens, and a conversation {config.model.max_context}"
        )
        found.append(Problem(limit, "training.max_prompt_tokens", "set it below model.max_context"))
    found += estimates.problems(config)
    if config.training.verl:
        found += overruled.problems(config, mapping.verls_own() if installed else None)
    return found


def check(config: Config, train_uids: Sequence[str], validation_uids: Sequence[str]) -> None:
    """UserError with all that makes this training impossible."""
    found = problems(config)
    if not train_uids:
        found.append(Problem("there is no task to train on", "selection", "widen buckets.bands or add candidates"))
    if not validation_uids:
        found.append(Problem("there is no task to validate on", "selection.validation_fraction", "raise it"))
    if found:
        raise UserError(found)


def write_plan(
    config: Config,
    *,
    model_folder: Path,
    folder: Path,
    train_uids: Sequence[str],
    validation_uids: Sequence[str],
    root: Path | None,
    loop: str,
    resume: checkpoints.Checkpoint | None,
    validate_first: bool,
) -> Path:
    """What the agent loop reads, and the driver but for its Ray (`add_ray`), as files below `folder/verl`; the plan's
    file is returned.
    """
    work = folder / "verl"
    for name, uids in (("train", train_uids), ("validation", validation_uids)):
        data = {"uids": list(uids), "seed": config.seed, "stream": name == "train", "source": name, "agent": "tbexp"}
        (work / f"{name}.json").write_text(json.dumps(data))
    plan_file = work / "plan.json"
    (work / FAILURES).unlink(missing_ok=True)
    (work / "agents.yaml").write_text(json.dumps([{"name": "tbexp", "_target_": loop, "plan": str(plan_file)}]))
    last: dict[str, Any] = {"trainer.val_before_train": validate_first}
    if resume is not None:
        last |= {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": str(resume.folder.resolve())}
    plan = {
        "config": config.model_dump(mode="json"),
        "root": str((root or Path(config.tasks.root or ".")).resolve()),
        "uids": [*train_uids, *validation_uids],
        "seed": config.seed,
        "max_tokens": config.policy.sampling.max_tokens,
        "model": str(model_folder),
        "overrides": mapping.overrides(config, model_folder=model_folder, folder=folder, last=last),
    }
    plan_file.write_text(json.dumps(plan, indent=1))
    return plan_file


def ray_of(config: Config) -> dict[str, Any]:
    """What a Ray on this machine is started with."""
    return {
        "num_cpus": mapping.ray_cpus(config),
        "num_gpus": config.topology.gpus_per_node if config.topology.device == "cpu" else None,
        "object_store_bytes": OBJECT_STORE_BYTES if config.topology.device == "cpu" else None,
    }


def add_ray(
    plan: Path,
    settings: Mapping[str, Any],
    own: Mapping[str, str],
    *,
    temp: Path,
    address: str | None = None,
    kept: bool = False,
    join_seconds: float | None = None,
) -> None:
    """kept: it is a keeper's, in whose folder stands where it is. join_seconds: within which it must be there and
    nothing of an earlier training left; None: it is new.
    """
    told = {"address": address, "other_nodes": environment.for_other_nodes(own), "temp": str(temp)}
    ray = {**settings, **told, "kept": kept, "join_seconds": join_seconds}
    plan.write_text(json.dumps(json.loads(plan.read_text()) | {"ray": ray}, indent=1))


def with_keeper(config: Config, drive: Callable[..., None], plan: Path, metrics_file: Path, log_file: Path) -> None:
    """Runs the driver as a keeper's fork, once more if the Ray of an earlier training does not answer."""
    ray = ray_of(config)
    while True:
        with log_file.open("ab") as output, keeping.keeper_for(config, ray, output) as keeper:
            own = environment.own_variables(config, mark=keeper.mark, temp=keeper.temp, metrics_file=metrics_file)
            limit = JOIN_SECONDS if keeper.used else None
            add_ray(plan, ray, own, temp=keeper.temp, kept=True, join_seconds=limit)
            metrics = {environment.METRICS: own[environment.METRICS]}
            try:
                return drive(start=functools.partial(keeper.drive, plan, metrics), other_ray=keeper.used)
            except keeping.RayGone as gone:
                keeper.spoilt = True  # it has killed what was left of the driver, and so would be used again
                log.warning("%s; this training starts another one", gone)


def alone(
    config: Config,
    drive: Callable[..., None],
    plan: Path,
    metrics_file: Path,
    *,
    mark: str,
    temp: Path,
    ray_address: str | None,
) -> None:
    """Runs the driver as a process of its own, with a Ray of its own or one that is named."""
    own = environment.own_variables(config, mark=mark, temp=temp, metrics_file=metrics_file)
    add_ray(plan, ray_of(config), own, temp=temp, address=ray_address)
    env = environment.for_driver(own, inherited=os.environ, joins=ray_address is not None)
    with processes.held(temp):
        if ray_address is None:
            processes.write_token(temp)
        try:
            drive(start=functools.partial(start_driver, plan, env))
        finally:
            processes.end(mark)


def start_driver(plan: Path, env: Mapping[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    here = os.getpid()
    return subprocess.Popen(
        [sys.executable, "-m", "tbexp.training.driver", str(plan)],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: processes.die_with(here),  # before its imports: they take seconds
    )


def made_before(folder: Path) -> int:
    """Updates of earlier starts that a training in this folder goes on from."""
    made = rows.trained_steps(rows.merge(rows.fragments(folder / "verl")))
    point, _ = checkpoints.resume_point(folder / "checkpoints", made)
    return point.step if point else 0


def run_verl(
    plan: Path,
    *,
    start: Callable[[IO[bytes]], subprocess.Popen[bytes] | keeping.Drive],
    report: Reporter,
    log_file: Path,
    watch: nonfinite.Watch,
    left: Left = lambda: None,
    other_ray: bool = False,
) -> None:
    """Runs the driver to its end, handing on rows as they come. start: starts it, given where it writes to. Raises
    Stopped, with why, when `left` asks for it, and WorldFailure when `watch` does. other_ray: there may be another Ray
    when this one cannot be joined, so that is RayGone.
    """
    outcome_file = plan.with_name("outcome.json")
    outcome_file.unlink(missing_ok=True)
    (plan.parent / stopping.STOP).unlink(missing_ok=True)
    request = Request(plan.parent, report, left)
    report.say("starting verl")
    with log_file.open("ab") as output:
        log_start = output.tell()
        driver = start(output)
        try:
            while driver.poll() is None:
                time.sleep(POLL_SECONDS)
                report.look()
                watch.look(report.broken, report.rows)
                request.look()
        finally:
            if driver.poll() is None:
                driver.kill()
                driver.wait()
    report.look()
    watch.look(report.broken, report.rows, ended=True)
    killed = False
    try:
        outcome = json.loads(outcome_file.read_text())
    except FileNotFoundError:
        outcome = {"status": "failed", "message": f"its process ended with code {driver.returncode}"}
        killed = driver.returncode == -signal.SIGKILL  # not by this process, which would not be here
    if outcome["status"] == "user":
        raise UserError(outcome["message"])
    if outcome["status"] == "ray" and other_ray:
        raise keeping.RayGone(outcome["message"])
    if outcome["status"] == "world":
        raise WorldFailure(outcome["message"])
    if outcome["status"] != "done":
        with log_file.open("rb") as output:
            output.seek(log_start)
            said = f"{output.read().decode('utf-8', 'replace')}\n{outcome['message']}"
        if disk.is_full(log_file.parent):
            raise disk.full(log_file.parent.parent)
        if disk.says_full(said):  # there is room here, so it was, or is, elsewhere
            fix = "make room where this log says; the same command goes on from here"
            raise UserError(Problem("a disk, /tmp or /dev/shm was full", str(log_file), fix))
        why = device_failures.reason(said)
        if why := why or (KILLED if killed else None):
            raise WorldFailure(f"{why}\nverl's log: {log_file}")
        raise RuntimeError(f"verl failed: {outcome['message']}\nits log: {log_file}")
    if report.done() < report.steps:
        raise RuntimeError(
            f"verl ended at step {report.done()} of {report.steps} without an error, and made {report.made()} steps"
            f"\nits log: {log_file}"
        )


class Request:
    """Someone's wish that the training stops, from the moment it is heard of."""

    def __init__(self, work: Path, report: Reporter, left: Left):
        self._work, self._report, self._left = work, report, left
        self._reached: int | None = None  # steps that were finished when it was heard of

    def look(self) -> None:
        """Raises Stopped, with the reason or none, when the training is to end now."""
        seconds = self._left()
        if seconds is None:
            return
        reached = self._report.done()
        if self._reached is None:
            self._reached = reached
            needed = stopping.need(self._report.rows, self._report.since_row())
            room = seconds - stopping.LEAVE_SECONDS
            if needed is not None and needed > room:
                raise Stopped(stopping.why(seconds, needed), kept=False)
            stopping.tell(self._work)
            self._report.say("stopping after this step")
        elif reached > self._reached:
            raise Stopped("", kept=True)
        elif seconds < stopping.LEAVE_SECONDS:
            raise Stopped("the step under way was not finished in time", kept=False)


def stopped_at(folder: Path, report: Reporter, start: int, reason: str) -> Stopped:
    """What is told of a training that stopped: where the next start goes on, and what that loses."""
    report.look()
    point, skipped = checkpoints.resume_point(folder / "checkpoints", rows.trained_steps(report.rows))
    for sentence in skipped:
        log.warning(sentence)
    saved = point.step if point else 0
    text = stopping.message(saved=saved, reached=report.done(), start=start, reason=reason)
    return Stopped(text, kept=saved > start)


def chosen_weights(folder: Path, step: int) -> Path:
    """The exported weights of a step. A longer training of the same folder may choose another one, and what refers to
    these keeps them; `chosen` is a link to the newest choice.
    """
    return folder / f"{CHOSEN}-step-{step}"


def point(place: Path, target: Path) -> None:
    """Makes `place` a link to `target`, which lies beside it; it is there at every moment."""
    fresh = place.with_name(f"{place.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target.name, target_is_directory=True)
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    fresh.rename(place)


def finish(
    config: Config,
    *,
    model_folder: Path,
    folder: Path,
    history: dict[int, dict[str, float]],
    skipped: list[str],
    trials: int,
) -> TrainResult:
    """Chooses a step by its validation (`checkpoints.best_step`) among whole checkpoints, and exports it."""
    steps = config.training.steps
    history = {step: row for step, row in history.items() if step <= steps}
    whole = {c.step: c.folder for c in checkpoints.found(folder / "checkpoints") if not c.fault and c.step <= steps}
    best = checkpoints.best_step(rows.validation(history, trials), whole)
    if best is None:
        raise RuntimeError(f"no validated step up to {steps} has a whole checkpoint in {folder / 'checkpoints'}")
    target = chosen_weights(folder, best)
    if not target.exists() or weights.fault(target):
        command = [sys.executable, "-m", "tbexp.training.export", str(whole[best]), str(model_folder), str(target)]
        env = os.environ | {"PYTHONPATH": environment.python_path(os.environ)}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the checkpoint of step {best} could not be exported:\n{done.stderr}")
    point(folder / CHOSEN, target)
    write_whole(folder / "chosen.json", json.dumps({"step": best, rows.VALIDATION: history[best][rows.VALIDATION]}))
    return TrainResult(target, best, steps, history, tuple(skipped))
