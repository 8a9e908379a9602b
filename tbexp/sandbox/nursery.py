"""Forks processes on request, for the launcher and for the warm grader: standalone, standard library only.

It is loaded by path. Requests come over a SOCK_SEQPACKET socket as JSON, with open files attached; answers and exits of
children go back. Children end with their parent whatever happens: by the end of the socket, by SIGTERM, or by the
kernel's parent-death signal.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 1, 24, 36
# What lets root read other processes' environments: CAP_SYS_PTRACE, CAP_SYS_ADMIN and, since Linux 6.13, CAP_PERFMON.
LOOKING = (19, 21, 38)
MADV_COLLAPSE, HUGE_PAGE = 25, 1 << 21  # since Linux 6.1; bytes, on x86-64 and most others
MAX_MESSAGE = 1 << 17
WEIGH_S = 0.05
LIBC = ctypes.PyDLL(None, use_errno=True)
SIGNALS: Any = importlib.import_module("_signal")  # `signal` wraps it in enums, whose pages each child would copy


class Hooks:
    """What libraries register with os.register_at_fork from now on.

    The standard library's own hooks are not needed by a process with one thread whose locks are free, and `random` is
    seeded anew below: leaving them out saves 240 of 280 page faults of a bare fork, 0.6 ms of CPU.
    """

    def __init__(self) -> None:
        self.registered: list[dict[str, Callable[[], object]]] = []
        self.original = os.register_at_fork
        setattr(os, "register_at_fork", self.register)  # noqa: B010 - mypy takes the plain form for a mistake

    def register(self, **hooks: Callable[[], object]) -> None:
        caller = sys._getframe(1).f_globals.get("__name__")
        if caller not in ("threading", "logging", "random"):
            self.registered.append(hooks)
        self.original(**hooks)

    def run(self, when: str) -> None:
        for hooks in self.registered if when != "before" else reversed(self.registered):
            if when in hooks:
                hooks[when]()


HOOKS = Hooks()


def fork() -> int:
    """os.fork for a process of one thread; see Hooks."""
    if threading.active_count() > 1:
        return os.fork()
    if HOOKS.registered:
        HOOKS.run("before")
    pid: int = LIBC.fork()
    if pid < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if HOOKS.registered:
        HOOKS.run("after_in_parent" if pid else "after_in_child")
    if not pid:
        random.seed()
    return pid


def settle() -> None:
    """Call it once before children are forked: what exists by now is taken to stay.

    The memory is put into huge pages where the kernel can do that. A fork then copies one entry for 512 pages, and a
    child's first write to one of them costs less too: together a fifth of the CPU of a session with a large server.
    """
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError, ValueError), open("/proc/self/maps", encoding="utf-8") as maps:  # noqa: PTH123
        for line in maps.read().splitlines():
            addresses, rights, _, device, _, *name = line.split(maxsplit=5)
            if not rights.startswith("rw-p") or device != "00:00" or (name and name[0] not in ("", "[heap]")):
                continue
            start, end = (int(address, 16) for address in addresses.split("-"))
            start, end = -(-start // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
            if start < end:
                LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_COLLAPSE)


class Control:
    """The sandbox's socket: messages in with files attached, answers out."""

    def __init__(self, fd: int):
        self.socket = socket.socket(fileno=fd)
        self.socket.setblocking(True)

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """The next message and its files; None when the sandbox is gone."""
        try:
            data, ancillary, _, _ = self.socket.recvmsg(MAX_MESSAGE, socket.CMSG_SPACE(16))
        except ConnectionError:
            return None
        if not data:
            return None
        fds = array.array("i")
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
        return json.loads(data), list(fds)

    def send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self.socket.send(json.dumps(message).encode()[:MAX_MESSAGE])


class Nursery:
    """Forks children on request, reaps them, and takes them along when the sandbox goes."""

    def __init__(
        self,
        control: Control,
        start: Callable[[dict[str, Any]], None] | None,
        other: Callable[[dict[str, Any], list[int]], None] | None = None,
    ):
        """start: what a child does instead of returning from `serve`. other: takes unknown requests."""
        self.control = control
        self.start = start
        self.other = other
        self.children: set[int] = set()
        self.pid = os.getpid()
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # whoever loses its parent below us becomes our child
        # Opened here: graders have no /proc later on.
        self.processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.most: tuple[int, int] | None = None  # bytes for a child with all below it; the status when it had more
        self.over: set[int] = set()
        self.doomed: set[int] = set()  # killed here, and not yet reaped
        self.weighed = 0.0
        self.elder = self._children_of(self.pid)  # started by the server's own import
        self.control_fd = control.socket.fileno()
        self.woken, self.wake = os.pipe()
        os.set_blocking(self.wake, False)

    def serve(self) -> None:
        """Answer requests for ever; returns in a forked child only."""
        signal.signal(signal.SIGCHLD, self._on_child)
        signal.signal(signal.SIGTERM, self._on_term)
        poll = select.poll()
        poll.register(self.control.socket, select.POLLIN)
        poll.register(self.woken, select.POLLIN)
        while True:
            weigh = self.most is not None and bool(self.children)
            ready = {fd for fd, _ in poll.poll(WEIGH_S * 1000 if weigh else None)}
            if weigh and time.monotonic() - self.weighed > WEIGH_S:
                self._weigh()
            if self.woken in ready:
                os.read(self.woken, 4096)
                self._reap()
            if self.control.socket.fileno() not in ready:
                continue
            received = self.control.receive()
            if received is None:
                self._leave()
            message, fds = received
            if message["op"] == "fork":
                if self._fork(message, fds):
                    return
            elif message["op"] == "kill":
                if message["pid"] in self.children:
                    kill_group(message["pid"])
            elif self.other is not None:
                self.other(message, fds)

    def _fork(self, message: dict[str, Any], fds: list[int]) -> bool:
        """True in the child, whose standard files are then the given ones."""
        try:
            pid = fork()
        except OSError as error:
            self.control.send({"id": message["id"], "error": str(error)})
            for fd in fds:
                os.close(fd)
            return False
        if pid:
            for fd in fds:
                os.close(fd)
            self.children.add(pid)
            self.control.send({"id": message["id"], "pid": pid})
            return False
        try:
            die_with(self.pid)
            os.setpgid(0, 0)
            SIGNALS.signal(17, 0)  # SIGCHLD, SIGTERM: SIG_DFL
            SIGNALS.signal(15, 0)
            stream, log = fds
            os.dup2(stream, 0)
            os.dup2(stream, 1)
            os.dup2(log, 2)
            self.control.socket.detach()
            for fd in (stream, log, self.control_fd, self.woken, self.wake, self.processes):
                os.close(fd)
            if self.start is not None:
                self.start(message)
        except BaseException:
            traceback.print_exc()
            os._exit(127)
        return True

    def _on_child(self, signum: int, frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake, b"x")

    def _on_term(self, signum: int, frame: FrameType | None) -> None:
        self._leave()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid not in self.children:  # what a child had left behind
                if pid in self.doomed:  # it may have started more before it ended
                    self.doomed.discard(pid)
                    self._sweep()
                continue
            kill_group(pid)
            self.children.discard(pid)
            self._sweep()
            ended = os.waitstatus_to_exitcode(status)
            if pid in self.over and self.most is not None:
                self.over.discard(pid)
                ended = self.most[1]
            self.control.send({"exit": pid, "status": ended})

    def _sweep(self) -> None:
        """What ended children left running, in their groups or out of them, has no one to serve any more."""
        for stray in self._children_of(self.pid) - self.children - self.elder:
            self.doomed.add(stray)
            for member in {stray} | self._below(stray):
                kill_group(member)

    def _weigh(self) -> None:
        """End the children that have more memory than they may, together with the processes that they started.

        A limit of the kernel counts for each process alone. One that has left its child's tree counts by its group.
        """
        assert self.most is not None
        strays = self._children_of(self.pid) - self.children - self.elder
        for pid in list(self.children):
            family = self._below(pid)
            for stray in strays:
                with contextlib.suppress(ProcessLookupError):
                    if os.getpgid(stray) == pid:
                        family |= {stray} | self._below(stray)
            if family and sum(self.memory(member) for member in {pid} | family) > self.most[0]:
                self.over.add(pid)
                kill_group(pid)
                for member in family:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(member, signal.SIGKILL)
        self.weighed = time.monotonic()

    def memory(self, pid: int) -> int:
        """Bytes; memory shared with others by its share."""
        try:
            fd = os.open(f"{pid}/smaps_rollup", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.processes)
            with os.fdopen(fd, "rb") as file:
                return next(int(line.split()[1]) << 10 for line in file if line.startswith(b"Pss:"))
        except (OSError, StopIteration):  # it has ended
            return 0

    def _below(self, pid: int) -> set[int]:
        return below(pid, self.processes)

    def _children_of(self, pid: int) -> set[int]:
        return children_of(pid, self.processes)

    def _leave(self) -> NoReturn:
        for pid in self.children:
            kill_group(pid)
        end_with_all(self.processes)


def below(pid: int, processes: int) -> set[int]:
    """Every process that it or one of its threads started, and so on, but for those whose parent has ended.

    processes: /proc, open.
    """
    found: set[int] = set()
    fresh = {pid}
    while fresh:
        fresh = {child for parent in fresh for child in children_of(parent, processes)} - found
        found |= fresh
    return found


def children_of(pid: int, processes: int) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):  # it has ended, or the kernel does not tell
        folder = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=processes)
        try:
            for thread in os.listdir(folder):  # noqa: PTH208 - by its number: graders have no /proc
                fd = os.open(f"{thread}/children", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
                with os.fdopen(fd, "rb") as file:  # no text: its codec would be imported, and SIGTERM break into that
                    found |= {int(child) for child in file.read().split()}
        finally:
            os.close(folder)
    return found


def end_with_all(processes: int) -> NoReturn:
    """This process, and every one below it, ends now."""
    while strays := below(os.getpid(), processes):
        for pid in strays:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    os._exit(0)


def guard() -> Callable[[], NoReturn]:
    """Before code of others runs here: what it starts ends with this process, also when that is told to end before
    there is a `Nursery`. The result ends both.
    """
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def end(*_: object) -> NoReturn:
        end_with_all(os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    signal.signal(signal.SIGTERM, end)
    return end


def die_with(parent: int, signum: int = signal.SIGKILL) -> None:
    """Let the kernel send `signum` when `parent`, which must be the parent process, ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def look_at_nobody() -> None:
    """Give up the right of root to look into processes that do not want it (`launch.hidden`), for all that we start."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable of the first 32; then of the others
    if LIBC.capget(header, sets) != 0:
        return
    for capability in LOOKING:
        LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        for which in range(3):
            sets[which + 3 * (capability // 32)] &= ~(1 << capability % 32)
    LIBC.capset(header, sets)


def leave(status: int) -> NoReturn:
    """End a forked child without tearing the interpreter down, which would copy most of the shared memory."""
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(status)


def connect() -> Control:
    """The socket that our parent gave us as `argv[1]`, its own process id being `argv[2]`."""
    die_with(int(sys.argv[2]), signal.SIGTERM)
    control = Control(int(sys.argv[1]))
    os.set_inheritable(control.socket.fileno(), False)
    return control
