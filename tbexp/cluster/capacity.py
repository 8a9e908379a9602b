"""Whether a partition has the nodes that a job asks for, as `sinfo` tells it.

Decided here: that a job which could never start is refused at submission, with numbers; sbatch would say less, or queue
it for ever. All nodes of a partition count, also those that are down. Where sinfo cannot be asked, sbatch judges alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tbexp.cluster.state import run
from tbexp.cluster.submission import JobSpec, options
from tbexp.config.schema import Launcher
from tbexp.errors import Problem

FORMAT = "%N|%P|%G|%c|%l"


@dataclass(frozen=True, slots=True)
class Node:
    """One node in one partition. minutes: longest job there, None: no limit."""

    name: str
    partition: str
    default: bool
    gpus: int
    cpus: int
    minutes: int | None


def nodes() -> list[Node]:
    """All nodes, once for each partition that they are in; none where sinfo cannot be asked."""
    return read(run(["sinfo", "-h", "-a", "-N", "-o", FORMAT]))


def read(told: str) -> list[Node]:
    found = []
    for line in told.splitlines():
        name, partition, gres, cpus, limit = [*(part.strip() for part in line.split("|")), "", "", "", "", ""][:5]
        if name and partition:
            count = int(cpus) if cpus.isdigit() else 0
            where = partition.rstrip("*")
            found.append(Node(name, where, partition.endswith("*"), gpus_in(gres), count, minutes_in(limit)))
    return found


def gpus_in(gres: str) -> int:
    """Such as `gpu:8`, `gpu:h100:4(S:0-1),gpu:a100:4`, `(null)`."""
    return sum(int(count) for count in re.findall(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)", gres))


def minutes_in(limit: str) -> int | None:
    """Slurm's 1-00:00:00, 30:00, infinite."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + minutes + (seconds > 0)


def misfits(
    spec: JobSpec, launcher: Launcher, known: Sequence[Node], keys: Mapping[str, str], environment: Mapping[str, str]
) -> list[Problem]:
    """What the job asks for and no partition that it may go to has. keys: the config's key for `nodes` and `gpus`.

    Of several partitions (`a,b`) one has to have it all.
    """
    asked = options(spec, launcher, ())
    named = asked.get("partition") or environment.get("SBATCH_PARTITION")
    if not known or (named is None and "reservation" in launcher.sbatch):  # which may bring a partition of its own
        return []
    names = named.split(",") if named else sorted({node.partition for node in known if node.default})
    there = {node.partition for node in known}
    key = "launcher.cpu_partition" if not spec.gpu_nodes and launcher.cpu_partition else "launcher.partition"
    if unknown := [name for name in names if name not in there]:
        what = f"there is no partition {' and no '.join(unknown)}"
        return [Problem(what, key, f"sinfo knows {', '.join(sorted(there))}")]
    each = [
        list(of_partition(spec, asked, launcher, name, [node for node in known if node.partition == name], keys))
        for name in names
    ]
    return min(each, key=len, default=[])


def of_partition(
    spec: JobSpec,
    asked: Mapping[str, object],
    launcher: Launcher,
    name: str,
    known: Sequence[Node],
    keys: Mapping[str, str],
) -> Iterator[Problem]:
    other = "or name another launcher.partition"
    fitting, gpus = [node for node in known if node.gpus >= spec.gpus], max(node.gpus for node in known)
    if spec.gpus and not gpus:
        what = f"{spec.name} asks for {spec.gpus} GPUs a node, and no node of the partition {name} counts any"
        fix = f"launcher.gpus_per_node=0 if its GPUs are not counted, {other}"
        yield Problem(what, keys["gpus"], fix)
    elif spec.gpus and not fitting:
        what = (
            f"{spec.name} asks for {spec.gpus} GPUs a node, and the nodes of the partition {name} have {gpus} at most"
        )
        yield Problem(what, keys["gpus"], f"{gpus} or less, {other}")
    if spec.nodes > len(known):
        what = f"{spec.name} asks for {spec.nodes} nodes, and the partition {name} has {len(known)}"
        yield Problem(what, keys["nodes"], f"{len(known)} or less, {other}")
    elif fitting and spec.nodes > len(fitting):
        what = f"{spec.name} asks for {spec.nodes} nodes with {spec.gpus} GPUs, and the partition {name} has "
        yield Problem(f"{what}{len(fitting)} such of {len(known)}", keys["nodes"], f"{len(fitting)} or less, {other}")
    cpus, most = asked.get("cpus_per_task"), max(node.cpus for node in known)
    if isinstance(cpus, int) and most and cpus > most:
        what = f"{spec.name} asks for {cpus} CPUs a node, and the nodes of the partition {name} have {most} at most"
        counted = "launcher.cpus_per_gpu" if spec.gpus else "launcher.cpus_without_gpu"
        where = "launcher.cpus_per_node" if launcher.cpus_per_node else counted
        yield Problem(
            what, where, f"{most} or less{' for all GPUs' if where == counted and spec.gpus else ''}, {other}"
        )
    limits = [node.minutes for node in known if node.minutes is not None]
    wanted = launcher.cpu_minutes if spec.small else launcher.minutes
    if limits and launcher.qos is None and wanted > min(limits):  # a QOS may lift the limit
        what = f"{spec.name} asks for {wanted} minutes, and the partition {name} gives {min(limits)} at most"
        yield Problem(
            what, "launcher.cpu_minutes" if spec.small else "launcher.minutes", f"{min(limits)} or less, {other}"
        )
