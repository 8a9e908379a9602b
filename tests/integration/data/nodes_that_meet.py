"""Submits a training that is nothing but its network check: `nodes_that_meet.py FOLDER NODES SECONDS REQUEUE`."""

from __future__ import annotations

import sys
from pathlib import Path

from tbexp.cluster import JobSpec, Network, NodeJob, submit
from tbexp.config.schema import Launcher

folder, count, seconds, requeue = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "requeue"
plan = folder / "plan.json"
plan.write_text("{}")
work = NodeJob(plan=str(plan), folder=str(folder), network=Network("cpu", seconds), requeue=requeue)
spec = JobSpec(name="train", title="train", work=(work,), folder=folder, nodes=count, gpus=8)
sys.stdout.write(submit(spec, Launcher(name="slurm", kind="slurm", minutes=30, signal_seconds=60), []))
