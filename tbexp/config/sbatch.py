"""Which options of sbatch are tbexp's own, and the key that says each of them.

Decided here: what `launcher.sbatch` may not name, in any spelling that sbatch reads (dashes or underscores, the letter,
the beginning of a long name), since it would replace what the jobs, their order and their logs go by; and that the
variables by which a shell sets the same options count for nothing. From `man sbatch` of Slurm 22.05 to 24.11.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tbexp.config.schema import Launcher
from tbexp.errors import Problem

ONE_TASK = "leave it out: a node gets one task of tbexp's, whose processes share the node's CPUs"
GPUS = "launcher.gpus_per_node, or topology.gpus_per_node"
MEMORY = "launcher.memory_gb, or launcher.memory_gb_per_gpu, memory_gb_without_gpu and cpu_memory_gb"
CPUS = "launcher.cpus_per_node, or launcher.cpus_per_gpu and launcher.cpus_without_gpu"
LOGS = "leave it out: stages=[status] shows where each log is, below the run's folder"
WAITS = "leave it out: tbexp says which job waits for which (`stages`)"
AT_ONCE = "leave it out: a submission returns at once, and stages=[status] tells of its jobs"

MANAGED = {
    "array": "launcher.shards",
    "dependency": WAITS,
    "kill-on-invalid-dep": WAITS,
    "time": "launcher.minutes and launcher.cpu_minutes",
    "time-min": "launcher.minutes",
    "signal": "launcher.signal_seconds",
    "requeue": "launcher.requeue",
    "no-requeue": "launcher.requeue",
    "nodes": "topology.nodes for a training, launcher.shards for attempts",
    "ntasks": ONE_TASK,
    "ntasks-per-node": ONE_TASK,
    "tasks-per-node": ONE_TASK,
    "ntasks-per-core": ONE_TASK,
    "ntasks-per-socket": ONE_TASK,
    "ntasks-per-gpu": ONE_TASK,
    "gpus": GPUS,
    "gpus-per-node": GPUS,
    "gpus-per-task": GPUS,
    "gpus-per-socket": GPUS,
    "cpus-per-task": CPUS,
    "cpus-per-gpu": CPUS,
    "mem": MEMORY,
    "mem-per-cpu": MEMORY,
    "mem-per-gpu": MEMORY,
    "output": LOGS,
    "error": LOGS,
    "open-mode": LOGS,
    "input": "leave it out: a job reads nothing there",
    "export": "launcher.setup for variables, launcher.secrets_file for keys",
    "export-file": "launcher.setup for variables, launcher.secrets_file for keys",
    "job-name": "`name`: a job is called after it and its stage",
    "partition": "launcher.partition and launcher.cpu_partition",
    "account": "launcher.account",
    "qos": "launcher.qos",
    "exclude": "launcher.exclude",
    "clusters": "submit from a login node of that cluster: status and cancel ask the one of this machine",
    "wrap": "leave it out: tbexp says what a job runs",
    "wait": AT_ONCE,
    "parsable": AT_ONCE,
    "quiet": AT_ONCE,
    "test-only": "dry_run=true",
    "help": "tbexp --help",
    "usage": "tbexp --help",
    "version": "leave it out",
}
LETTERS = {"a": "array", "d": "dependency", "t": "time", "N": "nodes", "n": "ntasks", "G": "gpus", "c": "cpus-per-task"}
LETTERS |= {"o": "output", "e": "error", "i": "input", "J": "job-name", "p": "partition", "A": "account", "q": "qos"}
LETTERS |= {"x": "exclude", "M": "clusters", "W": "wait", "Q": "quiet", "h": "help", "V": "version"}
COUNTABLE = ("gres", "tres-per-node", "tres-per-task", "tres-per-job", "tres-per-socket")  # GPUs, among other things
VARIABLES = {"mem": "MEM_PER_NODE", "array": "ARRAY_INX", "time": "TIMELIMIT"}  # else the option in capitals
OF_THE_SITE = {"partition", "account", "qos"}  # null leaves these to the site, which may have set variables


def problems(launcher: Launcher) -> Iterator[Problem]:
    for given, value in launcher.sbatch.items():
        name, where = spelled_out(given), f"launcher.sbatch.{given}"
        counts_gpus = name in COUNTABLE and "gpu" in str(value).lower()
        if name in MANAGED:
            called = "" if name == given else f" (--{name})"
            yield Problem(f"is an option of sbatch that tbexp sets itself{called}", where, MANAGED[name])
        elif counts_gpus and launcher.gpus_per_node != 0:
            what = f"asks for GPUs ({value}), and so does tbexp"
            yield Problem(what, where, f"{GPUS}; launcher.gpus_per_node=0 leaves it to {where}")
        elif not isinstance(value, str | int | float | bool | None) or "\n" in str(value) or "\r" in str(value):
            yield Problem(f"{value!r} is no value of an option", where, "a text of one line, a number, true or null")


def spelled_out(name: str) -> str:
    """The option that sbatch would read: it takes a long option by its beginning too."""
    plain = name.strip().lstrip("-").replace("_", "-").partition("=")[0]
    if plain in LETTERS or plain in MANAGED:
        return LETTERS.get(plain, plain)
    return next((option for option in MANAGED if plain and option.startswith(plain)), plain)


def given(launcher: Launcher) -> dict[str, object]:
    """`launcher.sbatch` as sbatch takes it. null and false: without the option."""
    kept = {name: value for name, value in launcher.sbatch.items() if value is not None and value is not False}
    return {name.strip().lstrip("-").replace("_", "-"): value for name, value in kept.items()}


def overriding(launcher: Launcher, environment: Mapping[str, str]) -> list[str]:
    """Variables that sbatch would obey before the options that tbexp writes into the job."""
    ours = [name for name in MANAGED if name not in OF_THE_SITE or getattr(launcher, name) is not None]
    names = {f"SBATCH_{VARIABLES.get(name, name.replace('-', '_').upper())}" for name in ours}
    names |= set() if launcher.gpus_per_node == 0 else {"SBATCH_GRES"}
    return sorted(names & set(environment))
