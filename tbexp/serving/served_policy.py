"""A policy whose server is ours: when the server ends, the run ends too, and says why.

Decided here: that an attempt which the server's end interrupts is no system error of that attempt. Every other attempt
would meet the same, and each would try again for a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tbexp.errors import WorldError, WorldFailure
from tbexp.interpret.messages import Message, ToolSpec
from tbexp.policy import Completion, Policy, PolicySession
from tbexp.serving.vllm_server import RunningServer

LOOK_S = 1.0  # between looks whether the server still runs


class ServedPolicy:
    """`stop` ends the server; `close` leaves it running, as other campaigns of the stage may follow."""

    def __init__(self, policy: Policy, server: RunningServer):
        self.name = policy.name
        self._policy = policy
        self._server = server

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, seed: int) -> PolicySession:
        return _Session(self._policy.open(messages, tools, seed=seed), self._server)

    async def close(self) -> None:
        await self._policy.close()

    def stop(self) -> None:
        self._server.stop()


class _Session:
    def __init__(self, session: PolicySession, server: RunningServer):
        self._session, self._server = session, server

    async def act(self, new: Sequence[Message]) -> Completion:
        acting = asyncio.ensure_future(self._session.act(new))
        try:
            while not (await asyncio.wait({acting}, timeout=LOOK_S))[0]:
                self._refuse_ended()
            return acting.result()
        except WorldError:
            self._refuse_ended()
            raise
        finally:
            acting.cancel()

    def _refuse_ended(self) -> None:
        if (end := self._server.ended()) is not None:
            raise WorldFailure(f"{end}\nWhat was finished is kept; the same command goes on from here")

    async def close(self) -> None:
        await self._session.close()
