from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import threading

import pytest

from tbexp.pipeline.progress import Progress, clock

SCRIPT = """
from tbexp.pipeline.progress import Progress
with Progress() as progress:
    bar = progress.stage("probe", 8, "attempts")
    for n in range(8):
        bar.advance(passed="37%", system_errors=0)
    bar.done("kept [3] tasks")
    progress.table("Summary", ["stage", "time"], [["probe [x]", 12], ["select", 0.5]])
"""


def test_a_log_file_gets_a_line_at_the_start_and_one_at_the_end_without_control_characters() -> None:
    stream = io.StringIO()
    with Progress(stream) as progress:
        bar = progress.stage("probe", 512, "attempts", done=12)
        for _ in range(500):
            bar.advance(passed="37%", system_errors=0)
        bar.done("64 \x1b[31mtasks")
        bar.done("again")
    text = stream.getvalue()
    assert text.splitlines()[0] == "probe: 512 attempts, 12 done before"
    assert re.fullmatch(
        r"probe: done, 512/512 attempts, \d+:\d\d, passed 37%, system errors 0, 64  \[31mtasks", text.splitlines()[1]
    )
    assert len(text.splitlines()) == 2
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)


def test_a_long_stage_says_now_and_then_how_far_it_is_in_a_log_file() -> None:
    stream = io.StringIO()
    with Progress(stream, quiet_seconds=0.0) as progress:
        bar = progress.stage("train", 20, "steps")
        bar.update(4)
        bar.update(5, reward=0.2512)
    assert re.fullmatch(r"train: 5/20 steps, [\d,]+/s, 0:00 left, reward 0\.251", stream.getvalue().splitlines()[2])


def test_the_time_left_does_not_count_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now = io.StringIO(), [0.0]
    monkeypatch.setattr("tbexp.pipeline.progress.time.monotonic", lambda: now[0])
    with Progress(stream, quiet_seconds=0.0) as progress:
        bar = progress.stage("train", 20, "steps")
        now[0] = 100.0
        bar.update(1)
        now[0] = 104.0
        bar.update(3)
        assert bar.counts() == "3/20 steps, 30.0/min, 0:34 left"
        bar.done()
    lines = stream.getvalue().splitlines()
    assert lines[1] == "train: 1/20 steps" and lines[-1] == "train: done, 3/20 steps, 1:44"


def test_the_time_left_follows_the_units_finished_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tbexp.pipeline.progress.time.monotonic", lambda: now[0])
    with Progress(io.StringIO()) as progress:
        follows = progress.stage("train", 100, "updates", recent=10)
        of_all = progress.stage("train", 100, "updates")
        for step in range(1, 51):
            now[0] += 10.0 if step <= 30 else 40.0 if step % 10 else 100.0  # refills, and a validation now and then
            for bar in (follows, of_all):
                bar.update(step, phase="update")
        now[0] += 20.0
        follows.update(50, phase="generation")  # a part of an update is none
    assert follows.counts() == f"50/100 updates, 1.3/min, {clock(50 * 46.0)} left"
    assert of_all.counts().endswith(f"{clock(50 * (29 * 10 + 18 * 40 + 2 * 100 + 20) / 49)} left")


def test_a_stage_of_unknown_size_has_counts_and_a_rate() -> None:
    stream = io.StringIO()
    with Progress(stream, quiet_seconds=0.0) as progress:
        progress.stage("train", None, "rollouts").advance(3)
    assert stream.getvalue().splitlines()[0] == "train: rollouts"
    assert "left" not in stream.getvalue()


def test_bars_can_be_moved_from_many_threads() -> None:
    stream = io.StringIO()
    with Progress(stream, quiet_seconds=0.0) as progress:
        bar = progress.stage("probe", 4000, "attempts")
        threads = [threading.Thread(target=lambda: [bar.advance() for _ in range(500)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert bar.count == 4000
    assert len(stream.getvalue().splitlines()) == 4001


def test_the_table_is_plain_when_piped() -> None:
    stream = io.StringIO()
    with Progress(stream) as progress:
        progress.table("Summary", ["policy", "pass@1"], [["base", "9.5"], ["trained", "60.4%"]])
    assert stream.getvalue() == "Summary\npolicy   pass@1\n-------  ------\nbase        9.5\ntrained   60.4%\n"


def test_a_terminal_gets_a_live_bar_and_a_drawn_table() -> None:
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stderr=slave, stdout=slave, env=environment)
    os.close(slave)
    shown = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(master)
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "\x1b[" in shown.decode()
    assert "8/8 attempts" in text
    assert "passed 37%, system errors 0, kept [3] tasks" in text
    assert "probe [x]" in text
    assert "┃" in text


def test_pipes_get_no_control_characters_and_the_table_goes_to_stdout() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", result.stderr + result.stdout)
    assert result.stdout.startswith("Summary\nstage ") and result.stderr.startswith("probe: 8 attempts\n")


@pytest.mark.parametrize(("seconds", "text"), [(7.4, "0:07"), (750, "12:30"), (11100, "3:05:00")])
def test_times_are_read_at_a_glance(seconds: float, text: str) -> None:
    assert clock(seconds) == text
