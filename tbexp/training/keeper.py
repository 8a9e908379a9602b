"""The process that the trainings of one tbexp process share: `python -m tbexp.training.keeper TEMP CONTROL RAY`.

It imports the libraries once, starts Ray once, and forks what trainings need of itself: Ray's workers
(`warm_workers`), and for each training its driver, which joins that Ray. Decided here: what is left of a training when
its driver has ended is killed before the next one begins, all but Ray's own processes, so that nothing is inherited;
and none of it outlives the keeper. Whether a keeper is used again is `keeping`'s.

No Ray may be in this process, since forks would have its threads' locks and its settings; so Ray is started by a fork
that ends when Ray is there: as `ray.init` starts it, without the client server that `ray start` adds.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from tbexp.config.whole import write_whole
from tbexp.training import driver, processes
from tbexp.training.warm_workers import (
    END,
    READY,
    become,
    become_worker,
    import_libraries,
    read_ready,
    take_order,
    write_shim,
)

SWEEP_SECONDS = 30.0
# Raylet's children that are not workers, by their command line or the title that they give themselves.
AGENTS = ("/dashboard/agent.py", "/runtime_env/agent/main.py", "ray::DashboardAgent", "ray::RuntimeEnvAgent")


@dataclass(slots=True)
class State:
    """starter: the fork that starts Ray, while it lives. driver: of the training under way."""

    temp: Path
    mark: str
    control: socket.socket
    listener: socket.socket
    watcher: int
    woken: tuple[int, int] = field(default_factory=os.pipe)
    starter: int | None = None
    driver: int | None = None


def main(arguments: list[str]) -> NoReturn:
    temp, control, ray = Path(arguments[0]), socket.socket(fileno=int(arguments[1])), json.loads(arguments[2])
    watcher = driver.leave_nothing_behind(temp)
    address = temp / "keeper"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen(64)
    state = State(temp, os.environ[processes.MARK], control, listener, watcher)
    for end in state.woken:
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(state.woken[1], warn_on_full_buffer=False)
    # One thread is there, of Arrow's jemalloc, which is made for forks; OpenBLAS ends its own before the first.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    import_libraries()
    shim = write_shim(temp, address)
    if (pid := fork(state)) == 0:
        start_ray(temp, shim, ray)
    state.starter = pid
    serve(state)


def fork(state: State) -> int:
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        state.control.close()
        state.listener.close()
        for end in state.woken:
            os.close(end)
    return pid


def start_ray(temp: Path, python: str, settings: Mapping[str, Any]) -> NoReturn:
    """In a fork: starts Ray's processes, which stay, says where Ray is, and ends. python: what workers start with."""
    told: dict[str, Any]
    # Ray would start a worker ahead, without the variables of a training, that no training can use: 90 MiB.
    os.environ |= {"RAY_prestart_worker_first_driver": "0"}
    try:
        from ray._private import services
        from ray._private.node import Node
        from ray._private.parameter import RayParams

        params = RayParams(
            node_ip_address=services.resolve_ip_for_localhost("127.0.0.1"),
            num_cpus=settings["num_cpus"],
            num_gpus=settings["num_gpus"],
            object_store_memory=settings["object_store_bytes"],
            include_dashboard=False,
            temp_dir=str(temp),
        )
        with mock.patch("sys.executable", python):
            node = Node(params, head=True, shutdown_at_exit=False, spawn_reaper=False)
        told = {"address": node.address, "processes": children(os.getpid())}
    except BaseException as error:
        traceback.print_exc()
        told = {"failed": f"Ray did not start: {error}"}
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    write_whole(temp / READY, json.dumps(told))
    os._exit(0)


def serve(state: State) -> NoReturn:
    """The keeper's life: a fork per order. It ends when nobody can give orders any more."""
    while True:
        sources: list[Any] = [state.woken[0], state.listener, state.control]
        ready, _, _ = select.select(sources, [], [])
        if state.woken[0] in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(state.woken[0], 4096)
            reap(state)
        if state.listener in ready:
            bear_worker(state)
        if state.control in ready:
            listen(state)


def bear_worker(state: State) -> None:
    connection, _ = state.listener.accept()
    streams: list[int] = []
    with connection:
        try:
            order, streams = take_order(connection)
        except (OSError, ValueError, EOFError):
            return
        if fork(state) == 0:
            try:
                become_worker(order, streams, connection)
            finally:
                os._exit(1)
        for stream in streams:
            os.close(stream)


def listen(state: State) -> None:
    """An order to run a driver or, while one runs, to end it."""
    try:
        if state.driver is not None:
            if not state.control.recv(1):
                raise EOFError
            os.kill(state.driver, signal.SIGKILL)
            return
        if state.control.recv(1, socket.MSG_PEEK) == END:  # it had ended before it could be told to
            state.control.recv(1)
            return
        order, streams = take_order(state.control)
    except (OSError, ValueError, EOFError):
        os._exit(0)  # the watcher ends all the rest
    keeper = os.getpid()
    if (pid := fork(state)) == 0:
        try:
            processes.die_with(keeper)
            environment = dict(os.environ) | order["env"]
            become(lambda: driver.main([order["plan"]]), streams, environment, str(Path.cwd()))
        finally:
            os._exit(1)
    state.driver = pid
    for stream in streams:
        os.close(stream)


def reap(state: State) -> None:
    """Takes note of children that have ended; what a driver leaves is ended too before its end is told."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == state.starter:
            state.starter = None
            if not (state.temp / READY).exists():
                write_whole(state.temp / READY, json.dumps({"failed": "what starts Ray was killed"}))
        elif pid == state.driver:
            clean = sweep(state) if read_ready(state.temp) else True  # it has not joined yet
            state.driver = None
            told = {"code": os.waitstatus_to_exitcode(status), "clean": clean}
            with contextlib.suppress(OSError):
                state.control.sendall(json.dumps(told).encode() + b"\n")


def sweep(state: State) -> bool:
    """Kills what trainings have left; whether nothing is left."""
    end = time.monotonic() + SWEEP_SECONDS
    while left := of_trainings(state):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def of_trainings(state: State) -> list[int]:
    """Marked processes that are neither the watcher nor Ray's own: forks of the keeper, raylet's children but its
    agents, and what comes from these, also when its parents are gone.
    """
    stay = {state.watcher, *read_ready(state.temp).get("processes", [])}
    return [pid for pid in processes.marked(state.mark) if not stays(pid, stay)]


def stays(pid: int, stay: set[int]) -> bool:
    below: int | None = None
    while pid > 1:
        if pid in stay:
            return below is None or name(pid) != "raylet" or is_agent(below)
        below, pid = pid, parent(pid)
    return False


def name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def is_agent(pid: int) -> bool:
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
        return any(agent in command for agent in AGENTS)
    return False


def parent(pid: int) -> int:
    """0: it is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def children(pid: int) -> list[int]:
    found = [int(place.name) for place in Path("/proc").glob("[0-9]*")]
    return [each for each in found if parent(each) == pid]


if __name__ == "__main__":
    main(sys.argv[1:])
