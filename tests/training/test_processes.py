from __future__ import annotations

import os
import subprocess
import sys
import time

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
