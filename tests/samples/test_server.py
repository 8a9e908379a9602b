"""The desk behind MCP, as a real process."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import anyio
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from tbexp.samples import data_root, solution
from tbexp.samples.desk import Desk
from tbexp.samples.shipped import shipped
from tbexp.samples.tools import TOOLS
from tbexp.tasks import load_tasks

ONE_OF_EACH_TOPIC = sorted({of.topic: uid for uid, of in shipped().items() if not of.refuses}.values())


def test_the_server_lists_its_tools_and_plays_the_recorded_solutions_of_each_topic() -> None:
    anyio.run(_play)


async def _play() -> None:
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "tbexp.samples.server"], env={"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    async with stdio_client(parameters) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        listed = [tool for tool in (await session.list_tools()).tools if not tool.name.startswith("__reserved__")]
        assert [(t.name, t.description, t.inputSchema) for t in listed] == [
            (t.name, t.description, t.input_schema) for t in TOOLS
        ]

        async def call(name: str, arguments: dict[str, Any]) -> str:
            return (await session.call_tool(name, arguments)).content[0].text  # type: ignore[union-attr]

        assert json.loads(await call("__reserved__init", {"config": {"boats": 1}}))["status"] == "error"
        assert json.loads(await call("get_rental", {"rental": "R1"}))["status"] == "error"
        for task in load_tasks(data_root(), "agent", ONE_OF_EACH_TOPIC):
            config = task.server_config()["rental_desk"]
            assert json.loads(await call("__reserved__init", {"config": config})) == {"status": "ok"}
            here = Desk(config["data_patch"])
            for reading in solution(task.uid):
                for made in reading.calls:
                    arguments = dict(made.arguments)
                    assert await call(made.name, arguments) == here.call(made.name, arguments)
            effects = json.loads(await call("__reserved__geteffects", {}))
            assert effects == {"changes": here.changes()} == {"changes": shipped()[task.uid].expected}
        assert await call("__reserved__teardown", {}) == "{}"


@pytest.mark.parametrize(
    "config", [{"data_patch": {"boats": []}}, {"data_patch": [1]}, {"data_patch": {"tickets": [3]}}]
)
def test_records_that_cannot_be_loaded_are_an_error_of_the_init(config: dict[str, Any]) -> None:
    from tbexp.samples.server import initialise

    assert json.loads(initialise(config))["status"] == "error"
