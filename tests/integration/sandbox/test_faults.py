"""Each way in which a server can fail, and the system error it becomes. Nothing hangs."""

from __future__ import annotations

import asyncio

import pytest

from tbexp.errors import WorldError
from tbexp.sandbox import Server, open_sandbox

STOCK = {"shop": {"stock": {"TP-1": 2}}}

CALLS = {
    "crashes in a call": ("crash", "server_crashed", "the till is on fire"),
    "hangs in a call": ("hang", "tool_timeout", "hang"),
    "writes garbage": ("babble", "server_garbage", "Welcome to the shop!"),
}


@pytest.mark.parametrize("fault", CALLS)
@pytest.mark.parametrize(("kind", "name"), [("prefork", "shop"), ("prefork", "by_hand"), ("process", "by_hand")])
def test_a_fault_in_a_call_is_a_system_error_and_the_next_session_is_sound(server, config, kind, name, fault):
    tool, error, says = CALLS[fault]
    sound = "chance" if name == "shop" else "draw"

    async def go():
        settings = config(kind, call_timeout_s=0.5 if tool == "hang" else 60.0)
        async with open_sandbox(settings, {"shop": server(name)}) as sandbox:
            async with sandbox.session(STOCK, [tool]) as session:
                with pytest.raises(WorldError) as caught:
                    await session.call(tool, {})
                assert caught.value.kind == error
                assert says in caught.value.message
                with pytest.raises(WorldError) as later:
                    await session.call(tool, {})
                assert later.value.kind == error
            async with sandbox.session(STOCK, [sound]) as session:
                assert "." in await session.call(sound, {})

    asyncio.run(go())


STARTS = {
    "ends at its start": ("exits", "server_crashed", "exit status 4"),
    "says nothing": ("silent", "server_init", "within 0.7 s"),
    "begins with a banner": ("banner", "server_garbage", "hello"),
}


@pytest.mark.parametrize("fault", STARTS)
@pytest.mark.parametrize("kind", ["prefork", "process"])
def test_a_fault_at_the_start_is_a_system_error(server, config, kind, fault):
    argument, error, says = STARTS[fault]

    async def go():
        settings = config(kind, start_timeout_s=0.7 if argument == "silent" else 60.0)
        async with open_sandbox(settings, {"shop": server("by_hand", argument)}) as sandbox:
            with pytest.raises(WorldError) as caught:
                async with sandbox.session({"shop": {}}, []):
                    pass
            assert caught.value.kind == error
            assert says in caught.value.message

    asyncio.run(go())


def test_a_server_that_refuses_its_config_is_a_system_error_with_its_words(in_sandbox):
    async def go(sandbox):
        with pytest.raises(WorldError) as caught:
            async with sandbox.session({"shop": {"refuse": True}}, []):
                pass
        assert caught.value.kind == "server_init"
        assert "no such shop" in caught.value.message

    in_sandbox(go)


@pytest.mark.parametrize("kind", ["prefork", "process"])
def test_a_command_that_does_not_exist_is_a_system_error(config, kind):
    async def go():
        broken = Server("shop", ("/nowhere/python", "-m", "shop"), {}, None)
        async with open_sandbox(config(kind), {"shop": broken}) as sandbox:
            with pytest.raises(WorldError) as caught:
                async with sandbox.session(STOCK, []):
                    pass
            assert "/nowhere/python" in caught.value.message

    asyncio.run(go())


def test_a_launcher_that_dies_fails_its_sessions_and_is_replaced(server, config):
    async def go():
        async with open_sandbox(config(), {"shop": server("by_hand")}) as sandbox:
            async with sandbox.session(STOCK, ["count"]) as session:
                launcher = sandbox._backends["shop"].launcher
                assert launcher is not None and launcher._process is not None
                launcher._process.kill()
                with pytest.raises(WorldError) as caught:
                    for _ in range(100):
                        await session.call("count", {})
                        await asyncio.sleep(0.01)
                assert caught.value.kind == "server_crashed"
                assert launcher._end(None) == "it ended (killed by SIGKILL)"
            async with sandbox.session(STOCK, ["count"]) as session:
                assert await session.call("count", {}) == "1"

    asyncio.run(go())


def test_a_session_that_is_cancelled_leaves_no_process(server, config):
    async def forever(sandbox, opened):
        async with sandbox.session(STOCK, ["hang"]) as session:
            opened.set()
            await session.call("hang", {})

    async def go():
        async with open_sandbox(config(), {"shop": server("by_hand")}) as sandbox:
            opened = asyncio.Event()
            task = asyncio.create_task(forever(sandbox, opened))
            await opened.wait()
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            launcher = sandbox._backends["shop"].launcher
            assert launcher is not None
            await asyncio.wait(sandbox._backends["shop"].ending)
            assert launcher._children == {}

    asyncio.run(go())
