from __future__ import annotations

import asyncio
import json
import logging
from types import SimpleNamespace

import pytest

from tbexp.errors import UserError, WorldError
from tbexp.sandbox import open_sandbox
from tbexp.sandbox.session import cut, plain_schema

STOCK = {"shop": {"stock": {"TP-1": 2}}}


@pytest.mark.parametrize(("kind", "level"), [("prefork", "ready"), ("process", "exec")])
def test_a_session_is_told_its_config_called_and_asked_for_its_effects(server, config, kind, level):
    async def go():
        async with open_sandbox(config(kind), {"shop": server("shop")}) as sandbox:
            async with sandbox.session(STOCK, ["say", "restock"]) as session:
                assert list(session.tools) == ["say", "restock"]
                assert session.init_result == {"shop": {"session": session.id, "shelves": 1}}
                answer = await session.call("restock", {"sku": "TP-1", "n": 5})
                assert json.loads(answer) == {"sku": "TP-1", "added": 5, "shelf": "front"}
                assert await session.effects() == {"shop": {"stock": {"TP-1": 7}}}
            assert sandbox.levels() == {"shop": level}

    asyncio.run(go())


def test_sessions_share_no_state_and_draw_no_equal_numbers(in_sandbox):
    async def one(sandbox, n):
        async with sandbox.session({"shop": {"stock": {"TP-1": n}}}, ["restock", "chance"]) as session:
            await session.call("restock", {"sku": "TP-1", "n": 1})
            drawn = json.loads(await session.call("chance", {}))
            assert await session.effects() == {"shop": {"stock": {"TP-1": n + 1}}}
            return drawn

    async def go(sandbox):
        drawn = await asyncio.gather(*(one(sandbox, n) for n in range(24)))
        for values in zip(*drawn, strict=True):
            assert len(set(values)) == 24

    in_sandbox(go)


def test_at_most_so_many_sessions_live_at_once(server, config):
    live = most = 0
    full = asyncio.Event()

    async def one(sandbox):
        nonlocal live, most
        async with sandbox.session(STOCK, []):
            live += 1
            most = max(most, live)
            if live == 3:
                full.set()
            await full.wait()
            await asyncio.sleep(0.02)
            live -= 1

    async def go():
        async with open_sandbox(config(max_sessions=3), {"shop": server("by_hand")}) as sandbox:
            await asyncio.gather(*(one(sandbox) for _ in range(9)))

    asyncio.run(go())
    assert most == 3


def test_what_the_agent_does_wrong_comes_back_as_text(in_sandbox):
    async def go(sandbox):
        async with sandbox.session(STOCK, ["restock"]) as session:
            assert "no article TP-9" in await session.call("restock", {"sku": "TP-9", "n": 1})
            assert "n" in await session.call("restock", {"sku": "TP-1", "n": "many"})
            assert await session.effects() == {"shop": {"stock": {"TP-1": 2}}}
            with pytest.raises(KeyError):
                await session.call("say", {"text": "hidden"})
            assert await session.server_tool("shop", "say", {"text": "hidden"}) == "hidden"

    in_sandbox(go)


def test_a_long_result_is_cut_between_characters_and_says_so(in_sandbox):
    async def go(sandbox):
        async with sandbox.session(STOCK, ["say"]) as session:
            assert await session.call("say", {"text": "ä€𝄞", "times": 33}) == "ä€𝄞" * 33
            answer = await session.call("say", {"text": "ä€𝄞", "times": 40})
            assert answer == "ä€𝄞" * 33 + "ä" + "\n[cut here: 20 of 120 characters are not shown]"
            big = await session.call("say", {"text": "x", "times": 5_000_000})
            assert big.endswith("[cut here: 4999900 of 5000000 characters are not shown]")

    in_sandbox(go)
    assert cut("abc", 3) == "abc"


def test_the_scenario_describes_tools_anew_and_the_later_server_wins_equal_names(in_sandbox, caplog):
    override = SimpleNamespace(
        name="say", override_description="Speak.", override_arg_description={"text": "The words.", "volume": "Loud?"}
    )

    async def go(sandbox):
        async with sandbox.session({**STOCK, "cafe": {}}, [override, "restock"]) as session:
            assert list(session.tools) == ["say", "restock"]
            assert session.tools["say"].description == "Speak."
            properties = session.tools["say"].input_schema["properties"]
            assert properties["text"] == {"type": "string", "description": "The words."}
            assert session.tools["restock"].description == "Put pieces on a shelf."
            assert await session.call("say", {"text": "hi"}) == "cafe: hi"
            assert session.init_result["cafe"] == {}
            assert (await session.effects())["cafe"] == {}
        async with sandbox.session({"cafe": {}, **STOCK}, ["say"]) as session:
            assert await session.call("say", {"text": "hi"}) == "hi"

    with caplog.at_level(logging.WARNING):
        in_sandbox(go)
    assert "no argument volume" in caplog.text


def test_servers_and_tools_that_do_not_exist_are_the_users_to_mend(in_sandbox):
    async def go(sandbox):
        with pytest.raises(UserError, match=r"`bakery`.*servers.yaml has: shop"):
            async with sandbox.session({"bakery": {}}, []):
                pass
        with pytest.raises(UserError, match=r"(?s)`bake`.*`boil`"):
            async with sandbox.session({"by_hand": {}}, ["bake", "count", "boil"]):
                pass

    in_sandbox(go)


def test_teardown_runs_once_per_session_and_its_failure_is_logged(server, config, tmp_path, caplog):
    closed = tmp_path / "closed"
    shop = server("shop", SHOP_TEARDOWN=str(closed), SHOP_TEARDOWN_FAILS="1")

    async def go():
        async with open_sandbox(config(), {"shop": shop}) as sandbox:
            for _ in range(2):
                async with sandbox.session(STOCK, []):
                    pass
            with pytest.raises(ZeroDivisionError):
                async with sandbox.session(STOCK, []):
                    raise ZeroDivisionError

    with caplog.at_level(logging.WARNING):
        asyncio.run(go())
    assert closed.read_text() == "closed\n" * 3
    assert caplog.text.count("the shutter is stuck") == 3


@pytest.mark.parametrize(("kind", "name"), [("prefork", "shop"), ("process", "by_hand")])
def test_a_server_sees_only_the_allowed_environment(server, config, monkeypatch, kind, name):
    monkeypatch.setenv("PLANTED_KEY", "sk-planted")
    monkeypatch.setenv("SHOP_CURRENCY", "EUR")
    monkeypatch.setenv("TZ", "UTC")

    async def go():
        settings = config(kind, allow_env=["SHOP_CURRENCY"])
        async with (
            open_sandbox(settings, {"shop": server(name, OWN="yes")}) as sandbox,
            sandbox.session(STOCK, ["environment"]) as session,
        ):
            return json.loads(await session.call("environment", {}))

    seen = asyncio.run(go())
    assert seen["SHOP_CURRENCY"] == "EUR" and seen["OWN"] == "yes" and seen["TZ"] == "UTC"
    assert "PLANTED_KEY" not in seen


def test_schemas_are_plain_but_keep_parameters_called_title():
    schema = {
        "type": "object",
        "title": "Arguments",
        "$defs": {"Size": {"title": "Size", "enum": ["s", "l"], "type": "string"}},
        "properties": {
            "title": {"type": "string", "title": "Title"},
            "size": {"$ref": "#/$defs/Size", "description": "How big."},
            "sizes": {"type": "array", "items": {"$ref": "#/$defs/Size"}, "default": {"title": "kept"}},
        },
    }
    assert plain_schema(schema) == {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "size": {"enum": ["s", "l"], "type": "string", "description": "How big."},
            "sizes": {"type": "array", "items": {"enum": ["s", "l"], "type": "string"}, "default": {"title": "kept"}},
        },
    }


def test_a_recursive_schema_keeps_its_definitions():
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    plain = plain_schema({"type": "object", "properties": {"head": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}})
    assert plain["$defs"] == {"Node": node}
    assert plain["properties"]["head"] == node


def test_effects_that_are_no_effects_are_a_system_error(in_sandbox):
    async def go(sandbox):
        for sku in ("unreadable", "broken"):
            async with sandbox.session({"shop": {"stock": {sku: 1}}}, []) as session:
                with pytest.raises(WorldError) as caught:
                    await session.effects()
                assert caught.value.kind == "effects_unreadable"

    in_sandbox(go)
