"""The command that serves a policy's weights as `policy.vllm` says; a dry run shows it."""

from __future__ import annotations

from tbexp.config.schema import VllmServer


def serve_command(settings: VllmServer, *, served_name: str | None) -> list[str]:
    """`vllm serve MODEL ...`. served_name: the name that the endpoint is asked for (policy.endpoint.model)."""
    words = ["vllm", "serve", settings.model or "MODEL"]
    if served_name is not None:
        words += ["--served-model-name", served_name]
    for name in (
        "tensor_parallel_size",
        "dtype",
        "max_model_len",
        "gpu_memory_utilization",
        "max_num_seqs",
        "max_num_batched_tokens",
        "tool_call_parser",
        "reasoning_parser",
        "port",
    ):
        value = getattr(settings, name)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    return words + [f"--{flag}" for flag in settings.flags]
