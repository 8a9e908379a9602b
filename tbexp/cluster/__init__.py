"""Slurm: what is submitted, what runs on a node, and what became of it.

Decided here: sbatch options from the launcher's config, by submitit; how the nodes of a training become one Ray; what a
warning before the end of a job means; how states and remote errors are read. Which stages become which jobs is the
pipeline's; a job runs its work as a process of its own, so nothing here imports a stage.
"""

from __future__ import annotations

from tbexp.cluster.capacity import misfits, nodes
from tbexp.cluster.job import IDLE, STOPPED, NodeJob
from tbexp.cluster.network import Network
from tbexp.cluster.nodes import job_of
from tbexp.cluster.ray_nodes import Ray
from tbexp.cluster.state import ELSEWHERE, JobState, cancel, states, unanswered
from tbexp.cluster.submission import JobSpec, batch_text, inside_job, resources, submit

__all__ = [
    "ELSEWHERE",
    "IDLE",
    "STOPPED",
    "JobSpec",
    "JobState",
    "Network",
    "NodeJob",
    "Ray",
    "batch_text",
    "cancel",
    "inside_job",
    "job_of",
    "misfits",
    "nodes",
    "resources",
    "states",
    "submit",
    "unanswered",
]
