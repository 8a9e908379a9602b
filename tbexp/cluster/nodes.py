"""One start of a job, as each of its ranks sees it: who is where, what is shared, which processes belong to it."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tbexp.training import processes

log = logging.getLogger("tbexp.cluster")


class JobFailed(RuntimeError):
    """The job fails with this message, which `tbexp stages=[status]` shows."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """hosts: by rank, one rank a node. job: as `scontrol requeue` takes it. restarts: how often it was requeued."""

    job: str
    number: int
    restarts: int
    rank: int
    hosts: tuple[str, ...]

    @classmethod
    def here(cls, environment: Mapping[str, str]) -> Nodes:
        from submitit.slurm.slurm import _parse_node_list

        return cls(
            job=job_of(environment) or "",
            number=int(environment["SLURM_JOB_ID"]),
            restarts=int(environment.get("SLURM_RESTART_COUNT", "0")),
            rank=int(environment["SLURM_PROCID"]),
            hosts=tuple(_parse_node_list(environment["SLURM_JOB_NODELIST"])),
        )

    @property
    def host(self) -> str:
        return self.hosts[self.rank]

    @property
    def start(self) -> str:
        """Name of this start's folder, the same on all ranks."""
        return f"{self.job}-{self.restarts}"

    @property
    def mark(self) -> str:
        """What the processes of this start are found by."""
        return f"s{self.job}-{self.restarts}"


def job_of(environment: Mapping[str, str]) -> str | None:
    """The job that this process is in, by the name that squeue and `stages=[status]` show: 12, or 12_3 of an array."""
    if array := environment.get("SLURM_ARRAY_JOB_ID"):
        return f"{array}_{environment['SLURM_ARRAY_TASK_ID']}"
    return environment.get("SLURM_JOB_ID")


def address_of(host: str) -> str:
    """IP address of a node. Slurm knows nodes by names that need not be in the name service."""
    try:
        return socket.gethostbyname(host)
    except OSError:
        command = ["scontrol", "-o", "show", "node", host]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return socket.gethostbyname(told.partition(" NodeAddr=")[2].split()[0])


def inherited() -> dict[str, str]:
    """This job's environment, without AMD's names for the GPUs: Slurm sets them all, and verl refuses two at once."""
    taken = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
    drop = taken if "CUDA_VISIBLE_DEVICES" in os.environ else ()
    return {name: value for name, value in os.environ.items() if name not in drop}


def spawn(
    command: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    """A process that does not hear Slurm's warning, which is sent to every process of a job: the rank alone decides.

    output: of both streams; None: into the job's log.
    """

    def deaf() -> None:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)

    return subprocess.Popen(
        list(command),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        preexec_fn=deaf,
    )


@contextlib.contextmanager
def scratch(nodes: Nodes) -> Iterator[Path]:
    """A folder of this start on this node; gone in the end, with every process that was started inside.

    This process adopts orphans, so all of them are its descendants: Ray's agents outlive their raylet, and are known by
    nothing else once they have closed their files.
    """
    processes.end(nodes.mark)
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)
    with processes.held(processes.temp_folder(nodes.mark)) as temp:
        try:
            yield temp
        finally:
            (temp / processes.TOKEN).unlink(missing_ok=True)  # Slurm may not leave the time to end all processes
            if ended := end_descendants():
                log.info("%s: %d processes were ended", nodes.host, ended)


def end_descendants(patience: float = 20.0) -> int:
    """Kills all that this process has started, directly or not, and waits for it; how many there were."""
    ended: set[int] = set()
    end = time.monotonic() + patience
    while (alive := descendants(os.getpid())) and time.monotonic() < end:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended |= alive
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        time.sleep(0.05)
    return len(ended)


def descendants(pid: int) -> set[int]:
    """Children, their children and so on, zombies included."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    new = {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def write(file: Path, text: str, *, private: bool = False) -> None:
    """The file is there with all of the text, or not at all. private: nobody else may ever read it."""
    temporary = file.with_name(f".{file.name}.{socket.gethostname()}.{os.getpid()}")
    temporary.touch(mode=0o600 if private else 0o644)
    temporary.write_text(text)
    temporary.rename(file)
