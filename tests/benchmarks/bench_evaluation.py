"""How fast a summary is: `python tests/benchmarks/bench_evaluation.py [--rows 1000000] [--samples 2000]`. Seconds,
best of two.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

from tbexp.attempts import AttemptRow
from tbexp.config.schema import Evaluation
from tbexp.evaluation import summarise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--samples", type=int, default=2000)
    args = parser.parse_args()
    for attempts in (20, 1000):
        tasks = args.rows // attempts
        rng = np.random.default_rng(0)
        passed = rng.random((tasks, attempts)) < rng.beta(0.5, 0.5, (tasks, 1))
        rows = [
            AttemptRow(f"d{t % 5}.py:t{t}", a, ok, float(ok), domain=f"d{t % 5}", prompt_tokens=9, completion_tokens=5)
            for t, each in enumerate(passed.tolist())
            for a, ok in enumerate(each)
        ]
        settings = Evaluation(name="bench", bootstrap=args.samples)
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            summarise({"rows": rows}, attempts=attempts, tasks={r.uid: r.domain for r in rows}, settings=settings)
            seconds.append(time.perf_counter() - start)
        sys.stdout.write(
            f"{tasks} tasks x {attempts} attempts, {args.samples} bootstrap samples, in all and in 5 domains: "
            f"{min(seconds):.2f} s\n"
        )


if __name__ == "__main__":
    main()
