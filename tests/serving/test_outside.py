"""Attempts whose agent is outside."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tbexp.config.schema import Limits
from tbexp.serving import outside


def test_who_waits_for_an_attempt_that_is_closed_is_told_and_not_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never_over(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(outside, "run_attempt", never_over)

    async def go() -> None:
        attempt = outside.OutsideAttempt(None, attempt=0, seed=0, world=None, limits=Limits())  # type: ignore[arg-type]
        waiting = asyncio.create_task(attempt.next())
        await asyncio.sleep(0)
        await attempt.close()
        with pytest.raises(RuntimeError, match="closed before it was over"):
            await waiting

    asyncio.run(go())
