"""A campaign killed with -9 at random and gone on with: `python tests/benchmarks/killed_attempts.py [--kills 5]`.

A scripted policy passes each task at a rate of its own: whether an attempt plays its recorded solution depends on the
attempt's seed alone. The same campaign (507 tasks x 20 by default) is made twice, in processes of their own: once
unbroken, once killed with SIGKILL whenever it has stored so many attempts more, at moments that `--seed` draws. Shown
and compared is the aggregate of both, without its times, and the verdict of each single attempt. Exit status 1 when
anything differs, an attempt is missing or there twice, or a process outlives a kill.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from many_attempts import Watching, played, sample
from process_ends import all_gone, descendants

from tbexp.attempts import AttemptStore
from tbexp.attempts.row import digest
from tbexp.config.schema import Evaluation
from tbexp.evaluation import summarise
from tbexp.interpret.messages import Message, Reading

PATIENCE = 1800.0  # seconds for a campaign to store the next attempt or to end, on however busy a machine


class Sometimes(Watching):
    """Plays a task's solution as often as the task's own rate says, and otherwise claims to be done."""

    def play(self, messages: Sequence[Message], seed: int) -> Sequence[Reading]:
        uid = self.by_query[messages[-1].content]
        rate = min(1.0, max(0.0, 1.75 * zlib.crc32(uid.encode()) / 2**32 - 0.5))
        solves = random.Random(seed).random() < rate
        return super().play(messages, seed) if solves else [Reading(text="Done. <DONE>")]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a campaign came to. rows: the stable part of every row, in one hash."""

    figures: dict[str, Any]
    rows: str
    stored: int  # rows in the files, whatever they say


def stored(folder: Path) -> int:
    """Whole lines of rows so far."""
    file = folder / "attempts.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def started(folder: Path, args: argparse.Namespace) -> subprocess.Popen[bytes]:
    words = [f"--{name}={getattr(args, name.replace('-', '_'))}" for name in ("tasks", "attempts", "at-once")]
    return subprocess.Popen([sys.executable, __file__, *words, f"--into={folder}"])


def ended(process: subprocess.Popen[bytes]) -> None:
    if process.wait(timeout=PATIENCE) != 0:
        raise SystemExit(f"the campaign ended with {process.returncode}")


def killed(folder: Path, args: argparse.Namespace, at: int, rng: random.Random) -> bool:
    """Starts the campaign and kills it when `at` attempts are stored and a moment has gone by; whether all that it had
    started ends with it.
    """
    process = started(folder, args)
    deadline = time.monotonic() + PATIENCE
    while stored(folder) < at and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(rng.uniform(0.0, 0.05))
    left = descendants(process.pid) if process.poll() is None else set()
    process.kill()
    if process.wait() != -signal.SIGKILL:
        raise SystemExit(f"it ended before {at} attempts were stored")
    torn = "" if (folder / "attempts.jsonl").read_bytes().endswith(b"\n") else "; the last row is torn"
    gone = all_gone(left)
    below = f"{len(left)} processes below it" + ("" if gone else ", of which some are left")
    print(f"  killed at {stored(folder):6} of {args.tasks * args.attempts} attempts, with {below}{torn}", flush=True)
    return gone


def outcome(folder: Path, args: argparse.Namespace) -> Outcome:
    """The figures without times, as an evaluation tells them."""
    tasks = sample(args.tasks)
    with AttemptStore(folder, read_only=True) as store:
        rows, every = store.rows(), len(store.history())
        for row in rows[:: max(1, len(rows) // 200)]:
            trajectory = store.trajectory(row)
            assert trajectory is not None and trajectory["attempt"] == row.attempt
    settings = Evaluation(name="killed", bootstrap=1000)
    found = summarise(
        {"base": rows}, attempts=args.attempts, tasks={task.uid: task.domain for task in tasks}, settings=settings
    )["policies"]["base"]
    del found["attempt_seconds"]
    return Outcome(found, digest(rows), every)


def told(found: Outcome) -> str:
    figures = found.figures
    at_1, every = figures["pass_at_1"], figures["observed_all_k"]
    return (
        f"{found.figures['clean_attempts']} attempts with a verdict in {found.stored} rows, pass@1 {at_1['value']:.4%} "
        f"[{at_1['low']:.4%}, {at_1['high']:.4%}], passed every time {every['tasks']} of {figures['tasks']} tasks, "
        f"rows {found.rows[:12]}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=507)
    parser.add_argument("--attempts", type=int, default=20)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--into", type=Path, help="make the campaign in this folder, and nothing else")
    args = parser.parse_args()
    tasks = sample(args.tasks)
    if args.into is not None:
        errors = played(Sometimes(tasks, ()), tasks, args.attempts, args.at_once, args.into)
        return 1 if errors else 0
    rng, total = random.Random(args.seed), args.tasks * args.attempts
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        whole, broken = Path(folder, "whole"), Path(folder, "broken")
        ended(started(whole, args))
        seconds = time.perf_counter() - start
        print(f"unbroken: {total} attempts in {seconds:.0f} s", flush=True)
        room = max(1, total - 2 * args.at_once)  # so that no kill comes after the end
        gone = [killed(broken, args, at, rng) for at in sorted(rng.sample(range(1, room + 1), args.kills))]
        ended(started(broken, args))
        one, other = outcome(whole, args), outcome(broken, args)
    print(f"unbroken                    {told(one)}\nkilled {args.kills} times and resumed  {told(other)}")
    same = one.figures == other.figures and one.rows == other.rows
    print(f"{'the same aggregate and the same rows' if same else 'THEY DIFFER'}; {time.perf_counter() - start:.0f} s")
    complete = one.figures["coverage"]["complete"] and one.stored == other.stored == total
    return 0 if same and complete and all(gone) else 1


if __name__ == "__main__":
    sys.exit(main())
