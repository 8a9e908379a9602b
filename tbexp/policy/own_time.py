"""The time that a policy takes for itself, which `policy.limits.generation_seconds` limits.

Decided here: while an endpoint is asked the clock stands, and of its requests the answered ones are counted, each for
as long as its answer took. The queue, the rate limit, pauses and tries without an answer are the world's, and an
endpoint that never answers ends in a system error, not in the agent's failure. All else that a policy does counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

_TO_READ_S = 1.0  # an answer that took too long is still read: its tokens are counted


class OwnTime:
    """The clock of one attempt. left: seconds; below 0 the policy has had more than it may."""

    def __init__(self, seconds: float):
        self.left = seconds
        self._limit: asyncio.Timeout | None = None  # while the policy acts
        self._since = 0.0
        self._asking = 0  # calls of endpoints that are under way

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """For one `act`. TimeoutError: there was no time left while the policy worked; after an answer that took too
        long there is none, and `left` is negative.
        """
        # Not wait_for: it swallows a cancellation that comes in the moment in which the answer does.
        async with asyncio.timeout(max(self.left, 0.001)) as self._limit:
            self._since = time.monotonic()
            token = _CLOCK.set(self)
            try:
                yield
            finally:
                _CLOCK.reset(token)
                self._limit = None
                if not self._asking:
                    self._take()

    def stop(self) -> None:
        self._asking += 1
        if self._asking == 1 and self._limit is not None:
            self._take()
            self._reschedule(None)

    def go_on(self) -> None:
        self._asking -= 1
        if not self._asking and self._limit is not None:
            self._since = time.monotonic()
            self._reschedule(asyncio.get_running_loop().time() + max(self.left, _TO_READ_S))

    def spend(self, seconds: float) -> None:
        self.left -= seconds

    def _take(self) -> None:
        self.left -= time.monotonic() - self._since

    def _reschedule(self, when: float | None) -> None:
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(when)


_CLOCK: ContextVar[OwnTime | None] = ContextVar("clock", default=None)


@contextmanager
def standing() -> Iterator[Callable[[float], None]]:
    """Inside, the clock of the policy that acts stands, if one does; seconds that are to count are told to what this
    yields.
    """
    clock = _CLOCK.get()
    if clock is None:
        yield lambda seconds: None
        return
    clock.stop()
    try:
        yield clock.spend
    finally:
        clock.go_on()
