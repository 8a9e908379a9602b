"""Keepers, from the side of the process whose trainings they serve.

Decided here: a training starts a keeper (`keeper`) and ends it, unless the caller has said that more trainings come
(`kept`); then the next one uses it if its Ray would be the same, started in the same environment, and if the keeper
and its Ray are alive and nothing of the training before is left. Ends with this process, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from tbexp.config.schema import Config
from tbexp.training import environment, processes
from tbexp.training.warm_workers import END, read_ready, send_order

log = logging.getLogger(__name__)

KILL_SECONDS = 60.0  # for a driver that was told to end, and all that it has started


class RayGone(Exception):
    """The driver could not join Ray, so it has done nothing yet."""


class Keeper:
    """A keeper that has been started. used: a training has used it before. spoilt: not to be used again."""

    def __init__(self, config: Config, ray: Mapping[str, Any], output: IO[bytes]):
        self.mark = secrets.token_hex(6)
        self.used = self.spoilt = False
        self._ray, self._folder, here = dict(ray), Path.cwd(), os.getpid()
        self._stack = contextlib.ExitStack()
        self.temp = self._stack.enter_context(processes.held(processes.temp_folder(self.mark)))
        try:
            processes.write_token(self.temp)
            self._environment = self._for(config)
            self.control, theirs = socket.socketpair()
            self._stack.callback(self.control.close)
            words = [str(self.temp), str(theirs.fileno()), json.dumps(self._ray)]
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tbexp.training.keeper", *words],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    preexec_fn=lambda: processes.die_with(here),  # before its imports: they take seconds
                )
        except BaseException:
            self._stack.close()
            raise

    def _for(self, config: Config) -> dict[str, str]:
        own = environment.own_variables(config, mark=self.mark, temp=self.temp, metrics_file=None)
        return environment.for_driver(own, inherited=os.environ, joins=False)

    def suits(self, config: Config, ray: Mapping[str, Any]) -> bool:
        """Whether a training with this config can use it."""
        here = self._for(config)
        other = {key for key in {*here, *self._environment} if here.get(key) != self._environment.get(key)}
        if other:
            log.info("this training has a Ray of its own: its environment differs in %s", ", ".join(sorted(other)))
        return not other and self._ray == dict(ray) and self._folder == Path.cwd() and self.fit()

    def fit(self) -> bool:
        """Whether it can be used again."""
        rays = read_ready(self.temp).get("processes", [])
        return not self.spoilt and bool(rays) and all(map(processes.alive, [*rays, self._process.pid]))

    def drive(self, plan: Path, own: Mapping[str, str], output: IO[bytes]) -> Drive:
        """Forks a driver. own: what its environment has that the keeper's has not."""
        self.spoilt = True  # until it says that nothing is left of the driver
        order = {"plan": str(plan), "env": dict(own)}
        with Path(os.devnull).open("rb") as nothing, contextlib.suppress(OSError):  # it has ended: `Drive` tells
            send_order(self.control, order, [nothing.fileno(), output.fileno(), output.fileno()])
        return Drive(self)

    def gone(self) -> int | None:
        """Its exit code."""
        return self._process.poll()

    def end(self) -> None:
        """Nothing is left of it."""
        with self._stack:
            self._process.kill()
            self._process.wait()
            processes.end(self.mark)


class Drive:
    """A driver that a keeper has forked, as `subprocess.Popen` shows one; ended when all it has started is."""

    def __init__(self, keeper: Keeper):
        self._keeper, self._said = keeper, b""
        self.returncode: int | None = None

    def poll(self) -> int | None:
        while self.returncode is None and select.select([self._keeper.control], [], [], 0)[0]:
            data = b""
            with contextlib.suppress(OSError):
                data = self._keeper.control.recv(4096)
            self._said += data
            if not data:
                break
            if self._said.endswith(b"\n"):
                told = json.loads(self._said)
                self.returncode, self._keeper.spoilt = told["code"], not told["clean"]
        if self.returncode is None:
            self.returncode = self._keeper.gone()
        return self.returncode

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._keeper.control.send(END)

    def wait(self) -> None:
        """Of one that was told to end."""
        end = time.monotonic() + KILL_SECONDS
        while self.poll() is None:
            if time.monotonic() > end:
                self.returncode = -9
            time.sleep(0.05)


class _Here:
    """Of this process. waiting: the keeper that no training uses at the moment."""

    blocks = 0
    waiting: Keeper | None = None


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Trainings within the block share a keeper where they can; it ends with the block."""
    _Here.blocks += 1
    try:
        yield
    finally:
        _Here.blocks -= 1
        if not _Here.blocks and (waiting := _Here.waiting) is not None:
            _Here.waiting = None
            waiting.end()


def more_come() -> bool:
    """Whether a training is told that others come."""
    return _Here.blocks > 0


@contextlib.contextmanager
def keeper_for(config: Config, ray: Mapping[str, Any], output: IO[bytes]) -> Iterator[Keeper]:
    """The keeper for one training. ray: how its Ray is started. output: for what a new one says."""
    found, _Here.waiting = _Here.waiting, None
    if found is not None and not found.suits(config, ray):
        found.end()
        found = None
    found = found or Keeper(config, ray, output)
    try:
        yield found
    finally:
        found.used = True
        if more_come() and _Here.waiting is None and found.fit():
            _Here.waiting = found
        else:
            found.end()
