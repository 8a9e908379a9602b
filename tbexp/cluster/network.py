"""Whether the nodes of a job can compute together, before anything that takes minutes is started on them.

All ranks take part in one all-reduce (NCCL on CUDA, gloo on the CPU). When it fails, pairs of nodes try it, each with
each, and the nodes that have to go so that no failed pair is left are named. Decided here: rank 0 leads by files in the
start's folder; ranks that say nothing are bad themselves; of two that only fail each other the later one is blamed; and
which network interface is meant: the one that leads to the first node, or the site's choice.
"""

from __future__ import annotations

import array
import fcntl
import json
import logging
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbexp.cluster.nodes import JobFailed, Nodes, address_of, inherited, spawn, write
from tbexp.cluster.ports import free_range
from tbexp.training import processes
from tbexp.training.environment import python_path

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
START_SECONDS = 60.0  # to start a process that imports torch, on a node whose file system is slow
POLL_SECONDS = 0.1

log = logging.getLogger("tbexp.cluster")
Check = Callable[[], None]  # raises when Slurm has asked for the end


@dataclass(frozen=True, slots=True)
class Network:
    """device: cpu or cuda. seconds: of one all-reduce. interface: None, the one that leads to the first node."""

    device: str
    seconds: float
    interface: str | None = None


def unbegun(nodes: Nodes, start: Path, seconds: float, check: Check) -> dict[str, str]:
    """On rank 0: waits for the other ranks' tasks; those that have not begun within the seconds, all others go on then
    without a round.
    """
    end = time.monotonic() + seconds
    while late := [rank for rank in range(1, len(nodes.hosts)) if not (start / f"begun-{rank}").exists()]:
        check()
        if time.monotonic() > end:
            finish(start, 0)
            return {nodes.hosts[rank]: f"its task has not begun within {seconds:g} s" for rank in late}
        time.sleep(POLL_SECONDS)
    return {}


def lead(nodes: Nodes, start: Path, network: Network, check: Check) -> dict[str, str]:
    """On rank 0: the nodes that failed, with what is known of each; none: all is well. JobFailed: something failed, and
    no node can be blamed for it.
    """
    begun = time.monotonic()
    ranks = list(range(len(nodes.hosts)))
    told = round_of(0, [ranks], ranks, nodes, start, network, check)
    if all(told.get(rank) == "" for rank in ranks):
        finish(start, 1)
        took = time.monotonic() - begun
        log.info("network: an all-reduce over %d nodes took %.1f s with its start", len(ranks), took)
        return {}
    log.warning("network: the all-reduce failed, pairs of nodes are tried: %s", told)
    bad = {rank: "it said nothing" for rank in ranks if rank not in told}
    alive = [rank for rank in ranks if rank not in bad]
    links: dict[tuple[int, int], str] = {}
    rounds = pairings(alive) if len(ranks) > 2 else []
    if not rounds:  # there is one pair only, which has been tried
        links[0, 1] = next((why for why in told.values() if why), "")
    for number, pairs in enumerate(rounds, start=1):
        found = round_of(number, pairs, alive, nodes, start, network, check)
        for one, other in pairs:
            words = [found.get(rank, "it said nothing") for rank in (one, other)]
            links[one, other] = next((why for why in words if why), "")
    finish(start, len(rounds) + 1)
    for rank in blamed(links):
        peers = {
            other if one == rank else one: why for (one, other), why in links.items() if rank in (one, other) and why
        }
        why = next(iter(peers.values()))
        bad[rank] = f"it fails with {', '.join(nodes.hosts[peer] for peer in sorted(peers))} ({why})"
    if not bad:
        said = "; ".join(f"{nodes.hosts[rank]}: {why}" for rank, why in told.items() if why)
        raise JobFailed(f"an all-reduce over {len(ranks)} nodes failed, though each pair of them succeeds: {said}")
    return {nodes.hosts[rank]: why for rank, why in sorted(bad.items())}


def follow(nodes: Nodes, start: Path, network: Network, check: Check, late: float = 0.0) -> None:
    """On the other ranks: takes part in the rounds until rank 0 says that there are no more.

    late: seconds that rank 0 waits for all tasks to begin (`unbegun`), before the first round.
    """
    write(start / f"begun-{nodes.rank}", "")
    number = 0
    while (groups := wait_for(start / f"network-{number}.json", network, check, 0.0 if number else late)) is not None:
        if not (told := groups.get("groups")):
            return
        take_part(number, told, nodes, start, network, check)
        number += 1


def pairings(ranks: list[int]) -> list[list[tuple[int, int]]]:
    """Rounds in which each meets each other once, nobody twice in a round (the circle method of tournaments)."""
    places: list[int | None] = [*ranks, *([None] if len(ranks) % 2 else [])]
    rounds = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = zip(places[:half], reversed(places[half:]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return rounds


def blamed(links: Mapping[tuple[int, int], str]) -> list[int]:
    """Ranks to leave out so that no failed link remains: always the one with most of them, of equals the last.

    links: what went wrong between two ranks, "": nothing.
    """
    failed = {pair for pair, why in links.items() if why}
    out = []
    while failed:
        counts = {rank: sum(rank in pair for pair in failed) for rank in {rank for pair in failed for rank in pair}}
        worst = max(counts, key=lambda rank: (counts[rank], rank))
        out.append(worst)
        failed = {pair for pair in failed if worst not in pair}
    return sorted(out)


def round_of(
    number: int,
    groups: Iterable[Iterable[int]],
    ranks: list[int],
    nodes: Nodes,
    start: Path,
    network: Network,
    check: Check,
) -> dict[int, str]:
    """One round, on rank 0: what each rank that spoke said of it, "" for success or for having had no part."""
    orders = [list(group) for group in groups]
    write(start / f"network-{number}.json", json.dumps({"groups": orders}))
    take_part(number, orders, nodes, start, network, check)
    end = time.monotonic() + network.seconds + START_SECONDS
    files = {rank: start / f"network-{number}-{rank}.json" for rank in ranks}
    while not all(file.exists() for file in files.values()) and time.monotonic() < end:
        check()
        time.sleep(POLL_SECONDS)
    return {rank: json.loads(file.read_text())["said"] for rank, file in files.items() if file.exists()}


def finish(start: Path, number: int) -> None:
    write(start / f"network-{number}.json", json.dumps({"groups": []}))


def take_part(number: int, groups: list[list[int]], nodes: Nodes, start: Path, network: Network, check: Check) -> None:
    """This rank's own part in a round, and its report."""
    mine = next((group for group in groups if nodes.rank in group), None)
    said = "" if mine is None else all_reduce(mine, number, nodes, start, network, check)
    write(start / f"network-{number}-{nodes.rank}.json", json.dumps({"said": said}))


def all_reduce(group: list[int], number: int, nodes: Nodes, start: Path, network: Network, check: Check) -> str:
    """Runs this rank's process of an all-reduce over a group; "" when it succeeded, else why it did not."""
    master, place = nodes.hosts[group[0]], start / f"network-{number}-at-{group[0]}.json"
    log_file = start / f"network-{number}-{nodes.rank}.log"
    me = address_of(nodes.host)
    if nodes.rank == group[0]:
        write(place, json.dumps({"address": me, "port": free_range(nodes, me)}))
    meeting = wait_for(place, network, check)
    if meeting is None:
        return f"{master} opened no port"
    address, port = str(meeting["address"]), str(meeting["port"])
    command = [sys.executable, "-m", "tbexp.cluster.all_reduce", network.device, str(group.index(nodes.rank))]
    command += [str(len(group)), address, port, str(network.seconds)]
    environment = inherited() | {processes.MARK: nodes.mark, "PYTHONPATH": python_path(os.environ)}
    environment |= {"OMP_NUM_THREADS": "1"} | interface_variables(network, address)
    with log_file.open("wb") as out:
        child = spawn(command, environment, output=out)
        end = time.monotonic() + network.seconds + START_SECONDS
        while child.poll() is None and time.monotonic() < end:
            check()
            time.sleep(POLL_SECONDS)
        if child.poll() is None:
            child.kill()
            child.wait()
            return f"no answer within {network.seconds + START_SECONDS:.0f} s"
    return "" if child.returncode == 0 else last_line(log_file) or f"it ended with code {child.returncode}"


def last_line(file: Path) -> str:
    """The error at the end of a process's output, without where it came from."""
    lines = [line.strip() for line in file.read_text(errors="replace").splitlines()]
    errors = [line for line in lines if "Error" in line.partition(":")[0]]
    return (errors or [line for line in lines if line] or [""])[-1][:200]


def wait_for(file: Path, network: Network, check: Check, more: float = 0.0) -> dict[str, Any] | None:
    """What rank 0 or a group's first wrote there; None: nothing within the time that a round may take, and more."""
    end = time.monotonic() + more + 2 * (network.seconds + START_SECONDS)
    while time.monotonic() < end:
        check()
        if file.exists():
            found: dict[str, Any] = json.loads(file.read_text())
            return found
        time.sleep(POLL_SECONDS)
    return None


def interface_variables(network: Network, peer: str) -> dict[str, str]:
    """What gloo and NCCL are told, unless the site has told them already (`launcher.setup`)."""
    chosen = network.interface or interface_to(peer)
    return {name: chosen for name in INTERFACES if chosen and (network.interface or name not in os.environ)}


def interface_to(peer: str) -> str | None:
    """Name of the interface through which packets for an address leave; None: there is none, or no such address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect((peer, 9))  # sends nothing
            ours = way.getsockname()[0]
        except OSError:
            return None
        return next((name for name, address in addresses(way) if address == ours), None)


def addresses(opened: socket.socket) -> list[tuple[str, str]]:
    """Interfaces that are up, with their IPv4 addresses (SIOCGIFCONF, netdevice(7))."""
    siocgifconf, entry, most = 0x8912, 40, 128
    room = array.array("B", bytes(entry * most))
    asked = struct.pack("iL", len(room), room.buffer_info()[0])
    used = struct.unpack("iL", fcntl.ioctl(opened.fileno(), siocgifconf, asked))[0]
    data = room.tobytes()[:used]
    return [
        (data[at : at + 16].split(b"\0", 1)[0].decode(), socket.inet_ntoa(data[at + 20 : at + 24]))
        for at in range(0, used, entry)
    ]


EXCLUDE = """scontrol requeue "$1" || exit 2
for try in $(seq 100); do scontrol update jobid="$1" ExcNodeList="$2" && exit 0; sleep 0.2; done
exit 3"""


def requeue_without(job: str, hosts: Iterable[str]) -> str:
    """Puts the job back into the queue, away from these nodes; "" or what Slurm said against it.

    Slurm changes the nodes of a job only while it waits, so this goes on while the job is being ended.
    """
    told = subprocess.run(["scontrol", "-o", "show", "job", job], capture_output=True, text=True).stdout
    before = told.partition(" ExcNodeList=")[2].split(" ", 1)[0].strip()
    wanted = ",".join([*([before] if before not in ("", "(null)") else []), *hosts])
    done = subprocess.run(
        ["bash", "-c", f"trap '' TERM; {EXCLUDE}", "exclude", job, wanted],
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no reason"
