"""What runs on the nodes of a job: the work as a process of its own, inside a Ray of these nodes if it needs one.

Decided here:
- Rank 0 runs the work; the other ranks only join Ray and stay until rank 0 is done.
- Before that the nodes try their network (`network`). Those that fail are named, and the job goes back into the queue
  without them; such a start counts as one that kept nothing.
- On Slurm's warning (SIGUSR2) the work is asked to stop by a file, which says until when: the end that Slurm has set,
  or `warning_seconds` from now if that is sooner. The job goes back into the queue when the work has stopped. A start
  that kept nothing new says so and is counted; after `idle_restarts` of them the job fails.
- On SIGTERM (cancelled, or out of time) everything is ended at once.
- The work's error is the job's: its message is raised here, so that submitit keeps it for the submitter.
No process is left, whichever way it ends: all that is started carries the job's mark.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tbexp.cluster import network as between_nodes
from tbexp.cluster import ray_nodes
from tbexp.cluster.network import Network
from tbexp.cluster.nodes import JobFailed, Nodes, address_of, inherited, scratch, spawn, write
from tbexp.cluster.ray_nodes import Ray
from tbexp.training import processes
from tbexp.training.environment import python_path

STOPPED, IDLE = 75, 76  # exit codes of work that stopped because it was asked to; IDLE: it kept nothing new
POLL_SECONDS = 0.3

log = logging.getLogger("tbexp.cluster")


@dataclass(frozen=True, slots=True)
class NodeJob:
    """plan: the file that tells the work what to do. folder: of the submission; each start has a folder in it."""

    plan: str
    folder: str
    ray: Ray | None = None
    network: Network | None = None  # None: it is not tried
    warning_seconds: float = 600.0
    requeue: bool = True
    idle_restarts: int = 2

    def __call__(self) -> str:
        """Runs on every rank. Raises JobFailed with the work's own words."""
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
        nodes = Nodes.here(os.environ)
        signals = Signals()
        if not Path(self.plan).exists():
            raise JobFailed(
                f"{self.plan} was written at submission and is not seen on {nodes.host}: "
                "store and hydra.run.dir have to be on a file system that the nodes share"
            )
        start = Path(self.folder) / nodes.start
        start.mkdir(exist_ok=True)
        with scratch(nodes) as temp:
            bad, code = self.meet(nodes, start, signals), 0
            if nodes.rank and self.ray is not None:
                ray_nodes.serve(nodes, start, temp, self.ray, signals.check)
                return f"{nodes.host} took part"
            if not bad:
                code = self.work(nodes, start, temp, signals)
        # Nothing of this start is left on the node now: what goes back into the queue is killed by Slurm.
        if bad:
            self.without(nodes, bad, signals)
        if code in (STOPPED, IDLE):
            self.again(nodes, start, signals, idle=code == IDLE)
        return "done"

    def meet(self, nodes: Nodes, start: Path, signals: Signals) -> dict[str, str]:
        """Tries the network; on rank 0 the nodes that failed, with what is known of each."""
        if self.network is None or len(nodes.hosts) == 1:
            return {}
        late = 0.0 if self.ray is None else self.ray.join_seconds
        if nodes.rank:
            between_nodes.follow(nodes, start, self.network, signals.check, late)
        else:
            bad = between_nodes.unbegun(nodes, start, late, signals.check) if late else {}
            if bad := bad or between_nodes.lead(nodes, start, self.network, signals.check):
                write(start / "done", "")  # the others wait for Ray's head
                return bad
        os.environ.update(between_nodes.interface_variables(self.network, address_of(nodes.hosts[0])))
        return {}

    def work(self, nodes: Nodes, start: Path, temp: Path, signals: Signals) -> int:
        """Rank 0: the work from start to end; its exit code."""
        command = [sys.executable, "-m", "tbexp.node", self.plan, str(start)]
        environment = work_environment(nodes, temp)
        try:
            if self.ray is not None:
                address, for_clients = ray_nodes.gather(nodes, start, temp, self.ray, signals.check)
                command += [address]
                environment |= for_clients
            work = spawn(command, environment)
            while work.poll() is None:
                time.sleep(POLL_SECONDS)
                signals.check()
                if signals.warned is not None and not (start / "stop").exists():
                    until = self.until(nodes, signals.warned)
                    log.info("Slurm warns: the work is asked to stop within %.0f s", until - time.time())
                    write(start / "stop", json.dumps({"until": until}))
        finally:
            if self.ray is not None:
                ray_nodes.dismiss(nodes, start, lambda: signals.ended)
        if work.returncode not in (0, STOPPED, IDLE):
            raise JobFailed(outcome(start) or f"the work ended with code {work.returncode}")
        return work.returncode

    def until(self, nodes: Nodes, warned: float) -> float:
        """When the job ends, as a Unix time, after a warning: a preemption may leave less than a time limit does."""
        asked_for, known = warned + self.warning_seconds, end_of(nodes.job)
        return asked_for if known is None else min(asked_for, known)

    def without(self, nodes: Nodes, bad: dict[str, str], signals: Signals) -> None:
        """Back into the queue without the nodes whose network failed."""
        told = "; ".join(f"{host}: {why}" for host, why in bad.items())
        message = f"the network check failed on {told}"
        count = self.idle_start(nodes, idle=True)
        if count > self.idle_restarts:
            raise JobFailed(f"{message}; {count} starts in a row kept nothing new, so the job is not started again")
        if not self.requeue:
            raise JobFailed(f"{message}. Exclude a bad node with launcher.exclude={','.join(bad)}")
        log.warning("%s; the job goes back into the queue without %s", message, ", ".join(bad))
        if said := between_nodes.requeue_without(nodes.job, bad):
            raise JobFailed(f"{message}; Slurm does not start the job elsewhere: {said}")
        signals.await_end()

    def idle_start(self, nodes: Nodes, *, idle: bool) -> int:
        """How many starts in a row have kept nothing, this one included."""
        counter = Path(self.folder) / f"idle-{nodes.job}"
        count = int(counter.read_text()) + 1 if idle and counter.exists() else int(idle)
        write(counter, str(count))
        return count

    def again(self, nodes: Nodes, start: Path, signals: Signals, *, idle: bool) -> None:
        """Back into the queue, unless that is not allowed or does not help."""
        said = outcome(start)
        count = self.idle_start(nodes, idle=idle)
        if count > self.idle_restarts:
            raise JobFailed(f"{said}; {count} starts in a row kept nothing new, so the job is not started again")
        if not self.requeue:
            raise JobFailed(f"{said}; the same command goes on from there (launcher.requeue is off)")
        log.info("%s; the job goes back into the queue", said)
        done = subprocess.run(["scontrol", "requeue", nodes.job], capture_output=True, text=True)
        if done.returncode:
            raise JobFailed(f"{said}; Slurm does not requeue the job: {done.stderr.strip()}")
        signals.await_end()


class Signals:
    """What Slurm has told this process. To be made in its main thread."""

    def __init__(self) -> None:
        self.warned: float | None = None
        self.ended = False
        signal.signal(signal.SIGUSR2, self._warn)
        signal.signal(signal.SIGTERM, self._end)

    def _warn(self, number: int, frame: FrameType | None) -> None:
        self.warned = self.warned or time.time()

    def _end(self, number: int, frame: FrameType | None) -> None:
        self.ended = True

    def check(self) -> None:
        """Raises SystemExit when Slurm has asked for the end."""
        if self.ended:
            log.warning("Slurm ends the job")
            raise SystemExit(128 + signal.SIGTERM)

    def await_end(self, seconds: float = 120.0) -> NoReturn:
        """After a requeue: Slurm ends this process, which would otherwise tell submitit that the job is over."""
        end = time.monotonic() + seconds
        while not self.ended and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        raise SystemExit(STOPPED)


def work_environment(nodes: Nodes, temp: Path) -> dict[str, str]:
    """The job's own, without what would point the work at another Ray."""
    kept = {name: value for name, value in inherited().items() if not name.startswith("RAY_")}
    return kept | {processes.MARK: nodes.mark, "TMPDIR": str(temp), "PYTHONPATH": python_path(os.environ)}


def end_of(job: str, seconds: float = 10.0) -> float | None:
    """When Slurm will end the job, as a Unix time; None: it does not say so within these seconds.

    A preemption sets it to the end of its grace time before it warns (src/interfaces/preempt.c of Slurm).
    """
    environment = os.environ | {"SLURM_TIME_FORMAT": "%s"}
    command = ["scontrol", "-o", "show", "job", job]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = told.partition(" EndTime=")[2].split(" ", 1)[0].strip()
    return float(said) if said.isdecimal() else None


def outcome(start: Path) -> str:
    """What the work said last."""
    try:
        return str(json.loads((start / "outcome.json").read_text())["message"])
    except (OSError, ValueError, KeyError):
        return ""
