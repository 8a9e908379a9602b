"""What a run reads before it makes anything: all mistakes in it at once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder
from tbexp.config.schema import Config
from tbexp.pipeline.inputs import Inputs, problems_of
from tbexp.tasks import load_tasks
from tbexp.tasks.dump import task_row

GARDEN = Path(__file__).parents[1] / "integration" / "data" / "garden"
TEST = 'def test_more(x, judge{}):\n    """! {{{}: Grow more., scenario: allotment, init: {{gardn: {{}}}}}}"""\n'
SKIPPED = 'def test_not(x, judge):\n    """! {query: q, scenario: allotment, tags: [skip], init: {shed: {}}}"""\n'

with opened(conf_folder()) as compose:
    SHIPPED = plain(compose(["tasks=folder", "tasks.root=X", "stages=[probe]"]))


@pytest.fixture
def garden(tmp_path: Path) -> Path:
    shutil.copytree(GARDEN, tmp_path / "garden")
    return tmp_path / "garden"


def found(root: Path, **tasks: object) -> list[str]:
    config = Config.model_validate({**SHIPPED, "tasks": {**SHIPPED["tasks"], "root": str(root), **tasks}})
    return [problem.short for problem in problems_of(config, Inputs())]


def test_a_dataset_without_a_mistake_has_none(garden: Path) -> None:
    assert found(garden) == []


@pytest.mark.parametrize("servers", ["right", "wrong"])
@pytest.mark.parametrize("key", ["query", "qery"])
def test_a_server_that_is_not_there_is_told_together_with_all_else(garden: Path, servers: str, key: str) -> None:
    (garden / "dataset/test_case/more.py").write_text(TEST.format(", clok", key) + SKIPPED)
    file = garden / "servers/servers.yaml"
    if servers == "wrong":
        file.write_text(file.read_text().replace("command", "comand"))
    told = "\n".join(found(garden))
    assert "test test_more asks for the fixture clok" in told
    assert f"{file}: there is no server `gardn`, which more.py:test_more needs" in told
    assert ("unknown key qery" in told) == (key == "qery")
    assert ("unknown key `comand`" in told) == (servers == "wrong")
    assert "shed" not in told and "`garden`" not in told.replace("server `garden` needs", "")


def test_rows_find_their_servers_beside_their_file_and_are_told_of_those_that_are_not_there(garden: Path) -> None:
    rows = garden / "rows.jsonl"
    tasks = [task_row(task) for task in load_tasks(garden, "agent")]
    rows.write_text("".join(json.dumps(row) + "\n" for row in tasks))
    assert found(rows) == []
    tasks[0] |= {"init": {"shed": {}}, "query": 7}
    rows.write_text("".join(json.dumps(row) + "\n" for row in tasks))
    wrong, server = found(rows)
    assert "query must be a text" in wrong
    assert server == f"{garden / 'servers/servers.yaml'}: there is no server `shed`, which {tasks[0]['uid']} needs"
    assert len(found(rows, candidates=[tasks[1]["uid"]])) == 1


def test_a_file_without_rows_is_one_mistake(garden: Path) -> None:
    (garden / "rows.jsonl").touch()
    assert found(garden / "rows.jsonl") == [f"{garden / 'rows.jsonl'}: no task is here"]
