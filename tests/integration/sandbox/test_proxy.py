"""Sessions of a session proxy behave as those of the sandbox's own servers, and each fault has its kind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tbexp.config.schema import SessionProxy
from tbexp.errors import UserError, WorldError
from tbexp.sandbox import Server, open_sandbox

HERE = Path(__file__).parent
SERVERS = f"""servers:
  cafe: {{type: mcp-process, command: ["{{python}}", "{HERE}/servers/cafe.py"]}}
  stock: {{type: mcp-process, command: ["{{python}}", "{HERE}/servers/shop.py"]}}
"""


@dataclass
class Running:
    process: subprocess.Popen[str]
    url: str

    def next(self, fault: str) -> None:
        body = json.dumps({"next": fault}).encode()
        urllib.request.urlopen(urllib.request.Request(self.url + "/stand_in", body)).read()


@contextlib.contextmanager
def proxy(folder: Path, *key: str) -> Iterator[Running]:
    (folder / "servers.yaml").write_text(SERVERS)
    command = [sys.executable, str(HERE / "stand_in_proxy.py"), str(folder / "servers.yaml"), *key]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Running(process, f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.kill()


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Running]:
    with proxy(tmp_path_factory.mktemp("proxy")) as started:
        yield started


def settings(config, running: Running, **more):
    return config("proxy", proxy=SessionProxy(url=running.url), **more)


@dataclass
class Override:
    name: str
    override_description: str | None = None
    override_arg_description: dict[str, str] | None = None


def test_a_session_of_a_proxy_is_as_one_of_the_sandboxs_own(running, config):
    stock = Server("stock", (sys.executable, str(HERE / "servers/shop.py")), {}, str(HERE / "servers"))
    tools = [Override("restock", "Fill a shelf.", {"sku": "the article"}), "say"]

    async def go(settings):
        async with (
            open_sandbox(settings, {"stock": stock}) as sandbox,
            sandbox.session({"stock": {"stock": {"TP-1": 2}}}, tools) as session,
        ):
            with pytest.raises(KeyError):
                await session.call("environment", {})
            return [
                session.tools,
                {key: value for key, value in session.init_result["stock"].items() if key != "session"},
                await session.call("restock", {"sku": "TP-1", "n": 3}),
                await session.call("restock", {"sku": "TP-9", "n": 3}),
                await session.call("restock", {"n": "many"}),
                await session.call("say", {"text": "ab", "times": 100}),
                await session.server_tool("stock", "say", {"text": "ab", "times": 100}),
                await session.replay("restock", {"sku": "TP-1", "n": 1}),
                await session.replay("environment", {}),
                await session.effects(),
                sandbox.levels(),
            ]

    *own, level = asyncio.run(go(config("prefork", max_result_chars=50)))
    *proxied, proxy_level = asyncio.run(go(settings(config, running, max_result_chars=50)))
    assert proxied == own
    assert own[0]["restock"].description == "Fill a shelf."
    assert (level, proxy_level) == ({"stock": "ready"}, {"stock": "proxy"})


def test_sessions_end_at_the_proxy_and_twenty_live_at_once(running, config):
    async def go():
        async with open_sandbox(settings(config, running, max_sessions=20), {}) as sandbox:
            ready = asyncio.Barrier(20)

            async def one(n: int) -> None:
                async with sandbox.session({"stock": {"stock": {"TP-1": n}}}, ["say"]) as session:
                    await ready.wait()
                    assert await session.effects() == {"stock": {"stock": {"TP-1": n}}}
                left.append(session)

            left: list = []
            await asyncio.gather(*(one(n) for n in range(20)))
            for session in left:
                with pytest.raises(WorldError) as caught:
                    await session.call("say", {"text": "still there?"})
                assert caught.value.kind == "session_lost"

    asyncio.run(go())


CALLS = {
    "500": "proxy_error",
    "garbage": "proxy_garbage",
    "slow": "tool_timeout",
    "hang": "tool_timeout",
    "lost": "session_lost",
}


@pytest.mark.parametrize("fault", CALLS)
def test_a_fault_in_a_call_is_a_system_error_and_the_next_session_is_sound(running, config, monkeypatch, fault):
    monkeypatch.setattr("tbexp.sandbox.proxy.MARGIN_S", 0.1)
    patience = 0.5 if fault == "hang" else 60.0

    async def go():
        async with (
            open_sandbox(settings(config, running, call_timeout_s=patience), {}) as sandbox,
            sandbox.session({"stock": {}}, ["say"]) as session,
        ):
            running.next(fault)
            with pytest.raises(WorldError) as caught:
                await session.call("say", {"text": "hello"})
            assert caught.value.kind == CALLS[fault]
            with pytest.raises(WorldError) as later:
                await session.effects()
            assert later.value.kind == CALLS[fault]
        async with (
            open_sandbox(settings(config, running), {}) as sandbox,
            sandbox.session({"stock": {}}, ["say"]) as session,
        ):
            assert await session.call("say", {"text": "hello"}) == "hello"

    asyncio.run(go())


STARTS = {
    "500": ({"stock": {}}, "proxy_error"),
    "garbage": ({"stock": {}}, "proxy_garbage"),
    "slow": ({"stock": {}}, "server_init"),
    "hang": ({"stock": {}}, "server_init"),
    "": ({"stock": {"refuse": True}}, "server_init"),
}


@pytest.mark.parametrize("fault", STARTS)
def test_a_fault_at_the_start_is_a_system_error(running, config, fault):
    wanted, kind = STARTS[fault]

    async def go():
        patience = 1.0 if fault == "hang" else 60.0
        async with open_sandbox(settings(config, running, start_timeout_s=patience), {}) as sandbox:
            if fault:
                running.next(fault)
            with pytest.raises(WorldError) as caught:
                async with sandbox.session(wanted, ["say"]):
                    pass
            assert caught.value.kind == kind

    asyncio.run(go())


def test_effects_that_the_proxy_could_not_read_are_a_system_error_and_a_server_may_have_none(running, config):
    async def go():
        async with open_sandbox(settings(config, running), {}) as sandbox:
            for stock in ("unreadable", "broken"):
                async with sandbox.session({"stock": {"stock": {stock: 1}}}, ["say"]) as session:
                    with pytest.raises(WorldError) as caught:
                        await session.effects()
                    assert caught.value.kind == "effects_unreadable"
            async with sandbox.session({"cafe": {}}, ["say"]) as session:
                assert await session.effects() == {"cafe": {}}

    asyncio.run(go())


def test_what_the_proxy_does_not_have_is_the_users_to_fix(running, config):
    async def go(server: str, tool: str) -> str:
        async with open_sandbox(settings(config, running), {}) as sandbox:
            with pytest.raises(UserError) as caught:
                async with sandbox.session({server: {}}, [tool]):
                    pass
            return str(caught.value)

    assert "does not know server `bakery`" in asyncio.run(go("bakery", "say"))
    assert "tool `bake`, which no server offers (stock)" in asyncio.run(go("stock", "bake"))


def test_a_proxy_that_is_not_there_or_refuses_the_key_is_the_users_to_fix(tmp_path, config, monkeypatch):
    async def go(url: str, key: str | None) -> None:
        chosen = config("proxy", proxy=SessionProxy(url=url, api_key_env=key))
        async with open_sandbox(chosen, {}) as sandbox, sandbox.session({"stock": {}}, ["say"]) as session:
            assert await session.call("say", {"text": "hello"}) == "hello"

    monkeypatch.setenv("GOOD_KEY", "open sesame\n")
    monkeypatch.setenv("BAD_KEY", "sesame")
    with proxy(tmp_path, "open sesame") as locked:
        asyncio.run(go(locked.url, "GOOD_KEY"))
        for key, says in ((None, "sandbox.proxy.api_key_env=NAME"), ("BAD_KEY", "BAD_KEY"), ("NO_KEY", "NO_KEY")):
            with pytest.raises(UserError, match=says) as caught:
                asyncio.run(go(locked.url, key))
            assert "sesame" not in str(caught.value)
    with pytest.raises(UserError, match="no session proxy answers"):
        asyncio.run(go(locked.url, None))


def test_a_proxy_that_dies_is_a_system_error(tmp_path, config):
    async def go(started: Running) -> None:
        async with open_sandbox(settings(config, started), {}) as sandbox:
            async with sandbox.session({"stock": {}}, ["say"]) as session:
                started.process.kill()
                started.process.wait()
                with pytest.raises(WorldError) as caught:
                    await session.call("say", {"text": "hello"})
                assert caught.value.kind == "proxy_down"
            with pytest.raises(WorldError) as caught:
                async with sandbox.session({"stock": {}}, ["say"]):
                    pass
            assert caught.value.kind == "proxy_down"

    with proxy(tmp_path) as started:
        asyncio.run(go(started))
