from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tbexp.config import whole
from tbexp.config.whole import remove_left_over, write_whole

WRITER = """
import os, sys
from pathlib import Path
from tbexp.config.whole import write_whole

def tell_and_wait(handle):
    print("written", flush=True)
    sys.stdin.read()

os.fsync = tell_and_wait
write_whole(Path(sys.argv[1]), "x" * 100_000)
"""


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "_swept", set())


def writing(file: Path) -> subprocess.Popen[str]:
    """A process in the middle of a write."""
    words = [sys.executable, "-c", WRITER, str(file)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "written\n"
    return process


def unfinished(folder: Path) -> list[str]:
    return sorted(path.name.split(".")[1] for path in folder.glob(".*"))


def test_what_a_killed_writer_left_is_removed_by_the_next_write_and_a_live_one_s_is_not(tmp_path: Path) -> None:
    killed, live = writing(tmp_path / "killed.json"), writing(tmp_path / "live.json")
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert unfinished(tmp_path) == ["killed", "live"]
        write_whole(tmp_path / "other.json", "{}")
        assert unfinished(tmp_path) == ["live"]
        live.communicate("")
        assert live.returncode == 0
    finally:
        for process in (killed, live):
            process.kill()
            process.communicate()
    assert (tmp_path / "live.json").read_text() == "x" * 100_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["live.json", "other.json"]


def test_what_another_machine_is_writing_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / ".a.json.x1y2.some-other-node.tmp"
    theirs.write_text("half")
    (tmp_path / ".gitignore").write_text("*.tmp")
    write_whole(tmp_path / "a.json", "{}")
    assert theirs.exists() and (tmp_path / ".gitignore").exists()


def test_writers_are_not_disturbed_by_those_who_clear_up(tmp_path: Path) -> None:
    over = threading.Event()

    def clear_up() -> None:
        while not over.is_set():
            remove_left_over(tmp_path)

    clearing = [threading.Thread(target=clear_up) for _ in range(2)]
    for thread in clearing:
        thread.start()
    for n in range(200):
        write_whole(tmp_path / "a.json", str(n))
        assert (tmp_path / "a.json").read_text() == str(n)
    over.set()
    for thread in clearing:
        thread.join()
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises(OSError):
        write_whole(tmp_path / "a.json", "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
