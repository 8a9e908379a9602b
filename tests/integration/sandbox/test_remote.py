"""Servers that run elsewhere: their sessions are as those of our own processes, and each fault has its kind."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tbexp.errors import UserError, WorldError
from tbexp.sandbox import Server, open_sandbox
from tbexp.sandbox.servers import Remote

FAR = Path(__file__).parent / "servers" / "far.py"
STOCK = {"far": {"stock": {"TP-1": 2}}}
PATHS = {"streamable-http": "/mcp", "sse": "/sse"}


@contextlib.contextmanager
def far(transport: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, str(FAR), transport, "sesame"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@pytest.fixture(scope="module", params=list(PATHS))
def there(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    with far(request.param) as (_, url):
        yield request.param, url


def remote(transport: str, url: str, key: str = "sesame", **more: Any) -> dict[str, Server]:
    headers = {"Authorization": f"Bearer {key}"}
    return {"far": Server("far", remote=Remote(url + PATHS[transport], transport, headers, **more))}


def test_sessions_of_a_remote_server_have_their_own_state_and_end_in_order(there, config):
    async def one(sandbox: Any, n: int, together: asyncio.Barrier) -> Any:
        async with sandbox.session(STOCK, ["restock"]) as session:
            await together.wait()
            assert session.init_result["far"] == {"session": session.id}
            assert set(session.tools) == {"restock"}
            assert "no article TP-9" in await session.call("restock", {"sku": "TP-9", "n": 1})
            assert "validation error" in await session.call("restock", {"n": []})
            assert await session.call("restock", {"sku": "TP-1", "n": n}) == f'{{"sku": "TP-1", "added": {n}}}'
            with pytest.raises(KeyError):
                await session.call("hang", {})
            return await session.effects()

    async def go():
        async with open_sandbox(config(), remote(*there)) as sandbox:
            together = asyncio.Barrier(8)
            found = await asyncio.gather(*(one(sandbox, n, together) for n in range(8)))
            assert found == [{"far": {"stock": {"TP-1": 2 + n}}} for n in range(8)]
            assert sandbox.levels() == {"far": "remote"}
            async with sandbox.session(STOCK, ["open_sessions"]) as session:
                assert await session.call("open_sessions", {}) == "1"

    asyncio.run(go())


CALLS = {"500": "server_crashed", "503": "server_crashed", "404": "session_lost", "garbage": "server_garbage"}


@pytest.mark.parametrize("fault", [*CALLS, "hang", "timeout"])
def test_a_fault_in_a_call_is_a_system_error_and_the_next_session_is_sound(there, config, fault):
    if fault == "garbage" and there[0] == "sse":
        pytest.skip("what answers a POST is not looked at there")
    kind, slow = CALLS.get(fault, "tool_timeout"), fault in ("hang", "timeout")
    patience = {"call_timeout_s": 0.5} if fault == "hang" else {}

    async def go():
        servers = remote(*there, **({"timeout_s": 2.0} if fault == "timeout" else {}))
        async with open_sandbox(config(**patience), servers) as sandbox:
            async with sandbox.session(STOCK, ["restock", "hang"]) as session:
                if not slow:
                    await asyncio.to_thread(urllib.request.urlopen, f"{there[1]}/fault?{fault}")
                with pytest.raises(WorldError) as caught:
                    await session.call("hang" if slow else "restock", {} if slow else {"sku": "TP-1", "n": 1})
                assert caught.value.kind == kind
                with pytest.raises(WorldError) as later:
                    await session.effects()
                assert later.value.kind == kind
            async with sandbox.session(STOCK, ["restock"]) as session:
                assert await session.effects() == STOCK

    asyncio.run(go())


def opened(config: Any, servers: dict[str, Server], wanted: Any = STOCK) -> None:
    async def go():
        async with open_sandbox(config(), servers) as sandbox, sandbox.session(wanted, ["restock"]):
            pass

    asyncio.run(go())


def test_what_is_wrong_with_key_and_endpoint_is_the_users_to_fix(there, config):
    transport, url = there
    with pytest.raises(UserError, match="refuses the credentials") as caught:
        opened(config, remote(transport, url, "mellon"))
    assert "mellon" not in str(caught.value)
    with pytest.raises(UserError, match="no MCP server is there"):
        opened(config, {"far": Server("far", remote=Remote(url + "/x", transport, {"Authorization": "Bearer sesame"}))})


def test_a_refused_init_is_a_system_error(there, config):
    with pytest.raises(WorldError, match="no such shop") as caught:
        opened(config, remote(*there), {"far": {"refuse": True}})
    assert caught.value.kind == "server_init"


@pytest.mark.parametrize("transport", PATHS)
def test_a_remote_server_that_dies_is_a_system_error_at_once(config, transport):
    async def go(process: Any, url: str) -> None:
        async with open_sandbox(config(), remote(transport, url)) as sandbox:
            async with sandbox.session(STOCK, ["crash"]) as session:
                with pytest.raises(WorldError) as caught:
                    await session.call("crash", {})
                assert caught.value.kind == "server_crashed"
            process.wait()
            with pytest.raises(WorldError) as caught:
                async with sandbox.session(STOCK, ["crash"]):
                    pass
            assert caught.value.kind == "server_init"

    with far(transport) as (process, url):
        asyncio.run(go(process, url))
