"""Start of a sweep's second training, warm against cold: `python tests/benchmarks/bench_warm.py`.

A process trains a toy policy twice, one update each. Warm: within `training.kept()`, as a sweep does, so that the
second training uses the first one's Ray and imports. Cold: each with its own. The two take turns, so that whatever else
the machine does falls on both. Seconds are from the call to the first update's row, of the second training; the first
one's stand beside it. With --gpu: verl with vLLM on one GPU, for which --model has to name a Hugging Face folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOYS = [str(ROOT / "tests" / "integration" / "training"), str(ROOT / "tests" / "training")]
GPU = {
    "name": "gpu1",
    "device": "cuda",
    "rollout": "vllm",
    "dtype": "bfloat16",
    "attention": "sdpa",
    "gpu_memory_utilization": 0.2,
}


def trained(config: Any, model: Path, folder: Path) -> float:
    """Seconds from the call to the first update."""
    from tbexp.training import train

    start, first = time.perf_counter(), []

    def metrics(_: Any, step: int) -> None:
        if step == 1 and not first:
            first.append(time.perf_counter() - start)

    uids = ["mixed-a", "mixed-b"]
    train(
        config,
        model_folder=model,
        train_uids=uids,
        validation_uids=["mixed-v"],
        folder=folder,
        loop="toy.ToyLoop",
        metrics=metrics,
    )
    return first[0]


def two(kind: str, model: Path, folder: Path, gpu: bool) -> None:
    """Two trainings in this process; writes the seconds of both as the last line."""
    sys.path += TOYS
    from toy_config import toy_config

    from tbexp.training import kept

    config = toy_config(training={"steps": 1}, **({"topology": GPU} if gpu else {}))
    with kept() if kind == "warm" else contextlib.nullcontext():
        seconds = [trained(config, model, folder / name) for name in ("one", "two")]
    sys.stdout.write(json.dumps(seconds) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--two", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.two:
        two(args.two[0], args.model, Path(args.two[1]), args.gpu)
        return
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *TOYS])}
    took: dict[str, list[list[float]]] = {"warm": [], "cold": []}
    print(f"load {os.getloadavg()[0]:.1f} at the start, {len(os.sched_getaffinity(0))} cores")
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        model = args.model
        if model is None:
            sys.path += TOYS
            from toy import build_model

            model = build_model(place / "model")
        for turn in range(args.rounds):
            for kind in ("warm", "cold") if turn % 2 == 0 else ("cold", "warm"):
                words = ["--model", str(model), "--two", kind, str(place / f"{kind}{turn}")]
                words += ["--gpu"] if args.gpu else []
                command = [sys.executable, __file__, *words]
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                took[kind].append(json.loads(done.stdout.splitlines()[-1]))
                one, other = took[kind][-1]
                print(f"{kind}: second training {other:.1f} s to its first update (the first {one:.1f} s)", flush=True)
    warm, cold = (statistics.median(seconds[1] for seconds in took[kind]) for kind in ("warm", "cold"))
    print(f"median of {args.rounds}: warm {warm:.1f} s, cold {cold:.1f} s; load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
