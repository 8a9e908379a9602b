"""How long a sweep of twelve thresholds on an existing probe takes: `python tests/benchmarks/bench_sweep.py`.

Prints, for a sweep on a fresh MLflow database, for the same command again, and for eight single jobs started at one
moment on a fresh database, the seconds of wall time and of the processes (the machine may be busy), and of the sweeps
where they go.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RARELY, OFTEN = "buckets.bands.rarely.upper", "buckets.bands.often.upper"
TWELVE = ["-m", f"{RARELY}=0.05,0.08,0.12,0.15", f"{OFTEN}=0.85,0.9,0.95"]
ROOT = Path(__file__).resolve().parents[2]


def write_rows(file: Path, tasks: int) -> None:
    draw = np.random.default_rng(1)
    rates = draw.beta(0.5, 0.5, tasks)
    with file.open("w") as out:
        for task, rate in enumerate(rates.tolist()):
            for attempt, passed in enumerate((draw.random(8) < rate).tolist()):
                row = {"uid": f"desk_{task // 25}.py:test_{task}", "attempt": attempt, "passed": passed}
                out.write(json.dumps({**row, "system_error": None}) + "\n")


def started(folder: Path, *program: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, *program], cwd=folder, env=environment, text=True, stderr=subprocess.PIPE)


def timed(folder: Path, programs: list[list[str]]) -> tuple[float, float, list[str]]:
    """Wall seconds, seconds of the processes, and what each wrote to stderr; they start at one moment."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    processes = [started(folder, *program) for program in programs]
    said = [process.communicate()[1] for process in processes]
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if any(process.returncode for process in processes):
        raise SystemExit("\n".join(said))
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, said


def parts(words: list[str]) -> None:
    """Runs tbexp here and writes the seconds of its parts as the last line of stderr."""
    origin = time.perf_counter()
    from tbexp import app
    from tbexp.tracking.run import Run

    spent: dict[str, float] = {}

    def clocked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **more)
            finally:
                spent[name] = spent.get(name, 0.0) + time.perf_counter() - start

        return call

    patched: Any = app
    patched.checked = clocked("compose and check the jobs", app.checked)
    patched.readable = clocked("read the rows", app.readable)
    patched.in_hydra = clocked("jobs", app.in_hydra)
    run: Any = Run
    run.run_id = property(clocked("open MLflow (imports, migration)", Run.run_id.fget))  # type: ignore[arg-type]
    code = app.main(words)
    total = time.perf_counter() - origin
    rest = total - sum(spent.values())
    sys.stderr.write("\n" + json.dumps({**spent, "rest (imports, tables, end of the parent run)": rest}) + "\n")
    raise SystemExit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=500)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder / "rows.jsonl", args.tasks)
        common = ["stages=[select]", "probe.rows=[rows.jsonl]"]
        for what in ("12 jobs, fresh database", "the same again"):
            wall, cpu, said = timed(folder, [[__file__, "--parts", *common, *TWELVE]])
            sys.stdout.write(f"{what}: {wall:.1f} s ({cpu:.1f} s of the process)\n")
            for part, seconds in json.loads(said[0].splitlines()[-1]).items():
                sys.stdout.write(f"  {part}: {seconds:.1f} s\n")
        alone = [["-m", "tbexp", *common, "store=eight/stages", f"{RARELY}=0.{edge:02}"] for edge in range(5, 13)]
        wall, cpu, said = timed(folder, alone)
        lost = sum("WARNING" in text for text in said)
        sys.stdout.write(
            f"8 jobs at one moment, fresh database: {wall:.1f} s ({cpu:.1f} s of all), {lost} with warnings\n"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--parts"]:
        parts(sys.argv[2:])
    main()
