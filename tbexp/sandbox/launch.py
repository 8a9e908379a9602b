"""Our side of the launcher: starts one per server, asks it for sessions, learns of their ends.

Decided here: how a server's command is read, so that it can be run at one of the levels of launcher.py, and how long a
process may take to end.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import ctypes
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tbexp.errors import WorldError
from tbexp.sandbox.servers import Server, allowed_environment

log = logging.getLogger(__name__)

SERVER_SCRIPT = Path(__file__).with_name("launcher.py")
LOG_BYTES = 16_384  # kept of what a server writes to its standard error
LOG_SHOWN = 2_000
PR_SET_DUMPABLE = 4
TRAINING_MARK = "TBEXP_TRAINING_RUN"  # training/processes.py
GRACE_S = 2.0  # from the end of its input to SIGKILL
PYTHON_FLAGS = {"-u", "-B", "-O", "-OO", "-s", "-E", "-I", "-P"}


class LogTail:
    """The last bytes that a process wrote to the returned file."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._read, self.write_fd = os.pipe()
        os.set_blocking(self._read, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read, self._readable)

    def handed_over(self) -> None:
        """Our copy of the writing end is not needed once the process has its own."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def _readable(self) -> None:
        try:
            data = os.read(self._read, 65_536)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        self.data += data
        del self.data[:-LOG_BYTES]

    def text(self) -> str:
        if self._read >= 0:
            with contextlib.suppress(OSError):
                self._readable()
        return self.data.decode("utf-8", "replace").strip()[-LOG_SHOWN:]

    def close(self) -> None:
        self.handed_over()
        if self._read >= 0:
            self._loop.remove_reader(self._read)
            os.close(self._read)
            self._read = -1


@dataclass(slots=True)
class Child:
    """One process that serves one session."""

    pid: int
    log: LogTail
    socket: socket.socket
    ended: asyncio.Future[int] = field(repr=False)

    def describe_end(self) -> str:
        status = ""
        if self.ended.done() and not self.ended.cancelled():
            code = self.ended.result()
            name = signal.Signals(-code).name if code < 0 else ""
            status = f" (killed by {name})" if name else f" (exit status {code})"
        text = self.log.text()
        return f"{status}; its last output:\n{text}" if text else status


def hide() -> None:
    """Close this process's environment and memory to those that it starts: a server or a check could read keys there,
    also when all run as one user. Root is kept out too, since launchers give up the right to look (nursery.py).

    Not the processes of a training: those that outlive it are found by a mark in their environment, which no other user
    than root could then read.
    """
    if TRAINING_MARK in os.environ:
        return
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


class Launcher:
    """A running process that forks others: a launcher of one server at one level, or the warm grader."""

    def __init__(
        self,
        name: str,
        script: Path,
        python: Sequence[str],
        hello: Mapping[str, Any],
        kinds: tuple[str, str] = ("server_crashed", "server_init"),
    ):
        """hello: the first message to `script`, which answers it with {"up": ...} or {"unfit": why}. kinds: of the
        system error when it ended, and when it has no process to give.
        """
        self.name = name
        self.crashed, self.refused = kinds
        self.reason = ""  # how it ended
        self.script = script
        self.python = python
        self.hello = hello
        self.dead = False
        self.up: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked: dict[int, asyncio.Future[tuple[int, asyncio.Future[int]]]] = {}
        self._children: dict[int, asyncio.Future[int]] = {}
        self._next = 0
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self, env: Mapping[str, str], cwd: str | None, timeout: float) -> dict[str, Any]:
        """Start and wait until it can fork; its answer. Raises Unfit when it can't."""
        hide()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._socket = ours
        self._log = LogTail()
        try:
            self._process = subprocess.Popen(
                [*self.python, str(self.script), str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=self._log.write_fd,
                stderr=self._log.write_fd,
                pass_fds=(theirs.fileno(),),
                env=env,
                cwd=cwd,
                start_new_session=True,  # Ctrl-C is ours to handle, not the servers'
            )
        except OSError as error:
            self._log.close()
            ours.close()
            raise Unfit(f"{self.python[0]}: {error.strerror}") from error
        finally:
            theirs.close()
            self._log.handed_over()
        asyncio.get_running_loop().add_reader(ours, self._readable)
        await self.send(self.hello)
        try:
            async with asyncio.timeout(timeout):
                answer = await self.up
        except TimeoutError:
            await self.stop()
            raise Unfit(f"it was not up within {timeout:g} s") from None
        if "up" not in answer:
            output = self._log.text()
            await self.stop()
            reason = answer.get("unfit", "it ended")
            raise Unfit(f"{reason}; its output:\n{output}" if answer.get("trace") or "unfit" not in answer else reason)
        return answer

    async def child(self, request: Mapping[str, Any]) -> Child:
        """A new process, forked as `request` says. Raises WorldError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        tail = LogTail()
        loop = asyncio.get_running_loop()
        self._next += 1
        message = {**request, "op": "fork", "id": self._next}
        answer = self._asked[self._next] = loop.create_future()
        try:
            await self.send(message, (theirs.fileno(), tail.write_fd))
            pid, ended = await answer
        except BaseException:
            ours.close()
            tail.close()
            raise
        finally:
            theirs.close()
            tail.handed_over()
            self._asked.pop(message["id"], None)
        return Child(pid, tail, ours, ended)

    async def end(self, child: Child, grace_s: float) -> None:
        """Wait for the end of a child whose input has ended; past the grace it is killed."""
        try:
            async with asyncio.timeout(grace_s):
                await asyncio.shield(child.ended)
        except TimeoutError:
            if not self.dead:
                await self.send({"op": "kill", "pid": child.pid})
                await child.ended
        finally:
            child.log.close()

    async def stop(self, reason: str = "it was stopped") -> None:
        """End the launcher and all its children."""
        self._fail(reason)
        process = self._process
        if process is None:
            return
        self._process = None
        process.terminate()
        for _ in range(200):
            if process.poll() is not None:
                break
            await asyncio.sleep(0.005)
        else:
            process.kill()
            process.wait()
        self._log.close()

    async def send(self, message: Mapping[str, Any], fds: tuple[int, ...] = ()) -> None:
        data = json.dumps(message).encode()
        extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        while not self.dead:
            try:
                self._socket.sendmsg([data], extra)
                return
            except BlockingIOError:  # the launcher is behind: a burst of sessions
                await asyncio.sleep(0.002)
            except OSError as error:
                self._fail(self._end(error))
        raise WorldError(self.crashed, f"{self.name}: {self.reason}")

    def _readable(self) -> None:
        for _ in range(64):
            failure: OSError | None = None
            try:
                data = self._socket.recv(1 << 17)
            except BlockingIOError:
                return
            except OSError as error:
                data, failure = b"", error
            if not data:
                self._fail(self._end(failure))
                return
            self._message(json.loads(data))

    def _message(self, message: dict[str, Any]) -> None:
        if "exit" in message:
            gone = self._children.pop(message["exit"], None)
            if gone is not None and not gone.done():
                gone.set_result(message["status"])
        elif "id" in message:
            answer = self._asked.get(message["id"])
            if "pid" in message:
                ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                self._children[message["pid"]] = ended
            if answer is None or answer.done():
                if "pid" in message:  # whoever asked has gone
                    with contextlib.suppress(OSError):
                        self._socket.send(json.dumps({"op": "kill", "pid": message["pid"]}).encode())
                return
            if "pid" in message:
                answer.set_result((message["pid"], ended))
            else:
                answer.set_exception(WorldError(self.refused, f"{self.name} has no process: {message['error']}"))
        elif not self.up.done():
            self.up.set_result(message)

    def _end(self, error: OSError | None) -> str:
        """How the process ended, or that it lives and cannot be reached, with its last output."""
        code: int | None = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # its files close a moment before it can be reaped
                code = self._process.wait(0.2)
        ended = "it cannot be reached" if code is None else "it ended"
        if code is not None:
            ended += f" (killed by {signal.Signals(-code).name})" if code < 0 else f" (exit status {code})"
        elif error is not None:
            ended += f" ({error.strerror})"
        text = self._log.text()
        return f"{ended}; its last output:\n{text}" if text else ended

    def _fail(self, reason: str) -> None:
        if self.dead:
            return
        self.dead = True
        self.reason = reason
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        if not self.up.done():
            self.up.set_result({})
        lost = WorldError(self.crashed, f"{self.name}: {reason}")
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(lost)
        for pid, ended in self._children.items():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # the kernel ends the child with its parent, but not what that started
            if not ended.done():
                ended.set_result(-int(signal.SIGKILL))
        self._children.clear()


class Unfit(Exception):
    """The server can't be run at the level asked for."""


async def start_server(server: Server, level: str, allow_env: Sequence[str], timeout: float) -> Launcher:
    """A launcher of `server` at `level`. Raises Unfit."""
    name = f"the launcher of server {server.name}"
    if level == "exec":
        launcher = Launcher(name, SERVER_SCRIPT, [sys.executable], {"level": level})
        await launcher.start(allowed_environment((), {}), None, timeout)
        return launcher
    command = preloadable(server)
    launcher = Launcher(name, SERVER_SCRIPT, command.pop("python"), {"level": level, **command})
    await launcher.start(allowed_environment(allow_env, server.env), server.cwd, timeout)
    return launcher


def preloadable(server: Server) -> dict[str, Any]:
    """How a launcher in the server's own interpreter runs this command. Raises Unfit for what is no Python command."""
    command = list(server.command)
    script = _console_script(command[0], server)
    if script is not None:
        return {"python": script[0], "kind": "console", "target": script[1], "modules": script[2], "args": command[1:]}
    if not re.fullmatch(r"python[0-9.]*", Path(command[0]).name) and command[0] != sys.executable:
        raise Unfit(f"`{command[0]}` is no Python interpreter or console script")
    python = [command.pop(0)]
    while command and command[0] in PYTHON_FLAGS:
        python.append(command.pop(0))
    if len(command) >= 2 and command[0] == "-m":
        return {
            "python": python, "kind": "module", "target": command[1], "modules": [command[1]], "args": command[2:],
        }  # fmt: skip
    if not command or command[0].startswith("-"):
        raise Unfit(f"`{' '.join(server.command)}` is neither `python -m MODULE` nor `python FILE`")
    return {"python": python, "kind": "script", "target": command[0], "modules": [], "args": command[1:]}


def _console_script(program: str, server: Server) -> tuple[list[str], str, list[str]] | None:
    """Interpreter, path and modules of an entry-point script written by an installer; None when it is none."""
    path = shutil.which(program, path=server.env.get("PATH"))
    if path is None and server.cwd is not None and "/" in program:
        path = shutil.which(str(Path(server.cwd) / program))
    if path is None:
        return None
    with Path(path).open("rb") as file:
        head = file.read(4096)
    if not head.startswith(b"#!"):
        return None
    text = head.decode("utf-8", "replace")
    python = text.splitlines()[0][2:].strip().split()
    if not python or not re.fullmatch(r"python[0-9.]*", Path(python[0]).name):
        return None
    modules = re.findall(r"^\s*from ([\w.]+) import \w+", text, re.MULTILINE)
    modules = [module for module in modules if module != "re"]
    return (python, path, modules) if modules else None
