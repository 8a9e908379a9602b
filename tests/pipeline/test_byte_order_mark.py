"""A user's file that begins with the mark of UTF-8, as editors and exports write it, is read as if it had none."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tbexp.attempts import read_counts, read_rows
from tbexp.config.secrets import read_secrets
from tbexp.sandbox import read_servers
from tbexp.selection import read_exclusions
from tbexp.serving.recordings import read_recordings, read_tools
from tbexp.tasks import load_tasks, read_selectors
from tbexp.tasks.dump import read_rows as read_tasks
from tbexp.tasks.dump import task_row

BOM = b"\xef\xbb\xbf"
GARDEN = Path(__file__).parents[1] / "integration" / "data" / "garden"
ROWS = "".join(json.dumps({"uid": f"t{n}", "test_result": {"result": n > 0}}) + "\n" for n in range(3))
TASKS = "".join(json.dumps(task_row(task)) + "\n" for task in load_tasks(GARDEN, "agent"))
SERVERS = (GARDEN / "servers/servers.yaml").read_text().replace("garden_server", str(GARDEN / "servers/garden_server"))
RECORDING = json.dumps({"output": "Hello."}) + "\n"
TOOLS = json.dumps([{"name": "look", "parameters": {"type": "object", "properties": {}}}])


def recordings(file: Path) -> Any:
    return read_recordings([file], model="m", format="hermes", tools={})


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (ROWS, lambda file: read_rows([file])),
        (ROWS, lambda file: read_counts([file]).as_dict()),
        ("- garden.py:test_beans\n", read_selectors),
        ("[t1, t2]\n", read_exclusions),
        ('{"uids": ["t1"]}\n', read_exclusions),
        ("NAME=value\n", read_secrets),
        (SERVERS, lambda file: read_servers(file, python=sys.executable)),
        (TASKS, read_tasks),
        (RECORDING, recordings),
        (TOOLS, read_tools),
    ],
    ids=["rows", "counts", "list", "yaml", "json", "secrets", "servers", "tasks", "recordings", "tools"],
)
def test_a_file_says_the_same_with_a_mark_at_its_start(tmp_path: Path, text: str, read: Callable[[Path], Any]) -> None:
    file = tmp_path / "file"
    file.touch(0o600)
    file.write_text(text)
    expected = read(file)
    assert expected
    file.write_bytes(BOM + text.encode())
    assert read(file) == expected


def test_a_dataset_whose_files_all_begin_with_a_mark_is_the_same(tmp_path: Path) -> None:
    shutil.copytree(GARDEN, tmp_path / "garden")
    for file in (tmp_path / "garden" / "dataset").rglob("*.*"):
        file.write_bytes(BOM + file.read_bytes())
    marked, plain = (load_tasks(root, "agent") for root in (tmp_path / "garden", GARDEN))
    assert [task.content_hash() for task in marked] == [task.content_hash() for task in plain]
    assert [task.test_code for task in marked] == [task.test_code for task in plain]
