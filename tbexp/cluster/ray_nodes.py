"""One Ray out of the nodes of a job.

Decided here: the head is on rank 0, the others join it; its address and token are in a file of the start's folder that
only its owner can read; every rank has the same token; a site's own RAY_ variables count for nothing. Rank 0 counts
nodes and devices before the work begins, and names those that have not joined within the deadline. In the end workers
leave first: a head would wait for them.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbexp.cluster.nodes import JobFailed, Nodes, address_of, end_descendants, inherited, spawn, write
from tbexp.cluster.ports import NAMED, PORTS, free_range
from tbexp.training import processes
from tbexp.training.environment import TAKEN_AWAY, python_path

HEAD = "head.json"
LEAVE_SECONDS = 20.0
LOST_SECONDS = 20.0  # a head that answers no connection for so long is gone

log = logging.getLogger("tbexp.cluster")
Check = Callable[[], None]  # raises when Slurm has asked for the end


@dataclass(frozen=True, slots=True)
class Ray:
    """gpus and cpus: what each node says it has; null: what Ray finds. join_seconds: until all nodes must be there."""

    gpus: int | None
    cpus: int | None
    join_seconds: float


def gather(nodes: Nodes, start: Path, temp: Path, ray: Ray, check: Check) -> tuple[str, dict[str, str]]:
    """On rank 0: starts the head and waits for the others. Ray's address, and what its clients' environment needs.

    Raises JobFailed with the names of the nodes that are missing, and why if they have told.
    """
    end = time.monotonic() + ray.join_seconds
    for left in start.parent.glob(f"*/{HEAD}"):  # by a start that was killed
        left.unlink(missing_ok=True)
    token = secrets.token_hex(32)
    me = address_of(nodes.host)
    first = free_range(nodes, me)
    environment = environment_of(nodes, temp, token)
    options = ["--head", f"--port={first}", f"--temp-dir={temp}", "--include-dashboard=false"]
    options += [f"--ray-client-server-port={first + 1}"]
    head = spawn(ray_start(me, first, ray, options), environment)
    wait_for_port(me, first, head, end, check)
    write(start / HEAD, json.dumps({"address": me, "port": first, "token": token}), private=True)
    address = f"{me}:{first}"
    command = [sys.executable, "-m", "tbexp.cluster.roll_call", address, str(start / "present.json")]
    caller = spawn(command, environment)
    try:
        while True:
            check()
            present = read(start / "present.json")
            if len(present.get("nodes", [])) == len(nodes.hosts) and enough(present, ray, len(nodes.hosts)):
                break
            if head.poll() is not None:
                raise JobFailed(f"Ray's head on {nodes.host} ended with code {head.returncode}")
            failed = [rank for rank in range(1, len(nodes.hosts)) if read(start / f"rank-{rank}.json").get("failed")]
            if failed or time.monotonic() > end:
                raise JobFailed(missing(nodes, start, present, ray, ray.join_seconds + time.monotonic() - end))
            time.sleep(0.3)
    finally:
        caller.kill()
        caller.wait()
    log.info("Ray on %s: %d nodes, %g GPUs", address, len(present["nodes"]), present["gpus"])
    auth = {name: value for name, value in environment.items() if name.startswith("RAY_AUTH_")}
    return address, auth


def enough(present: dict[str, Any], ray: Ray, nodes: int) -> bool:
    return ray.gpus is None or bool(present.get("gpus", 0) >= ray.gpus * nodes)


def missing(nodes: Nodes, start: Path, present: dict[str, Any], ray: Ray, waited: float) -> str:
    """The sentence for a training whose nodes are not all there. Rank 0 writes it, so it is none of the missing."""
    there = set(present.get("nodes", []))
    absent = [rank for rank, host in enumerate(nodes.hosts) if rank and address_of(host) not in there]
    told = []
    for rank in absent:
        said = str(read(start / f"rank-{rank}.json").get("phase") or "its task has not begun")
        told.append(f"{nodes.hosts[rank]} (rank {rank}): {said}")
    have = f"{len(nodes.hosts) - len(absent)} of {len(nodes.hosts)} nodes joined Ray within {waited:.0f} s"
    if not absent and not there:
        return f"Ray's head on {nodes.host} has not told within {waited:.0f} s who is in it"
    if not absent:
        return f"{have}, with {present.get('gpus', 0)} GPUs instead of {(ray.gpus or 0) * len(nodes.hosts)}"
    return f"{have}; missing: {'; '.join(told)}. Exclude a bad node with launcher.exclude=NODE"


def dismiss(nodes: Nodes, start: Path, ended: Callable[[], bool]) -> None:
    """On rank 0: the others leave; the head ends with this rank's other processes (`scratch`).

    ended: Slurm has asked for the end. It has asked the others too, which then say nothing more, and kills soon.
    """
    write(start / "done", "")
    (start / HEAD).unlink(missing_ok=True)  # it holds the token
    end = time.monotonic() + LEAVE_SECONDS
    joined = [r for r in range(1, len(nodes.hosts)) if read(start / f"rank-{r}.json").get("joined")]
    while time.monotonic() < end and not ended() and not all((start / f"left-{rank}").exists() for rank in joined):
        time.sleep(0.2)


def serve(nodes: Nodes, start: Path, temp: Path, ray: Ray, check: Check) -> None:
    """On the other ranks: join, and stay until rank 0 is done. Raises JobFailed when that is not possible."""
    end = time.monotonic() + ray.join_seconds

    def tell(phase: str, **more: bool) -> None:
        write(start / f"rank-{nodes.rank}.json", json.dumps({"phase": phase, **more}))

    tell("it waits for the head")
    while not (head := read(start / HEAD)):
        check()
        if (start / "done").exists() or time.monotonic() > end + LEAVE_SECONDS:
            return
        time.sleep(0.3)
    host, port = str(head["address"]), int(head["port"])
    tell(f"it cannot reach Ray's head at {host}:{port}")
    while not answers(host, port):
        check()
        if (start / "done").exists() or time.monotonic() > end + LEAVE_SECONDS:
            return
        time.sleep(0.3)
    tell("Ray is starting on it")
    me = address_of(nodes.host)
    environment = environment_of(nodes, temp, str(head["token"]))
    command = ray_start(me, free_range(nodes, me), ray, [f"--address={host}:{port}"])
    worker, joined, seen = spawn(command, environment), False, time.monotonic()
    while not (start / "done").exists():
        check()
        if not joined and me in read(start / "present.json").get("nodes", []):
            joined = True
            tell("it has joined", joined=True)
        if worker.poll() is not None:
            if joined or time.monotonic() > end:
                tell(f"Ray ended with code {worker.returncode} on it", failed=True)
                raise JobFailed(f"Ray ended with code {worker.returncode} on {nodes.host}")
            log.warning("Ray did not start on %s, once more", nodes.host)  # it gives itself 30 s, and nodes can be busy
            end_descendants()
            worker = spawn(command, environment)
        if answers(host, port):
            seen = time.monotonic()
        elif time.monotonic() - seen > LOST_SECONDS and not (start / "done").exists():
            raise JobFailed(f"{nodes.host} has lost Ray's head at {host}:{port}")
        time.sleep(0.5)
    leave(worker)
    end_descendants()
    write(start / f"left-{nodes.rank}", "")


def leave(worker: subprocess.Popen[bytes]) -> None:
    worker.terminate()
    try:
        worker.wait(10)
    except subprocess.TimeoutExpired:
        worker.kill()


def ray_start(me: str, first: int, ray: Ray, options: list[str]) -> list[str]:
    """The command line of `ray start` that stays in the foreground."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, "--block", "--disable-usage-stats"]
    command += [f"--node-ip-address={me}"]
    command += [f"--{name}={first + 2 + i}" for i, name in enumerate(NAMED)]
    command += [f"--min-worker-port={first + 10}", f"--max-worker-port={first + PORTS - 1}"]
    if ray.gpus is not None:
        command += [f"--num-gpus={ray.gpus}"]
    if ray.cpus is not None:
        command += [f"--num-cpus={ray.cpus}", f"--object-store-memory={256 * 2**20}"]
    return command


def environment_of(nodes: Nodes, temp: Path, token: str) -> dict[str, str]:
    """Of Ray's processes on this node: nothing that a site has set for Ray or verl, no address, the job's token."""
    file = temp / processes.TOKEN
    write(file, token, private=True)
    kept = {name: value for name, value in inherited().items() if not name.startswith(TAKEN_AWAY)}
    return kept | {
        processes.MARK: nodes.mark,
        "TMPDIR": str(temp),
        "PYTHONPATH": python_path(os.environ),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(file),
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), 2):
            return True
    except OSError:
        return False


def wait_for_port(host: str, port: int, head: subprocess.Popen[bytes], end: float, check: Check) -> None:
    while not answers(host, port):
        check()
        if head.poll() is not None:
            raise JobFailed(f"Ray's head did not start on {host}: it ended with code {head.returncode}")
        if time.monotonic() > end:
            raise JobFailed(f"Ray's head on {host} does not answer at port {port}")
        time.sleep(0.2)


def read(file: Path) -> dict[str, Any]:
    """A small JSON file that may not be there yet."""
    try:
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    except (OSError, ValueError):
        return {}
