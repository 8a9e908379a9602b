"""How much memory, disk and time a training on GPUs takes, before anything is started. No torch; files of the model
folder are only read.

These are sums of the parts that grow with the model and its context. What does not (fragmentation, servers of tools,
buffers of NCCL beyond `CONTEXT_BYTES`) comes on top, so what does not fit here does not fit. Units: bytes and hours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbexp.config.schema import Config
from tbexp.errors import Problem

GIB, TB = 2**30, 10**12
OF = (  # what the estimates are made of
    *("topology.nodes", "topology.gpus_per_node", "topology.sequence_parallel", "topology.rollout_tensor_parallel"),
    *("topology.micro_batch_tokens", "topology.offload", "topology.gpu_memory_gib", "topology.gpu_memory_utilization"),
    *("model.max_context", "model.path", "model.shape"),
)
CONTEXT_BYTES = 1.5 * GIB  # CUDA context and NCCL of one process; assumed
CPU_PASS_BYTES = 8 * GIB  # of one pass of the trainer on a CPU, where nothing is computed twice to save memory
FSDP_SIZE = "actor_rollout_ref.actor.fsdp_config.fsdp_size"
CHUNK = 512  # tokens whose logits are in memory at once: verl 0.9.1, utils/experimental/torch_functional.py
# NVIDIA H100 SXM data sheet: dense bfloat16, memory bandwidth. The shares of them that are reached are assumed.
FLOPS, BANDWIDTH = 989e12, 3.35e12
SHARE_OF_FLOPS, SHARE_OF_BANDWIDTH = 0.35, 0.5


@dataclass(frozen=True, slots=True)
class Shape:
    """parameters: a number, not billions. source: where all this stands."""

    parameters: float
    layers: int
    attention_layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied_embeddings: bool
    source: str

    @property
    def embeddings(self) -> float:
        """Parameters of the embeddings and the head."""
        return float(self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2))

    @property
    def layer(self) -> float:
        """Parameters of one layer: all but the embeddings, divided evenly."""
        return max(self.parameters - self.embeddings, 0.0) / self.layers

    def kv_bytes(self, tokens: float) -> float:
        """Keys and values of a conversation in bfloat16."""
        return 2 * 2 * tokens * self.attention_layers * self.kv_heads * self.head_dim


def shape_of(config: Config) -> Shape | None:
    """By the model folder's config.json, else by model.shape; None if neither says enough."""
    if config.model.path is not None:
        found = of_folder(Path(config.model.path))
        if found is not None:
            return found
    shape = config.model.shape
    if not (shape.parameters_billion and shape.layers and shape.hidden and shape.kv_heads and shape.vocabulary):
        return None
    values = shape.model_dump(exclude={"parameters_billion"})
    return Shape(shape.parameters_billion * 1e9, **values, source="model.shape")


def of_folder(folder: Path) -> Shape | None:
    """The shape of a Hugging Face folder; None when it is not there or says too little."""
    try:
        read: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        text: dict[str, Any] = read.get("text_config") or read
        size = weight_bytes(folder)
        kinds = text.get("layer_types")
        heads, layers = text["num_attention_heads"], text["num_hidden_layers"]
        kind = str(text.get("dtype") or text.get("torch_dtype") or read.get("dtype") or read.get("torch_dtype"))
        return Shape(
            parameters=size / (4 if kind == "float32" else 2),
            layers=layers,
            attention_layers=layers if kinds is None else sum(kind != "linear_attention" for kind in kinds),
            hidden=text["hidden_size"],
            intermediate=text["intermediate_size"],
            heads=heads,
            kv_heads=text.get("num_key_value_heads") or heads,
            head_dim=text.get("head_dim") or text["hidden_size"] // heads,
            vocabulary=text["vocab_size"],
            tied_embeddings=bool(read.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
            source=str(folder / "config.json"),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def weight_bytes(folder: Path) -> int:
    """Raises OSError when there are no weights."""
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
    if not sizes:
        raise FileNotFoundError(folder / "*.safetensors")
    return sum(sizes)


def lora_rank(config: Config) -> int:
    """0: all parameters are trained."""
    from tbexp.training.mapping import passed_through

    verl = dict(passed_through(config.training.verl))
    return int(verl.get("actor_rollout_ref.model.lora_rank") or 0)


def copy_ranks(config: Config) -> int:
    """Devices that share one copy of weights, gradients and Adam's moments: all, or as many as verl's `fsdp_size`."""
    world, size = config.topology.nodes * config.topology.gpus_per_node, fsdp_size(config)
    return size if 0 < size < world else world


def fsdp_size(config: Config) -> int:
    """verl's; -1: all devices."""
    from tbexp.training.mapping import passed_through

    size = dict(passed_through(config.training.verl)).get(FSDP_SIZE)
    return size if isinstance(size, int) and not isinstance(size, bool) else -1


def trained_parameters(config: Config, shape: Shape) -> float:
    """All of them, or those of LoRA's two matrices at each linear layer: rank x (inputs + outputs)."""
    rank = lora_rank(config)
    if not rank:
        return shape.parameters
    h, q, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return float(rank * shape.layers * (2 * (h + q) + 2 * (h + kv) + 3 * (h + shape.intermediate)))


def whole_conversation(config: Config) -> int:
    """Tokens of the longest conversation, or of the part of it that each device that shares it has."""
    return math.ceil(config.model.max_context / config.topology.sequence_parallel)


def tokens_per_gpu(config: Config) -> int:
    """Of one pass of the trainer."""
    return config.topology.micro_batch_tokens or whole_conversation(config)


def cpu_tokens_per_pass(config: Config, shape: Shape | None) -> float:
    """Of one pass of the trainer on a CPU: topology.micro_batch_tokens, else as many as `CPU_PASS_BYTES` holds.

    Bytes of a token, in float32: 68 x hidden at each layer (Korthikanti et al. 2022, equation 2, twice its half
    precision, attention scores never stored), and five copies of its logits. Without a shape: unlimited.
    """
    if config.topology.micro_batch_tokens is not None:
        return float(config.topology.micro_batch_tokens)
    if shape is None:
        return math.inf
    return CPU_PASS_BYTES / (68.0 * shape.hidden * shape.layers + 5.0 * 4 * shape.vocabulary)


def trainer_memory(config: Config, shape: Shape) -> dict[str, float]:
    """Bytes on one GPU at the peak of an update, by what they are for. With offload vLLM sleeps then and holds none,
    else its share comes on top.

    State: float32 weights, gradients and Adam's two moments, 4 + 4 + 8 bytes a parameter, sharded over the GPUs of
    a copy (`copy_ranks`; Rajbhandari et al. 2020, ZeRO, section 3; verl's engine/fsdp.yaml has model_dtype fp32; FSDP
    keeps no bfloat16 copy). Offloading does not lower the peak: verl loads all of it back for an update. Gathered: two
    layers and the embeddings in bfloat16, one layer's gradient in float32. Activations: with recomputation 2 bytes x
    tokens x hidden are kept at each layer, and 34 x tokens x hidden are live in the layer under way (Korthikanti et al.
    2022, section 4 and equation 2, attention scores never stored). Logits: three float32 copies of `CHUNK` rows.
    """
    tokens, trained = tokens_per_gpu(config), trained_parameters(config, shape)
    return {
        "weights, gradients and Adam": (4 * shape.parameters + 12 * trained) / copy_ranks(config),
        "gathered layers": 2 * (2 * shape.layer + shape.embeddings) + 4 * shape.layer,
        "kept between layers": 2.0 * tokens * shape.hidden * shape.layers,
        "the layer under way": 34.0 * tokens * shape.hidden,
        "logits": 3.0 * 4 * CHUNK * shape.vocabulary,
        "CUDA": CONTEXT_BYTES,
    }


def rollout_memory(config: Config, shape: Shape) -> tuple[float, float]:
    """Bytes on one GPU of vLLM's bfloat16 weights, and of one conversation of model.max_context tokens. Key-value heads
    that are fewer than the GPUs that share the weights are copied.
    """
    parts = config.topology.rollout_tensor_parallel
    return 2 * shape.parameters / parts, shape.kv_bytes(config.model.max_context) / min(parts, shape.kv_heads)


def whole_conversations(config: Config, shape: Shape) -> int | None:
    """Conversations of model.max_context tokens that one copy of vLLM holds at once."""
    if config.topology.gpu_memory_gib is None:
        return None
    weights, one = rollout_memory(config, shape)
    room = config.topology.gpu_memory_utilization * config.topology.gpu_memory_gib * GIB - weights - CONTEXT_BYTES
    return max(int(room // one), 0)


def host_memory(config: Config, shape: Shape) -> tuple[float, float]:
    """Bytes on one node that offloaded state takes (float32 weights and Adam's moments), and on the first node while
    the weights are loaded: its first rank holds all of them in float32 (verl's get_init_weight_context_manager).
    """
    saved = 4 * shape.parameters + 8 * trained_parameters(config, shape)
    offloaded = saved * config.topology.gpus_per_node / copy_ranks(config)
    return offloaded if config.topology.offload else 0.0, 4 * shape.parameters


def disk(config: Config, shape: Shape) -> tuple[float, float, int]:
    """Bytes of one checkpoint (float32 weights and Adam's moments, as verl saves model, optimizer and extra, each rank
    its own part), of the chosen weights, and how many checkpoints there are at once: the newest, the one that would be
    chosen, and the one being written.
    """
    copies = config.topology.nodes * config.topology.gpus_per_node / copy_ranks(config)
    one = copies * (4 * shape.parameters + 8 * trained_parameters(config, shape))
    return one, 2 * shape.parameters, config.training.keep_checkpoints + 2


def update_hours(config: Config, shape: Shape, tokens: int) -> tuple[float, float]:
    """Hours of one update on H100 if each conversation has this many tokens: to train, and to generate.

    Training: a token costs 2 x (parameters + attention layers x context x heads x head_dim) operations forward (Kaplan
    et al. 2020, table 1), five times over: old log-probabilities, forward, recomputation, and a backward pass of two.
    Generation: a token of all conversations of a copy takes as long as reading the weights and their keys and values
    once; the longest conversation is waited for. Without tools, simulated user, replaced groups and validation.
    """
    topology, attempts = config.topology, config.group.size * config.group.groups_per_update
    world = topology.nodes * topology.gpus_per_node
    d_attn = shape.heads * shape.head_dim
    forward = 2 * (shape.parameters + shape.attention_layers * tokens * d_attn)
    train = 5 * forward * attempts * tokens / (world * FLOPS * SHARE_OF_FLOPS)
    copies = world // topology.rollout_tensor_parallel
    at_once = min(math.ceil(attempts / copies), whole_conversations(config, shape) or attempts)
    rounds = math.ceil(attempts / copies / max(at_once, 1))
    weights, _ = rollout_memory(config, shape)
    keys = shape.kv_bytes(tokens / 2) / min(topology.rollout_tensor_parallel, shape.kv_heads)
    answer = tokens * (1 - (config.training.max_prompt_tokens or 0) / config.model.max_context)
    generate = rounds * answer * (weights + at_once * keys) / (BANDWIDTH * SHARE_OF_BANDWIDTH)
    return train / 3600, generate / 3600


def problems(config: Config) -> Iterator[Problem]:
    """What the model's context and shape rule out on these GPUs, with the numbers."""
    topology = config.topology
    world, copy = topology.nodes * topology.gpus_per_node, fsdp_size(config)
    if 0 <= copy < world and (copy == 0 or world % copy):
        what = f"{world} devices ({topology.nodes} nodes x {topology.gpus_per_node}) is not a multiple of {copy}"
        fix = f"a divisor of {world}, or -1: one copy of the weights"
        yield Problem(what, f"training.verl.{FSDP_SIZE}", fix, ("topology.nodes", "topology.gpus_per_node"))
    if topology.device != "cuda":
        return
    least = whole_conversation(config)
    if topology.micro_batch_tokens is not None and topology.micro_batch_tokens < least:
        # verl 0.9.1, utils/seqlen_balancing.py, rearrange_micro_batches: an assertion at the first longer conversation.
        what = f"a pass of {topology.micro_batch_tokens:,} tokens cannot hold a conversation, whose part is {least:,}"
        fix = f"{least} (model.max_context / topology.sequence_parallel) or more; null: that"
        yield Problem(what, "topology.micro_batch_tokens", fix, ("model.max_context", "topology.sequence_parallel"))
    shape = shape_of(config)
    if shape is None:
        return
    parallel = topology.sequence_parallel
    if shape.heads % parallel or (shape.kv_heads % parallel and parallel % shape.kv_heads):
        # The two assertions of verl 0.9.1, models/transformers/monkey_patch.py, apply_monkey_patch.
        yield Problem(
            f"{parallel} devices cannot share {shape.heads} attention heads and {shape.kv_heads} key-value heads",
            "topology.sequence_parallel",
            f"a divisor of {shape.heads} that divides {shape.kv_heads} or is a multiple of it",
        )
    size = topology.gpu_memory_gib
    if size is None:
        return
    parts = trainer_memory(config, shape)
    needed = sum(parts.values()) / GIB
    if needed > size:
        most = ", ".join(f"{name} {value / GIB:.1f}" for name, value in parts.items())
        yield Problem(
            f"an update takes about {needed:.1f} GiB of a GPU that has {size:g} ({most})",
            "topology.gpu_memory_gib",
            ("more nodes" if copy_ranks(config) == world else "a larger fsdp_size")
            + ", a larger topology.sequence_parallel, or "
            + (
                "a smaller model.max_context"
                if topology.micro_batch_tokens is None
                else f"a smaller topology.micro_batch_tokens (null: {whole_conversation(config):,}, one conversation)"
            ),
            OF,
        )
    share = topology.gpu_memory_utilization * size
    if not topology.offload and needed <= size < needed + share:
        yield Problem(
            f"vLLM takes {share:.1f} GiB of {size:g} and keeps it, and an update {needed:.1f}",
            "topology.gpu_memory_utilization",
            "topology.offload=true, or lower it",
            OF,
        )
    weights, one = (value / GIB for value in rollout_memory(config, shape))
    if weights + one + CONTEXT_BYTES / GIB > share:
        yield Problem(
            f"vLLM takes {share:.1f} GiB of a GPU, but the weights need {weights:.1f} and one conversation {one:.1f}",
            "topology.rollout_tensor_parallel",
            "raise it or topology.gpu_memory_utilization",
            OF,
        )


def memory(of: float) -> str:
    """Bytes, such as 10.5 GiB or 48 MiB."""
    return f"{of / GIB:.1f} GiB" if of >= GIB else f"{of / 2**20:.0f} MiB"


def stored(of: float) -> str:
    """Bytes on a disk, such as 1.25 TB or 2 GB."""
    return f"{of / TB:.2f} TB" if of >= TB else f"{of / 10**9:,.1f} GB"


def lasting(hours: float) -> str:
    if hours >= 1:
        return f"{hours:.0f} h" if hours >= 10 else f"{hours:.1f} h"
    return f"{60 * hours:.0f} min" if hours >= 1 / 60 else f"{3600 * hours:.0f} s"


def lines(config: Config) -> list[tuple[str, str]]:
    """What a dry run says, as rows of a table."""
    shape = shape_of(config)
    if config.topology.device != "cuda":
        return [("memory, hours", "not estimated for training on the CPU")]
    if shape is None:
        return [("memory, hours", "not estimated: neither model.path nor model.shape says how large the model is")]
    parts = trainer_memory(config, shape)
    weights, one = rollout_memory(config, shape)
    conversations = whole_conversations(config, shape)
    size = config.topology.gpu_memory_gib
    offloaded, loading = host_memory(config, shape)
    checkpoint, chosen, count = disk(config, shape)
    has = "" if size is None else f" of {size:g}"
    found = [
        ("model", f"{shape.parameters / 1e9:.1f} billion parameters, by {shape.source}"),
        ("GPU, update", f"{sum(parts.values()) / GIB:.1f}{has} GiB"),
        *((f"  {name}", memory(value)) for name, value in parts.items()),
        (
            "GPU, generation",
            f"weights {memory(weights)}, a whole conversation {memory(one)}"
            + ("" if conversations is None else f"; {conversations} of them at once in each copy")
            + f"; vLLM takes {config.topology.gpu_memory_utilization:.0%} of a GPU",
        ),
        (
            "host memory",
            (f"{memory(offloaded)} a node; " if offloaded else "") + f"the first {memory(loading)} more while loading",
        ),
        (
            "disk",
            f"{stored(count * checkpoint + chosen)}: at most {count} checkpoints of {stored(checkpoint)}, "
            f"and the chosen weights of {stored(chosen)}",
        ),
    ]
    for share, name in ((4, "time, a quarter"), (1, "time, at most")):
        tokens = config.model.max_context // share
        train, generate = (config.training.steps * hours for hours in update_hours(config, shape, tokens))
        told = (
            f"{lasting(train + generate)}: {lasting(train)} of training and {lasting(generate)} of generation on H100"
        )
        found.append((name, f"{told}, if conversations have {tokens:,} tokens"))
    found.append(("", "without tools, simulated user, replaced groups and validation; rates are assumed"))
    return found
