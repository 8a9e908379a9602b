"""Submits a job of three nodes that would become one Ray: `three_nodes.py FOLDER JOIN_SECONDS`; prints its id."""

from __future__ import annotations

import sys
from pathlib import Path

from tbexp.cluster import JobSpec, NodeJob, Ray, submit
from tbexp.config.schema import Launcher

folder = Path(sys.argv[1])
plan = folder / "plan.json"
plan.write_text("{}")
ray = Ray(gpus=8, cpus=2, join_seconds=float(sys.argv[2]))
work = NodeJob(plan=str(plan), folder=str(folder), ray=ray)
spec = JobSpec(name="train", title="train", work=(work,), folder=folder, nodes=3, gpus=8)
sys.stdout.write(submit(spec, Launcher(name="slurm", kind="slurm", minutes=30, signal_seconds=60), []))
