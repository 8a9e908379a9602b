"""From a job to sbatch, by submitit.

Decided here: the options of a job, the same for a dry run's text and for the submission; that secrets of the
submitter's environment stay here, since Slurm keeps a job's environment in files of its own; that a job whose
predecessor failed is removed instead of waiting for ever.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tbexp
from tbexp.cluster.job import NodeJob
from tbexp.cluster.state import ELSEWHERE, unanswered
from tbexp.config import sbatch
from tbexp.config.schema import Launcher
from tbexp.config.secrets import looks_secret, secret_name
from tbexp.errors import Problem, UserError

MAX_WARNINGS = 10_000  # submitit counts warnings and would stop requeuing; how often is decided by `job`
SHORTEST = 6  # characters of a secret that is looked for inside other values too


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One submission. work: one callable, or those of an array. after: names of jobs that have to end well before.

    folder: shared by the nodes; gets scripts, pickles and logs. gpus: of each node, 0: none are asked for. gpu_nodes:
    whether it belongs on nodes that have GPUs, which a site need not count.
    """

    name: str
    title: str  # what squeue shows
    work: tuple[NodeJob, ...]
    folder: Path
    nodes: int = 1
    gpus: int = 0
    gpu_nodes: bool = True
    small: bool = False  # one CPU for a short time
    after: tuple[str, ...] = ()


def inside_job(environment: Mapping[str, str]) -> str | None:
    """Id of the Slurm job that this process is in."""
    return environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID")


def resources(spec: JobSpec, launcher: Launcher) -> tuple[int | None, float | None]:
    """CPUs and GB of memory that are asked for on each node; None: what the site gives."""
    if spec.small:
        return 1, launcher.cpu_memory_gb
    cpus, memory = launcher.cpus_without_gpu, launcher.memory_gb_without_gpu
    if spec.gpu_nodes:  # where GPUs are not counted, nodes are given whole
        cpus = (launcher.cpus_per_gpu or 0) * spec.gpus or None
        memory = (launcher.memory_gb_per_gpu or 0.0) * spec.gpus or None
    return launcher.cpus_per_node or cpus, launcher.memory_gb or memory


def options(spec: JobSpec, launcher: Launcher, after: Sequence[str]) -> dict[str, Any]:
    """The job in submitit's names. after: ids of the jobs that it waits for."""
    more: dict[str, Any] = {"kill-on-invalid-dep": "yes"} if after else {}
    more |= {"requeue": True} if launcher.requeue else {"no-requeue": True}
    more |= sbatch.given(launcher)
    cpus, memory = resources(spec, launcher)
    srun = ["--kill-on-bad-exit=1", "--export=ALL"]
    srun += [] if cpus is None else [f"--cpus-per-task={cpus}"]  # since Slurm 22.05 it does not have the job's
    if launcher.container is not None:
        srun += [f"--container-image={launcher.container}"]
        if launcher.container_mounts:
            srun += [f"--container-mounts={','.join(launcher.container_mounts)}"]
    chosen = {
        "job_name": spec.title,
        "partition": (None if spec.gpu_nodes else launcher.cpu_partition) or launcher.partition,
        "account": launcher.account,
        "qos": launcher.qos,
        "exclude": launcher.exclude,
        "time": launcher.cpu_minutes if spec.small else launcher.minutes,
        "nodes": spec.nodes,
        "ntasks_per_node": 1,
        "gpus_per_node": spec.gpus or None,
        "cpus_per_task": cpus,
        "mem": None if memory is None else f"{round(memory * 1024)}M",
        "signal_delay_s": min(
            launcher.signal_seconds, 30 * launcher.cpu_minutes if spec.small else 60 * launcher.minutes
        ),
        "wckey": "",
        "stderr_to_stdout": True,
        "setup": setup_lines(launcher),
        "srun_args": srun,
        "dependency": f"afterok:{':'.join(after)}" if after else None,
        "additional_parameters": more,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def setup_lines(launcher: Launcher) -> list[str]:
    root = shlex.quote(str(Path(tbexp.__file__).resolve().parent.parent))
    return [
        "ulimit -c 0 # a core dump would hold keys",
        *launcher.setup,
        f"export PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}}",
    ]


def batch_text(spec: JobSpec, launcher: Launcher) -> str:
    """What sbatch would be given. Slurm need not be here; the jobs it waits for are named, since they have no ids."""
    from submitit.slurm.slurm import _make_sbatch_string

    after = [f"<{name}>" for name in spec.after]
    count = {"map_count": len(spec.work)} if len(spec.work) > 1 else {}
    command = f"{python(launcher)} -u -m submitit.core._submit {shlex.quote(str(spec.folder))}"
    return str(_make_sbatch_string(command=command, folder=spec.folder, **options(spec, launcher, after), **count))


def python(launcher: Launcher) -> str:
    return shlex.quote(launcher.python or sys.executable)


def submit(spec: JobSpec, launcher: Launcher, after: Sequence[str], hidden: Mapping[str, str] | None = None) -> str:
    """Submits one job or array; its id. hidden: secrets by the name of their environment variable.

    Raises UserError with what sbatch said.
    """
    import submitit

    if shutil.which("sbatch") is None:
        raise UserError(Problem("there is no sbatch on this machine", "launcher", "submit from a login node"))
    spec.folder.mkdir(parents=True, exist_ok=True)
    with without_secrets(hidden, sbatch.overriding(launcher, os.environ)):
        executor = submitit.SlurmExecutor(spec.folder, max_num_timeout=MAX_WARNINGS, python=python(launcher))
        executor.update_parameters(**options(spec, launcher, after))
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what sbatch says, and raises it too
                if len(spec.work) == 1:
                    jobs = [executor.submit(spec.work[0])]
                else:
                    with executor.batch():
                        jobs = [executor.submit(work) for work in spec.work]
        except (subprocess.CalledProcessError, submitit.core.utils.FailedJobError) as error:
            said = " ".join(str(getattr(error, "output", "") or error).split())
            fix = "change what it names: a key of launcher, or launcher.sbatch, which is passed on as it is"
            fix = ELSEWHERE if unanswered() else fix
            raise UserError(Problem(f"sbatch refused the job {spec.name}: {said[:500]}", "launcher", fix)) from error
    return str(jobs[0].job_id).split("_")[0]


@contextlib.contextmanager
def without_secrets(hidden: Mapping[str, str] | None = None, more: Sequence[str] = ()) -> Iterator[None]:
    """The environment without these secrets, under whatever name they stand there too, and without what looks like one:
    sbatch passes all of it on, through Slurm's own files. more: variables that are left out besides.
    """
    kept, known = dict(os.environ), hidden or {}
    secrets = [secret for secret in known.values() if secret]
    try:
        for name, value in kept.items():
            repeated = any(value == secret or (len(secret) >= SHORTEST and secret in value) for secret in secrets)
            if name in known or name in more or repeated or secret_name(name) or looks_secret(value):
                del os.environ[name]
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)
