"""What the user can fix ends with exit code 2, one message and no traceback, and nothing is lost or half written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    "a typo": (["policy.endpoint.modle=m"], ["policy.endpoint.modle", "did you mean policy.endpoint.model?"]),
    "no dataset": (["tasks.root=nowhere"], ["tasks.root", "no folder nowhere"]),
    "a band edge out of order": (["buckets.bands.medium.upper=0.3"], ["buckets.bands.medium.upper", "out of order"]),
    "an unknown stage": (["stages=[prob,select]"], ["'prob' is unknown", "did you mean probe?"]),
    "a folder below a file": (["hydra.run.dir=garden/servers/servers.yaml/run"], ["hydra.run.dir", "is a file"]),
    "a store below a file": (["store=garden/servers/servers.yaml/stages"], ["store", "is a file"]),
    "a key that is not set": (["policy.endpoint.api_key_env=NO_KEY"], ["policy.endpoint.api_key_env", "NO_KEY"]),
    "a key in the address": (
        ['policy.endpoint.base_url="http://127.0.0.1:1/v1?key=hush"'],
        ["policy.endpoint.base_url: has a query", "api_key_env"],
    ),
    "no such interpreter": (
        ["tasks.server_python=/none/python"],
        ["tasks.server_python", "/none/python is no program"],
    ),
    "no such list": (["tasks.candidates=releases/none.yaml"], ["tasks.candidates", "releases/none.yaml"]),
}
IN_THE_DATASET: dict[str, tuple[list[str], list[str]]] = {
    "no such selector": (["tasks.candidates=[garden.py:test_bean]"], ["test_bean", "garden.py"]),
    "no such file": (["tasks.candidates=[gardn.py:test_beans]"], ["gardn.py"]),
    "no such agent": (["tasks.agent=agnet"], ["agnet", "tasks.agent: no agent"]),
}
BROKEN: dict[str, tuple[str, str, list[str]]] = {
    "a scenario": ("dataset/scenario/allotment.yaml", "world_state: {garden: [", ["allotment.yaml:"]),
    "a test case": ("dataset/test_case/garden.py", '"""!\nscenario: [allotment\n"""\n', ["garden.py:"]),
    "a list wrong in three ways": (
        "releases/candidates.yaml",
        "- 5\n- garden.py:test_nothing\n- nowhere.py:test_x\n",
        ["3 problems", "5 is not", "test_nothing", "nowhere.py"],
    ),
    "a test list": ("releases/candidates.yaml", "- garden.py:test_beans\n- [", ["candidates.yaml:"]),
    "the servers": (
        "servers/servers.yaml",
        "servers: {garden: {type: mcp-process, comand: [x]}}",
        ["servers.yaml:1", "comand"],
    ),
    "a server's script": (
        "servers/servers.yaml",
        'servers: {garden: {type: mcp-process, command: ["{python}", gone.py]}}',
        ["servers.yaml:1: there is no file", "gone.py"],
    ),
    "a server that is not there": (
        "servers/servers.yaml",
        "servers: {gardens: {type: mcp-process, command: [x]}}",
        ["servers.yaml: there is no server `garden`, which", "tasks need", "did you mean gardens?"],
    ),
}


LATIN_1 = ("dataset/scenario/allotment.yaml", "dataset/agent/agent.yaml", "servers/servers.yaml")


def one_message(done: Any, parts: list[str]) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("tbexp: ") == 1 and "Traceback" not in done.stderr + done.stdout
    for part in parts:
        assert part in done.stderr


def all_whole(folder: Path) -> None:
    """No file is half written, and none is left beside its place."""
    for file in folder.rglob("*"):
        assert not file.name.endswith((".tmp", "~")) and ".yaml." not in file.name, file
        if file.suffix == ".yaml":
            yaml.safe_load(file.read_text())
        elif file.suffix == ".json":
            json.loads(file.read_text())


@pytest.fixture(scope="module")
def empty(new_place: Callable[[], Any]) -> Any:
    return new_place()


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_command_leaves_no_file_at_all(name: str, empty: Any) -> None:
    words, parts = MISTAKES[name]
    done = empty.run(*words)
    one_message(done, parts)
    assert [path.name for path in empty.folder.iterdir()] == ["garden"]
    assert empty.gardener.count == 0


@pytest.mark.parametrize("name", [*IN_THE_DATASET, *BROKEN])
def test_a_mistake_in_the_dataset_names_its_place(name: str, new_place: Callable[[], Any]) -> None:
    place = new_place()
    words: list[str] = []
    if name in BROKEN:
        file, text, parts = BROKEN[name]
        (place.garden / file).write_text(text)
    else:
        words, parts = IN_THE_DATASET[name]
    done = place.run(*words)
    one_message(done, parts)
    assert place.gardener.count == 0 and place.rows() == []
    all_whole(place.folder / "run")
    assert not (place.run_dir / "select").exists()


@pytest.mark.parametrize("file", LATIN_1)
def test_a_file_that_is_no_utf_8_is_named(file: str, new_place: Callable[[], Any]) -> None:
    place = new_place()
    (place.garden / file).write_bytes(b"name: caf\xe9\n")
    done = place.run()
    one_message(done, [file, "UTF-8"])
    assert place.rows() == []


def test_all_mistakes_are_told_at_once(empty: Any) -> None:
    done = empty.run("tasks.root=nowhere", "buckets.bands.medium.upper=0.3", "policy.endpoint.api_key_env=NO_KEY")
    one_message(done, ["3 problems", "nowhere", "out of order", "NO_KEY"])


def test_a_mistake_loses_nothing_of_an_earlier_run(new_place: Callable[[], Any]) -> None:
    place = new_place()
    settings = ["probe.attempts=3", "stages=[probe,select]"]
    assert place.run(*settings).returncode == 0
    before = {file: file.read_bytes() for file in place.folder.rglob("*") if file.is_file() and file.suffix != ".log"}
    one_message(place.run(*settings, "buckets.bands.medium.upper=0.3"), ["out of order"])
    hidden = place.folder / "hidden"
    shutil.move(place.garden, hidden)
    one_message(place.run(*settings), ["tasks.root"])
    shutil.move(hidden, place.garden)
    assert {file: file.read_bytes() for file in before} == before
