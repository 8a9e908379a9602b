"""Our side of grading: hands a test and the end of an attempt to a fresh process, answers its judge, reads its verdict.

Decided here: time, and what a grading that does not end well is called. What the test's outcome means is decided in
worker.py. Time that the judge takes is not the test's.

A verdict counts once its process has ended well and the warm process that forked it was there to see it. A test that is
killed, or whose warm process is, may be another one's victim: it is run again in a warm process that no other test is
in. Who is killed there too has done it itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import os
import secrets
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
WALL = 4  # times grade_timeout_s, which is CPU: a test that sleeps ends, and one that a busy machine starves does not
KILLS = (-9, -15)  # SIGKILL, SIGTERM: ends that another test may have made
ANSWER_S = 60.0  # that a warm process may take to fork, or to see a process end; a test can stop it


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


class Killed(WorldError):
    """A test's process, or the warm one, was killed from outside or by itself: nobody knows by whom."""


class Grader:
    """A warm process that forks one process per grading; see `open_grader`."""

    def __init__(self, config: SandboxConfig):
        self.config = config
        self.within_reach: list[str] = []  # of tests, since it cannot be kept from them here; known once one is graded
        self._launcher: Launcher | None = None
        self._closed = False
        self._alone = asyncio.Lock()
        self._killers: set[str] = set()  # tests that were killed alone
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
        UserError and WorldFailure: those end the run. A test that is run again asks its judge again.

        fixtures: by name, each a mapping with `type` and arguments, or an object with `type` and `arguments`. An empty
        test_code means no grading: passed with reward 1. servers: what `x.server_tool` reaches.
        """
        if not test_code.strip():
            return Verdict(True, 1.0)
        key = hashlib.blake2b(test_code.encode(), digest_size=16).hexdigest()
        talk = _Talk(self.config.grade_timeout_s, test_code, judge, servers)
        async with self._places:
            try:
                if key not in self._killers:
                    with contextlib.suppress(Killed):
                        return await self._grade(await self._running(), key, talk, context, fixtures or {})
                    if talk.called:
                        what = "the grader was killed while the test ran, which had called the live session by then"
                        raise WorldError("grader_crashed", what)
                return await self._grade_alone(key, talk.again(), context, fixtures or {})
            except WorldError as error:
                return Verdict(None, 0.0, error, message=error.message)

    async def _grade_alone(self, key: str, talk: _Talk, context: TestContext, fixtures: Mapping[str, Any]) -> Verdict:
        """The verdict of a test in a warm process of its own, so that its end is its own doing."""
        async with self._alone:
            launcher = await self._start()
            try:
                return await self._grade(launcher, key, talk, context, fixtures)
            except Killed as killed:
                self._killers.add(key)
                what = f"the task's test killed its grader: {launcher.reason}" if launcher.dead else killed.message
                raise WorldError("grader_crashed", what) from killed
            finally:
                await launcher.stop()

    async def _grade(
        self, launcher: Launcher, key: str, talk: _Talk, context: TestContext, fixtures: Mapping[str, Any]
    ) -> Verdict:
        known = launcher is self._launcher and await self._known(launcher, key, talk.test_code)
        child = await self._child(launcher, key)
        judge, servers = talk.judge, talk.servers
        request = {
            "token": talk.token,
            "code": None if known else talk.test_code,
            "context": {f.name: getattr(context, f.name) for f in dataclasses.fields(context)},
            "judge_style": getattr(judge, "style", "legacy"),
            "judge_reading": getattr(judge, "reading", "sentence"),
            "numbers": self.config.grade_numbers,
            "live": servers is not None,
            "fixtures": {name: plain_fixture(fixture) for name, fixture in fixtures.items()},
        }
        reader, writer = await asyncio.open_unix_connection(sock=child.socket, limit=1 << 20)
        talk.reader, talk.writer = reader, writer
        # Its own children may hold the other end for longer than it lives.
        child.ended.add_done_callback(lambda _: writer.transport.abort() if launcher.dead else None)
        try:
            await talk.send(request)
            return await talk.verdict(launcher, child)
        finally:
            writer.transport.abort()
            task = asyncio.create_task(launcher.end(child, 0.0 if talk.late else 2.0))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _child(self, launcher: Launcher, key: str) -> Child:
        """Raises Killed where the warm process is gone, or is made to end since it does not answer."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await launcher.child({"hash": key})
        except TimeoutError:
            await launcher.stop(f"it did not answer within {ANSWER_S:g} s")
            raise Killed("grader_crashed", launcher.reason) from None
        except WorldError as error:
            raise Killed(error.kind, error.message) if launcher.dead else error from None

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
            except WorldError as error:
                raise Killed(error.kind, error.message) from error
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
            self._launcher = await self._start()
            return self._launcher

    async def _start(self) -> Launcher:
        if self._closed:
            raise WorldError("grader_crashed", "the grader is closed")
        hello = {
            "path": sys.path,
            "memory_mib": self.config.grade_memory_mib,
            "over_memory": OVER_MEMORY,
            "seconds": self.config.grade_timeout_s,
        }
        launcher = Launcher("the grader", SCRIPT, [sys.executable], hello, ("grader_crashed", "grader_crashed"))
        env = allowed_environment(self.config.allow_env, {})
        try:
            answer = await launcher.start(env, None, self.config.start_timeout_s)
        except Unfit as error:
            raise WorldError("grader_crashed", f"the grader does not start: {error}") from error
        told = {"reach the network": answer.get("network"), "see other processes": answer.get("processes")}
        within_reach = [f"tests can {what}: {why}" for what, why in told.items() if why]
        for sentence in within_reach if within_reach != self.within_reach else ():
            log.warning("%s; it cannot be kept from them here", sentence)
        self.within_reach = within_reach
        return launcher

    async def what_is_within_reach(self) -> list[str]:
        """What tests could do that they should not, one sentence each. Raises WorldError when no grader starts."""
        await self._running()
        return self.within_reach

    async def close(self) -> None:
        self._closed = True
        if self._ending:
            await asyncio.wait(set(self._ending), timeout=5.0)
        if self._launcher is not None:
            await self._launcher.stop()
        if self._ending:  # a warm process that a test had stopped is gone now
            await asyncio.wait(set(self._ending))


class _Talk:
    """One grading's conversation with its process.

    What does not have its token was written by something else in the test, and is no verdict.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def __init__(self, seconds: float, test_code: str, judge: Judge | None, servers: Servers | None):
        self.servers = servers
        self.test_code = test_code
        self.seconds = seconds
        self.limit = math.ceil(seconds)  # of CPU, as the kernel counts it
        self.left: float = self.limit * WALL
        self.judge = judge
        self.late = False
        self.called = False  # the live session, whose state may be another one now
        self.token = secrets.token_hex(8)

    def again(self) -> _Talk:
        return _Talk(self.seconds, self.test_code, self.judge, self.servers)

    async def send(self, message: Mapping[str, Any]) -> None:
        data = json.dumps(message).encode()
        self.writer.write(len(data).to_bytes(8, "big") + data)

    async def receive(self) -> dict[str, Any]:
        size = int.from_bytes(await self.reader.readexactly(8), "big")
        if size > MAX_FRAME:
            raise WorldError("grader_crashed", f"the test's process sent {size} bytes at once")
        message: dict[str, Any] = json.loads(await self.reader.readexactly(size))
        if message.pop("token", None) != self.token:
            raise ValueError("it is not the grader that says it")
        return message

    async def verdict(self, launcher: Launcher, child: Child) -> Verdict:
        try:
            return await self._verdict(launcher, child)
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # a test may have changed what speaks here
            said = f"what the test's process says cannot be understood ({type(error).__name__}: {error})"
            raise WorldError("grader_crashed", said) from error

    async def _verdict(self, launcher: Launcher, child: Child) -> Verdict:
        broken: WorldError | None = None  # the first failure of judge or server
        while True:
            start = time.monotonic()
            try:
                async with asyncio.timeout(self.left):
                    message = await self.receive()
            except TimeoutError:
                self.late = True
                what = f"the test did not end within {self.limit * WALL} s"
                raise WorldError("grader_timeout", what) from None
            except (asyncio.IncompleteReadError, ConnectionError):
                raise await _died(launcher, child, self.limit) from None
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
                self.called = True
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
            verdict = _read(message["verdict"], broken)
            await _seen_out(launcher, child, self.limit)
            return verdict


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


async def _seen_out(launcher: Launcher, child: Child, limit: int) -> None:
    """Wait for the end of a process that has given its verdict. Raises WorldError unless it and its grader did well."""
    try:
        async with asyncio.timeout(ANSWER_S):
            status = await asyncio.shield(child.ended)
    except TimeoutError:
        await launcher.stop(f"it did not answer within {ANSWER_S:g} s")
        status = child.ended.result()
    if status:
        raise await _died(launcher, child, limit)


async def _died(launcher: Launcher, child: Child, limit: int) -> WorldError:
    """What a process died of that ended without a verdict, or together with the warm process."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            await asyncio.shield(child.ended)
    status = child.ended.result() if child.ended.done() else None
    if status == OVER_MEMORY:
        return WorldError("grader_memory", "the test and the processes that it started need more memory than they may")
    if status == -24:  # SIGXCPU
        return WorldError("grader_timeout", f"the test used more than {limit} s of CPU")
    what = f"the test's process ended without a verdict{child.describe_end()}"
    return (Killed if launcher.dead or status in KILLS else WorldError)("grader_crashed", what)


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
