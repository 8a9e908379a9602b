"""Our side of grading: hands a test and the end of an attempt to a fresh process, answers its judge, reads its verdict.

Decided here: time, and what a grading that does not end well is called. What the test's outcome means is decided in
worker.py. Time that the judge takes is not the test's.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tbexp.config.schema import SandboxConfig
from tbexp.errors import UserError, WorldError, WorldFailure
from tbexp.grading.context import TestContext
from tbexp.sandbox.launch import Child, Launcher, Unfit
from tbexp.sandbox.servers import allowed_environment

log = logging.getLogger(__name__)

SCRIPT = Path(__file__).with_name("worker.py")
MAX_FRAME = 1 << 28
GRADERS = 32  # gradings at once
OVER_MEMORY = 1000  # what the warm process calls the end of a test with too much memory; no process ends so
CODES = 2000  # tests that the warm process is taken to hold; it keeps a few more


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a test decided. With a system error it decided nothing: passed is None and reward 0.

    passed: whether the reward is 1. A test that returns None or True has reward 1; of a number in [0, 1] below 1 the
    reward is kept, and the test is not passed. line, line_content: the innermost line of the test that its exception
    passed. message: the assertion's text, the exception, or the system error's text. metadata: what the test and its
    fixtures wrote, and `judge_motivation`, the judge's decisions or None.
    """

    passed: bool | None
    reward: float
    system_error: WorldError | None = None
    line: int | None = None
    message: str = ""
    prints: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    line_content: str = ""

    @property
    def judged(self) -> bool:
        """Whether the test asked the judge."""
        return bool(self.metadata.get("judge_motivation"))


class Judge(Protocol):
    """Answers a judge's question.

    An attribute `style` of "motivation" makes tests ask for a reason too; one `reading` says how answers are read
    (judging.READINGS).
    """

    async def ask(self, system: str, user: str) -> str: ...


class Servers(Protocol):
    """The live session of the attempt, for fixtures: any tool of any server."""

    async def server_tool(self, server: str, tool: str, arguments: Mapping[str, Any]) -> str:
        """Raises KeyError for an unknown server, WorldError for one that fails."""
        ...


class Grader:
    """A warm process that forks one process per grading; see `open_grader`."""

    def __init__(self, config: SandboxConfig):
        self.config = config
        self.within_reach: list[str] = []  # of tests, since it cannot be kept from them here; known once one is graded
        self._launcher: Launcher | None = None
        self._starting = asyncio.Lock()
        self._places = asyncio.Semaphore(GRADERS)
        self._seen: dict[str, int] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def grade(
        self,
        test_code: str,
        context: TestContext,
        *,
        judge: Judge | None = None,
        fixtures: Mapping[str, Any] | None = None,
        servers: Servers | None = None,
    ) -> Verdict:
        """The verdict of one test. What the test, the judge or the process does raises nothing, but for a judge's
        UserError and WorldFailure: those end the run.

        fixtures: by name, each a mapping with `type` and arguments, or an object with `type` and `arguments`. An empty
        test_code means no grading: passed with reward 1. servers: what `x.server_tool` reaches.
        """
        if not test_code.strip():
            return Verdict(True, 1.0)
        async with self._places:
            try:
                return await self._grade(test_code, context, judge, fixtures or {}, servers)
            except WorldError as error:
                return Verdict(None, 0.0, error, message=error.message)

    async def _grade(
        self,
        test_code: str,
        context: TestContext,
        judge: Judge | None,
        fixtures: Mapping[str, Any],
        servers: Servers | None,
    ) -> Verdict:
        launcher = await self._running()
        key = hashlib.blake2b(test_code.encode(), digest_size=16).hexdigest()
        known = await self._known(launcher, key, test_code)
        child = await launcher.child({"hash": key})
        request = {
            "code": None if known else test_code,
            "context": {f.name: getattr(context, f.name) for f in dataclasses.fields(context)},
            "judge_style": getattr(judge, "style", "legacy"),
            "judge_reading": getattr(judge, "reading", "sentence"),
            "numbers": self.config.grade_numbers,
            "live": servers is not None,
            "fixtures": {name: plain_fixture(fixture) for name, fixture in fixtures.items()},
        }
        reader, writer = await asyncio.open_unix_connection(sock=child.socket, limit=1 << 20)
        talk = _Talk(reader, writer, self.config.grade_timeout_s, test_code, judge, servers)
        try:
            await talk.send(request)
            return await talk.verdict(child)
        finally:
            writer.transport.abort()
            task = asyncio.create_task(launcher.end(child, 0.0 if talk.late else 2.0))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _known(self, launcher: Launcher, key: str, test_code: str) -> bool:
        """Whether the warm process holds the compiled test; it is told a test when it is seen a second time."""
        count = self._seen[key] = self._seen.pop(key, 0) + 1
        if len(self._seen) > CODES:
            self._seen.pop(next(iter(self._seen)))
        if count < 2:
            return False
        if count == 2:
            fd = os.memfd_create("test")
            try:
                with open(fd, "wb", closefd=False) as file:
                    file.write(test_code.encode())
                await launcher.send({"op": "compile", "hash": key}, (fd,))
            finally:
                os.close(fd)
        return True

    async def _running(self) -> Launcher:
        if self._launcher is not None and not self._launcher.dead:
            return self._launcher
        async with self._starting:
            if self._launcher is not None and not self._launcher.dead:
                return self._launcher
            self._seen.clear()
            hello = {
                "path": sys.path,
                "memory_mib": self.config.grade_memory_mib,
                "over_memory": OVER_MEMORY,
                "seconds": self.config.grade_timeout_s,
            }
            launcher = Launcher("the grader", SCRIPT, [sys.executable], hello)
            env = allowed_environment(self.config.allow_env, {})
            try:
                answer = await launcher.start(env, None, self.config.start_timeout_s)
            except Unfit as error:
                raise WorldError("grader_crashed", f"the grader does not start: {error}") from error
            told = {"reach the network": answer.get("network"), "see other processes": answer.get("processes")}
            self.within_reach = [f"tests can {what}: {why}" for what, why in told.items() if why]
            for sentence in self.within_reach:
                log.warning("%s; it cannot be kept from them here", sentence)
            self._launcher = launcher
            return launcher

    async def what_is_within_reach(self) -> list[str]:
        """What tests could do that they should not, one sentence each. Raises WorldError when no grader starts."""
        await self._running()
        return self.within_reach

    async def close(self) -> None:
        if self._ending:
            await asyncio.wait(set(self._ending))
        if self._launcher is not None:
            await self._launcher.stop()


class _Talk:
    """One grading's conversation with its process."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        seconds: float,
        test_code: str,
        judge: Judge | None,
        servers: Servers | None,
    ):
        self.servers = servers
        self.test_code = test_code
        self.reader = reader
        self.writer = writer
        self.left = seconds
        self.seconds = seconds
        self.judge = judge
        self.late = False

    async def send(self, message: Mapping[str, Any]) -> None:
        data = json.dumps(message).encode()
        self.writer.write(len(data).to_bytes(8, "big") + data)

    async def receive(self) -> dict[str, Any]:
        size = int.from_bytes(await self.reader.readexactly(8), "big")
        if size > MAX_FRAME:
            raise WorldError("grader_crashed", f"the test's process sent {size} bytes at once")
        message: dict[str, Any] = json.loads(await self.reader.readexactly(size))
        return message

    async def verdict(self, child: Child) -> Verdict:
        try:
            return await self._verdict(child)
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # a test may have changed what speaks here
            said = f"what the test's process says cannot be understood ({type(error).__name__}: {error})"
            raise WorldError("grader_crashed", said) from error

    async def _verdict(self, child: Child) -> Verdict:
        broken: WorldError | None = None  # the first failure of judge or server
        while True:
            start = time.monotonic()
            try:
                async with asyncio.timeout(self.left):
                    message = await self.receive()
            except TimeoutError:
                self.late = True
                raise WorldError("grader_timeout", f"the test did not end within {self.seconds:g} s") from None
            except (asyncio.IncompleteReadError, ConnectionError):
                raise await _died(child, self.seconds) from None
            self.left -= time.monotonic() - start
            if "need" in message:
                await self.send({"code": self.test_code})
                continue
            if "ask" in message:
                try:
                    if self.judge is None:
                        raise WorldError("judge", "the test asks a judge, and none is configured")
                    answer = {"answer": await self.judge.ask(*message["ask"])}
                except (UserError, WorldFailure):
                    raise  # a refused key or a reached spending cap ends the run, not the attempt
                except Exception as error:
                    text = error.message if isinstance(error, WorldError) else f"{type(error).__name__}: {error}"
                    broken = broken or WorldError("judge", text)
                    answer = {"error": text}
                await self.send(answer)
                continue
            if "tool" in message:
                try:
                    assert self.servers is not None  # else the test's process has no way to ask
                    answer = {"answer": await self.servers.server_tool(*message["tool"])}
                except KeyError:
                    answer = {"error": f"the session has no server `{message['tool'][0]}`"}
                except WorldError as error:
                    broken = broken or error
                    answer = {"error": error.message}
                await self.send(answer)
                continue
            return _read(message["verdict"], broken)


def _read(verdict: Mapping[str, Any], broken: WorldError | None) -> Verdict:
    error = verdict.get("error")
    system_error = WorldError(error["kind"], error["message"]) if error else None
    # A test that swallows the failure of a judge or a server has judged nothing.
    system_error = broken or system_error
    decided = system_error is None
    return Verdict(
        passed=bool(verdict["passed"]) if decided else None,
        reward=float(verdict["reward"]) if decided else 0.0,
        system_error=system_error,
        line=verdict.get("line"),
        message=verdict.get("message", "") if decided else str(system_error.message if system_error else ""),
        prints=verdict.get("prints", ""),
        metadata=verdict.get("metadata", {}),
        line_content=verdict.get("line_content", ""),
    )


async def _died(child: Child, seconds: float) -> WorldError:
    """What a process that ended without a verdict died of."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            await asyncio.shield(child.ended)
    status = child.ended.result() if child.ended.done() else None
    if status == OVER_MEMORY:
        return WorldError("grader_memory", "the test and the processes that it started need more memory than they may")
    if status == -24:  # SIGXCPU
        return WorldError("grader_timeout", f"the test used more than {seconds:g} s of CPU")
    return WorldError("grader_crashed", f"the test's process ended without a verdict{child.describe_end()}")


def plain_fixture(fixture: Any) -> dict[str, Any]:
    if isinstance(fixture, Mapping):
        return dict(fixture)
    return {"type": fixture.type, **dict(fixture.arguments)}


@asynccontextmanager
async def open_grader(config: SandboxConfig) -> AsyncIterator[Grader]:
    """A grader; its warm process starts with the first grading and ends with the context."""
    grader = Grader(config)
    try:
        yield grader
    finally:
        await grader.close()
