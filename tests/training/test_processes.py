from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tbexp.training import processes
from tbexp.training.warm_workers import worker_call


def started(mark: str) -> subprocess.Popen[bytes]:
    sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    process = subprocess.Popen(
        [sys.executable, "-c", sleeper], env=os.environ | {processes.MARK: mark}, start_new_session=True
    )
    while process.pid not in processes.marked(mark):
        time.sleep(0.01)
    return process


def test_only_processes_with_the_mark_are_ended() -> None:
    ours, theirs = started("one"), started("another")
    try:
        assert processes.end("one") == [ours.pid]
        assert processes.marked("one") == []
        assert theirs.poll() is None
    finally:
        for process in (ours, theirs):
            process.kill()
            process.wait()


def test_a_process_ends_with_its_parent_also_before_it_has_imported_anything() -> None:
    program = (
        "import os, subprocess, sys, time\n"
        "from tbexp.training import processes\n"
        "here = os.getpid()\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True,\n"
        "                         preexec_fn=lambda: processes.die_with(here))\n"
        "print(child.pid, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(child, 0)
    parent.kill()
    parent.wait()
    end = time.monotonic() + 20
    while alive(child) and time.monotonic() < end:
        time.sleep(0.01)
    assert not alive(child)


WATCHED = """
import os, signal, sys, time
from pathlib import Path
from tbexp.training import processes
from tbexp.training.driver import leave_nothing_behind
folder = Path(sys.argv[1])
leave_nothing_behind(folder)
while len(processes.marked(os.environ[processes.MARK])) < 1:
    time.sleep(0.01)
print("ready", flush=True)
time.sleep(600)
"""


def test_the_folder_of_a_training_goes_when_all_its_processes_are_told_to_end_at_once(tmp_path: Path) -> None:
    mark, folder = f"test{os.getpid()}", tmp_path / "temp"
    folder.mkdir()
    (folder / "token").write_text("the token")
    environment = os.environ | {processes.MARK: mark}
    process = subprocess.Popen([sys.executable, "-c", WATCHED, str(folder)], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    for pid in processes.marked(mark):  # as Slurm does
        os.kill(pid, signal.SIGTERM)
    process.wait()
    nothing_stays(folder, mark)


def nothing_stays(folder: Path, mark: str) -> None:
    end = time.monotonic() + 60
    while (folder.exists() or processes.marked(mark)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not folder.exists() and processes.marked(mark) == []


ORPHANED = """
import os, signal, sys, time
from pathlib import Path
from tbexp.training.driver import leave_nothing_behind
leave_nothing_behind(Path(sys.argv[1]))
if os.fork() == 0:  # as workers are, with all that is open here; it outlives its parent and hears nothing
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
print("ready", flush=True)
time.sleep(600)
"""


def test_workers_that_outlive_a_killed_training_are_ended_though_they_hold_what_was_open_in_it(tmp_path: Path) -> None:
    mark, folder = f"test{os.getpid()}", tmp_path / "temp"
    folder.mkdir()
    environment = os.environ | {processes.MARK: mark}
    process = subprocess.Popen([sys.executable, "-c", ORPHANED, str(folder)], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    try:
        process.kill()
        process.wait()
        nothing_stays(folder, mark)
    finally:
        processes.end(mark)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_forked_worker_gets_what_rays_own_start_would_have_given_it() -> None:
    order = {
        "argv": [
            "-u",
            "/ray/setup_worker.py",
            '--serialized-runtime-env-context={"env_vars": {"RANK": "0"}}',
            "/ray/default_worker.py",
            "--raylet-name=r",
            "--language=PYTHON",
        ],
        "env": {"A": "1", "RANK": "-1"},
        "cwd": "/",
    }
    assert worker_call(order) == ({"A": "1", "RANK": "0"}, ["/ray/default_worker.py", "--raylet-name=r"])


@pytest.mark.parametrize(("name", "share"), [(sys.executable, 1), ("ray::Agent", 2)])
def test_a_process_that_wrote_over_its_environment_is_found_by_its_open_files(name: str, share: int) -> None:
    mark = f"test{os.getpid()}"
    folder = processes.temp_folder(mark)
    folder.mkdir()
    program = (
        "import ctypes, sys, time\n"
        "log = open(sys.argv[1] + '/log', 'w')\n"
        "start, end = map(int, open('/proc/self/stat').read().rsplit(')', 1)[1].split()[47:49])\n"
        "ctypes.memset(start, 0, (end - start) // int(sys.argv[2]))\n"
        "print('blank', flush=True); time.sleep(60)\n"
    )
    command = [name, "-c", program, str(folder), str(share)]
    process = subprocess.Popen(command, executable=sys.executable, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"blank\n"
        assert processes.marked(mark) == [process.pid]
        assert processes.marked(mark + "other") == []
        assert processes.end(mark) == [process.pid]
        assert process.wait() == -9
    finally:
        process.kill()
        shutil.rmtree(folder)


def test_a_folder_that_another_training_is_removing_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "TEMP", tmp_path)
    folder = processes.temp_folder("one")
    folder.mkdir()
    (folder / processes.OWNER).touch()
    holds = "import fcntl, sys, time; file = open(sys.argv[1], 'r+'); fcntl.flock(file, fcntl.LOCK_EX); "
    holds += "print('held', flush=True); time.sleep(1.0)"
    cleaner = subprocess.Popen(
        [sys.executable, "-c", holds, str(folder / processes.OWNER)], stdout=subprocess.PIPE, text=True
    )
    assert cleaner.stdout is not None and cleaner.stdout.readline() == "held\n"
    with processes.held(folder):
        assert cleaner.wait() == 0  # it had ended before: what it killed was not ours
        processes.remove_abandoned()
        assert (folder / processes.OWNER).exists()
    assert not folder.exists()


def test_a_process_that_is_just_being_executed_is_looked_at_again(tmp_path: Path) -> None:
    (tmp_path / "exe").symlink_to(sys.executable)
    for name in ("environ", "cmdline"):
        (tmp_path / name).write_bytes(b"")
    timer = threading.Timer(0.004, (tmp_path / "environ").write_bytes, [b"A=1\0"])
    timer.start()
    assert processes._environment(tmp_path) == b"A=1\0"
    timer.join()


def test_a_process_without_an_environment_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waited"))
    (tmp_path / "environ").write_bytes(b"")
    (tmp_path / "cmdline").write_bytes(b"")
    with pytest.raises(OSError):  # a kernel's thread has no executable
        processes._environment(tmp_path)
    (tmp_path / "cmdline").write_bytes(b"/bin/true\0")
    assert processes._environment(tmp_path) == b""
