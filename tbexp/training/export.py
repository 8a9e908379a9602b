"""A checkpoint's weights as a Hugging Face folder: `python -m tbexp.training.export CHECKPOINT BASE TARGET`.

Decided here: config, tokenizer and chat template are the base model's own files, and the weights have its precision
(verl.model_merger casts to bfloat16, which would drop most of what a float32 run with a small learning rate learned).
The folder appears at once.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

WEIGHTS = re.compile(r".*\.(safetensors|bin|pt|pth)|.*\.index\.json|pytorch_model.*")


def gathered(actor: Path) -> dict[str, Any]:
    """The full state dict of FSDP shards: local parts of all ranks put together along the sharded dimension."""
    import torch
    from torch.distributed.tensor import DTensor

    world = json.loads((actor / "fsdp_config.json").read_text())["world_size"]
    shards = [
        torch.load(actor / f"model_world_size_{world}_rank_{rank}.pt", map_location="cpu", weights_only=False)
        for rank in range(world)
    ]
    state = {}
    for name, first in shards[0].items():
        if not isinstance(first, DTensor):
            state[name] = first
            continue
        placement = first.placements[-1]
        locals_ = [shard[name]._local_tensor for shard in shards]
        whole = torch.cat(locals_, dim=placement.dim) if placement.is_shard() else locals_[0]
        state[name] = whole.contiguous().clone()
    return state


def export(checkpoint: Path, base: Path, target: Path) -> None:
    """Writes `target`, in files of at most 5 GB. ValueError when the checkpoint lacks a weight of the base model."""
    from huggingface_hub import save_torch_state_dict

    state, types = gathered(checkpoint / "actor"), stored_types(base)
    if missing := types.keys() - state.keys():
        raise ValueError(f"the checkpoint lacks {len(missing)} weights of the base model, such as {min(missing)}")
    # Tied weights appear under both names in a state dict; the base model says which one is stored.
    state = {name: state[name].to(dtype) for name, dtype in types.items()}
    temporary = target.with_name(f"{target.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for file in base.iterdir():
        if file.is_file() and not WEIGHTS.fullmatch(file.name):
            shutil.copy2(file, temporary)
    save_torch_state_dict(state, temporary, metadata={"format": "pt"})
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)


def stored_types(base: Path) -> dict[str, Any]:
    """The weights that the base model's files hold, with their types."""
    import torch
    from safetensors import safe_open

    names = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    types: dict[str, Any] = {}
    for file in sorted(base.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as weights:
            types |= {name: names[weights.get_slice(name).get_dtype()] for name in weights.keys()}  # noqa: SIM118
    if not types:
        raise ValueError(f"{base} has no safetensors files")
    return types


if __name__ == "__main__":
    export(*(Path(argument) for argument in sys.argv[1:4]))
