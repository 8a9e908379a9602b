"""A probe that is killed with -9 goes on with the same command, and nothing shows that it ever was."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tbexp.attempts import AttemptStore
from tbexp.attempts.row import digest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
PROGRAM = str(Path(__file__).parent / "data" / "killed_while_writing.py")
SEED = 5
SETTINGS = ("stages=[probe,select]",)


def rows_digest(place: Any) -> str:
    (folder,) = (place.folder / "stages" / "probe").iterdir()
    with AttemptStore(folder, read_only=True) as store:
        rows = store.rows()
        assert all(store.trajectory(row)["attempt"] == row.attempt for row in rows)
    return digest(rows)


def killed(place: Any, requests: int) -> None:
    """The command, killed when it has made so many requests more; what it had started ends with it."""
    from process_ends import all_gone, descendants

    left: set[int] = set()

    def before(number: int) -> Any:
        if number == moment:
            left.update(descendants(process.pid))
            process.kill()

    moment = place.gardener.count + requests
    place.gardener.before = before
    process = place.start(*SETTINGS)
    process.communicate(timeout=240)
    place.gardener.before = lambda number: None
    assert process.returncode == -signal.SIGKILL
    assert left and all_gone(left)


def test_killed_at_seeded_moments_the_probe_ends_as_if_unbroken(unbroken: Any, new_place: Callable[[], Any]) -> None:
    whole, *_ = unbroken
    place = new_place()
    rng = random.Random(SEED)

    for _ in range(3):  # while requests are under way
        killed(place, rng.randint(1, 25))

    for half in (0, 1):  # while a trajectory is being written, and a row
        write = 2 * rng.randint(1, 6) - 1 + half
        place_in_line = rng.uniform(0.05, 0.95)
        torn = place.run(*SETTINGS, program=(PROGRAM, "*/probe/*.jsonl", str(write), f"{place_in_line:.3f}"))
        assert torn.returncode == -signal.SIGKILL
        name = ("trajectories.jsonl", "attempts.jsonl")[half]
        (file,) = place.folder.glob(f"stages/probe/*/{name}")
        assert not file.read_bytes().endswith(b"\n")

    assert not (place.run_dir / "select").exists()
    done = place.run(*SETTINGS)
    assert done.returncode == 0, done.stderr
    assert "done before" in done.stderr
    assert place.counts() == whole.counts() and len(place.rows()) == 48
    assert rows_digest(place) == rows_digest(whole)
    assert place.selected() == whole.selected()


@pytest.mark.parametrize("reader", ["pipe", "terminal"])
def test_a_run_goes_on_when_nobody_reads_what_it_says_any_more(reader: str, new_place: Callable[[], Any]) -> None:
    place = new_place()
    ours, theirs = os.pipe() if reader == "pipe" else os.openpty()
    left = threading.Event()

    def before(number: int) -> None:
        if number == moment:
            os.close(ours)
            left.set()

    moment = place.gardener.count + 5
    place.gardener.before = before
    words = [sys.executable, "-m", "tbexp", *place.words(*SETTINGS)]
    environment = os.environ | place.environment
    # In a session of its own it gets no signal when its terminal goes, as under `disown`.
    process = subprocess.Popen(
        words, cwd=place.folder, env=environment, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    code = process.wait(timeout=240)
    place.gardener.before = lambda number: None
    assert left.is_set() and code == 0
    assert (place.run_dir / "select" / "pool.yaml").exists()
    assert "is not written any more" in (place.run_dir / "tbexp.log").read_text()
