"""A checkpoint's weights as a Hugging Face folder: `python -m tbexp.training.export CHECKPOINT BASE TARGET`.

Decided here: config, tokenizer and chat template are the base model's own files, and the weights have its precision
(verl.model_merger casts to bfloat16, which would drop most of what a float32 run with a small learning rate learned).
LoRA's adapters are added to the weights they belong to (verl.model_merger leaves them beside the base weights), so the
folder is a plain one that every engine loads. What the base model stores and its class does not load, such as layers
for speculative decoding (mtp), was not trained and is taken over as it is. The folder appears at once, and only if it
is whole, finite, and has the base model's weights by name, type and shape.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tbexp.training import weights

WEIGHTS = re.compile(r".*\.(safetensors|bin|pt|pth)|.*\.index\.json|pytorch_model.*")


def gathered(actor: Path) -> dict[str, Any]:
    """The full state dict of FSDP shards: local parts put together along the sharded dimension.

    Of the ranks that share one copy of the weights: with verl's `fsdp_size` below the number of ranks there are several
    copies, and each rank saves its part. ValueError for weights that are divided in any other way.
    """
    import torch
    from torch.distributed.tensor import DTensor

    world = json.loads((actor / "fsdp_config.json").read_text())["world_size"]

    def saved(rank: int) -> dict[str, Any]:
        file = actor / f"model_world_size_{world}_rank_{rank}.pt"
        return torch.load(file, map_location="cpu", weights_only=False)  # type: ignore[no-any-return]

    shards = {0: saved(0)}
    state = {}
    for name, first in shards[0].items():
        if not isinstance(first, DTensor):
            state[name] = first
            continue
        *copies, placement = first.placements
        if not all(copy.is_replicate() for copy in copies) or not (placement.is_shard() or placement.is_replicate()):
            raise ValueError(f"{name} is divided as {first.placements}: it cannot be put together")
        mesh = first.device_mesh.mesh
        ranks = mesh.reshape(-1, mesh.shape[-1])[0].tolist() if placement.is_shard() else [0]
        shards |= {rank: saved(rank) for rank in ranks if rank not in shards}
        locals_ = [shards[rank][name]._local_tensor for rank in ranks]
        whole = torch.cat(locals_, dim=placement.dim) if placement.is_shard() else locals_[0]
        state[name] = whole.contiguous().clone()
    return state


PEFT = "base_model.model."
ADAPTER = re.compile(r"(.+)\.lora_([AB])\.default\.weight")


def with_adapters(state: Mapping[str, Any], base: Path, meta: Path) -> dict[str, Any]:
    """A LoRA checkpoint's weights: W + alpha / r * B A (Hu et al. 2021, section 4.1), in float32.

    state: of a peft model; weights that it lacks, as when only adapters were saved, are the base model's. meta: verl's
    file with r and lora_alpha. ValueError for what is not plain LoRA, such as DoRA's magnitudes.
    """
    import torch

    adapted = sorted({match[1] for name in state if (match := ADAPTER.fullmatch(name))})
    others = [name for name in state if not ADAPTER.fullmatch(name)]
    if odd := [name for name in others if "lora_" in name or "modules_to_save" in name]:
        raise ValueError(f"the checkpoint has {len(odd)} weights of adapters that are not plain LoRA, such as {odd[0]}")
    types = stored_types(base)
    plain = {name.removeprefix(PEFT).replace(".base_layer.", "."): state[name] for name in others}
    if not plain:
        plain = {name: stored(base, name) for name in types}
    told = json.loads(meta.read_text())
    for module in adapted:
        down, up = (state[f"{module}.lora_{side}.default.weight"].to(torch.float32) for side in "AB")
        name = f"{module.removeprefix(PEFT)}.weight"
        if name not in types:
            raise ValueError(f"an adapter belongs to {name}, which the base model does not store")
        if down.shape[0] != told["r"]:
            raise ValueError(f"{name} has an adapter of rank {down.shape[0]}, and {meta.name} says {told['r']}")
        plain[name] = plain[name].to(torch.float32) + told["lora_alpha"] / told["r"] * (up @ down)
    return plain


def stored(base: Path, name: str) -> Any:
    """One weight of the base model."""
    from safetensors import safe_open

    for file in sorted(base.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as held:
            if name in held.keys():  # noqa: SIM118
                return held.get_tensor(name)
    raise ValueError(f"{base} has no weight {name}")


def not_loaded(base: Path, names: Iterable[str]) -> list[str]:
    """Those of the stored weights that the base model's class passes over when it is loaded."""
    import transformers

    architecture = (json.loads((base / "config.json").read_text()).get("architectures") or [""])[0]
    kind = getattr(transformers, architecture, None) if architecture else None
    patterns = getattr(kind, "_keys_to_ignore_on_load_unexpected", None) or []
    return sorted(name for name in names if any(re.search(pattern, name) for pattern in patterns))


def export(checkpoint: Path, base: Path, target: Path) -> None:
    """Writes `target`, in files of at most 5 GB. ValueError when the checkpoint lacks a weight of the base model, when
    a weight is not finite, or when what was written is not whole.
    """
    import torch
    from huggingface_hub import save_torch_state_dict

    state, types = gathered(checkpoint / "actor"), stored_types(base)
    if any(".lora_" in name for name in state):
        state = with_adapters(state, base, checkpoint / "actor" / "lora_train_meta.json")
    for name in not_loaded(base, types.keys() - state.keys()):
        state[name] = stored(base, name)
    if missing := types.keys() - state.keys():
        raise ValueError(f"the checkpoint lacks {len(missing)} weights of the base model, such as {min(missing)}")
    # Tied weights appear under both names in a state dict; the base model says which one is stored.
    state = {name: state[name].to(dtype) for name, dtype in types.items()}
    if broken := [name for name, tensor in state.items() if not bool(torch.isfinite(tensor).all())]:
        raise ValueError(f"the checkpoint has {len(broken)} weights that are not finite, such as {min(broken)}")
    temporary = target.with_name(f"{target.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for file in base.iterdir():
        if file.is_file() and not WEIGHTS.fullmatch(file.name):
            shutil.copy2(file, temporary)
    save_torch_state_dict(state, temporary, metadata={"format": "pt"})
    if why := weights.fault(temporary, base):
        raise ValueError(f"what was written is not whole: {why}")
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)


def stored_types(base: Path) -> dict[str, Any]:
    """The weights that the base model's files hold, with their types."""
    import torch
    from safetensors import safe_open

    names = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    types: dict[str, Any] = {}
    for file in sorted(base.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as held:
            types |= {name: names[held.get_slice(name).get_dtype()] for name in held.keys()}  # noqa: SIM118
    if not types:
        raise ValueError(f"{base} has no safetensors files")
    return types


if __name__ == "__main__":
    export(*(Path(argument) for argument in sys.argv[1:4]))
