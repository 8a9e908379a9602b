"""Failures of verl whose reason is the device or the machine, told from its log: no defect, and what to do is known."""

from __future__ import annotations

REASONS = (
    (
        "No available memory for the cache blocks",
        "vLLM found no GPU memory for its cache: another process holds it, or raise topology.gpu_memory_utilization",
    ),
    (
        "less than desired GPU memory utilization",
        "less GPU memory is free than topology.gpu_memory_utilization asks for: another process holds it, or lower it",
    ),
    (
        "CUDA out of memory",
        "the GPU's memory is full: lower topology.micro_batch_tokens or topology.gpu_memory_utilization, "
        "set topology.offload=true, or end what else uses the GPU",
    ),
    ("CUDA error", "the GPU or its driver failed"),
    ("NCCL error", "the connection between GPUs failed: stages=[doctor] tells what NCCL there is"),
    (
        "killed due to memory pressure (OOM)",
        "the machine's memory was full, and Ray ended processes of the training: end what else uses it",
    ),
    (
        "killed due to the node running low on memory",
        "the machine's memory was full, and Ray ended a process of the training: lower topology.micro_batch_tokens or "
        "policy.concurrency, or end what else uses it",
    ),
    (
        "because its worker process has died",
        "a process of the training was killed, as the system does when memory is full, or crashed",
    ),
    ("because its node has died", "a node was lost"),
    ("node timed out during startup", "Ray did not come up within its 30 s, as on a machine that has too much to do"),
)


def reason(log: str) -> str | None:
    """What is known of why, from what verl wrote in this start; None if nothing is."""
    return next((told for sign, told in REASONS if sign in log), None)
