"""The hash of a server changes with its entry and its source, and not with the place where it stands."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tbexp.sandbox import Server, read_servers, servers_digest
from tbexp.sandbox.servers import Remote
from tbexp.sandbox.sources import server_digest

ENTRY = """
servers:
  script: {type: mcp-process, command: ["{python}", "desk.py", "--fast"]}
  module: {type: mcp-process, command: ["{python}", "-m", "till"]}
  package: {type: mcp-process, command: ["{python}", "-m", "shop.desk"], env: {LEVEL: "1"}}
  shell: {type: mcp-process, command: ["/bin/sh", "-c", "cat"]}
"""


def place(folder: Path) -> Path:
    (folder / "shop" / "data").mkdir(parents=True)
    for name in ("desk.py", "beside.py", "till.py", "shop/__init__.py", "shop/desk.py", "shop/data/rows.json"):
        (folder / name).write_text(name)
    (folder / "servers.yaml").write_text(ENTRY)
    return folder


def digests(folder: Path, python: str = sys.executable) -> dict[str, str]:
    servers = read_servers(folder / "servers.yaml", python=python)
    return {name: server_digest(server) for name, server in servers.items()}


def test_a_copy_elsewhere_is_the_same_server(tmp_path):
    one = place(tmp_path / "one")
    shutil.copytree(one, tmp_path / "other")
    (tmp_path / "other" / "shop" / "__pycache__").mkdir()
    (tmp_path / "other" / "shop" / "__pycache__" / "desk.pyc").write_text("compiled")
    assert digests(one) == digests(tmp_path / "other")


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("desk.py", {"script"}),
        ("beside.py", {"script"}),
        ("till.py", {"script", "module"}),
        ("shop/__init__.py", {"package"}),
        ("shop/desk.py", {"package"}),
        ("shop/data/rows.json", {"package"}),
    ],
)
def test_a_changed_source_file_is_another_server(tmp_path, file, changes):
    folder = place(tmp_path / "servers")
    before = digests(folder)
    (folder / file).write_text("changed")
    after = digests(folder)
    assert {name for name in before if before[name] != after[name]} == changes


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [("--fast", "--slow", "script"), ('"1"', '"2"', "package"), ("cat", "sort", "shell"), ("till", "beside", "module")],
)
def test_a_changed_entry_is_another_server(tmp_path, old, new, changes):
    folder = place(tmp_path / "servers")
    before = digests(folder)
    (folder / "servers.yaml").write_text(ENTRY.replace(old, new))
    after = digests(folder)
    assert {name for name in before if before[name] != after[name]} == {changes}


def test_only_the_servers_that_are_needed_count(tmp_path):
    one, other = Server("one", ("/bin/cat",)), Server("other", ("/bin/sort",))
    assert servers_digest({"one": one, "other": other}, ["one"]) == servers_digest({"one": one}, ["one"])
    assert servers_digest({"one": one}, ["one"]) != servers_digest({"one": one}, ["one", "other"])
    assert server_digest(Server("far", remote=Remote("http://a"))) != server_digest(
        Server("far", remote=Remote("http://b"))
    )


def test_an_interpreter_that_is_not_there_is_told_when_it_is_started_and_not_here():
    assert server_digest(Server("lost", ("/nowhere/python", "-m", "till"), {}, None))
