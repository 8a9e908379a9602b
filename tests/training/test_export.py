"""Checkpoints as verl saves them -> plain Hugging Face folders."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tbexp.training import weights

pytestmark = pytest.mark.train


def model_of(**changes: Any) -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    shape = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}
    return Qwen3ForCausalLM(Qwen3Config(**shape, **heads, **changes))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    model_of().save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "chat_template.jinja").write_text("{{ messages }}")
    return tmp_path / "base"


def checkpoint(folder: Path, state: dict[str, Any], lora: dict[str, Any] | None = None) -> Path:
    """One rank's checkpoint in verl's files."""
    import torch

    actor = folder / "global_step_1" / "actor"
    actor.mkdir(parents=True)
    torch.save(state, actor / "model_world_size_1_rank_0.pt")
    (actor / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 1}')
    if lora:
        (actor / "lora_train_meta.json").write_text(json.dumps(lora))
    return actor.parent


def logits(model: Any) -> Any:
    import torch

    with torch.no_grad():
        return model.eval()(torch.arange(30)[None]).logits


def loaded(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


def test_an_exported_folder_is_the_trained_model_with_the_base_s_files(tmp_path: Path, base: Path) -> None:
    import torch

    from tbexp.training.export import export

    trained = model_of()
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    export(checkpoint(tmp_path, trained.state_dict()), base, tmp_path / "chosen")
    assert torch.equal(logits(loaded(tmp_path / "chosen")), logits(trained))
    assert (tmp_path / "chosen" / "chat_template.jinja").read_text() == "{{ messages }}"
    assert weights.fault(tmp_path / "chosen", base) == ""


def test_what_the_model_s_class_does_not_load_is_taken_over_and_other_gaps_are_none_of_it(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    from tbexp.training.export import export

    torch.manual_seed(0)
    shape = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4, "head_dim": 8}
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "linear_value_head_dim": 8}
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**shape, **linear, **heads))
    model.save_pretrained(tmp_path / "base")
    file = tmp_path / "base" / "model.safetensors"
    save_file({**load_file(file), "mtp.fc.weight": torch.full((2, 2), 3.0)}, file, metadata={"format": "pt"})
    state = model.state_dict()
    export(checkpoint(tmp_path, state), tmp_path / "base", tmp_path / "chosen")
    assert load_file(tmp_path / "chosen" / "model.safetensors")["mtp.fc.weight"].tolist() == [[3.0, 3.0], [3.0, 3.0]]
    del state["model.norm.weight"]
    with pytest.raises(ValueError, match=r"lacks 1 weights of the base model, such as model\.norm"):
        export(checkpoint(tmp_path / "torn", state), tmp_path / "base", tmp_path / "other")


def saved_by_ranks(actor: Path, state: dict[str, Any], mesh: tuple[int, ...], placements: list[Any]) -> None:
    """Every rank's file of a state dict that is divided over a mesh; no other process is there to talk to."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    world, dim = math.prod(mesh), getattr(placements[-1], "dim", None)
    actor.mkdir(parents=True)
    for rank in range(world):
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        try:
            ranks = init_device_mesh("cpu", mesh)
            parts = {}
            for name, whole in state.items():
                local = (
                    whole if dim is None else (*whole.chunk(mesh[-1], dim), whole.narrow(dim, 0, 0))[rank % mesh[-1]]
                )
                parts[name] = DTensor.from_local(
                    local.clone(), ranks, placements, run_check=False, shape=whole.shape, stride=whole.stride()
                )
            torch.save(parts, actor / f"model_world_size_{world}_rank_{rank}.pt")
        finally:
            dist.destroy_process_group()
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world}))


@pytest.mark.parametrize(
    ("mesh", "dim", "read"),
    [
        ((1,), 0, 1),
        ((4,), 0, 4),
        ((3,), 1, 3),
        ((2, 2), 0, 2),
        ((2, 2), 1, 2),
        ((1, 4), 0, 4),
        ((4, 1), 0, 1),
        ((2, 3), None, 1),
    ],
)
def test_shards_of_one_copy_of_the_weights_are_put_together(
    tmp_path: Path, mesh: tuple[int, ...], dim: int | None, read: int
) -> None:
    """read: how many ranks' files it takes; the other copies' are not needed."""
    import torch
    from torch.distributed.tensor import Replicate, Shard

    from tbexp.training.export import gathered

    state = {"a": torch.arange(48.0).reshape(8, 6), "b": torch.arange(9.0).reshape(3, 3)}
    placements = [*[Replicate()] * (len(mesh) - 1), Replicate() if dim is None else Shard(dim)]
    saved_by_ranks(tmp_path / "actor", state, mesh, placements)
    for rank in range(read, math.prod(mesh)):
        (tmp_path / "actor" / f"model_world_size_{math.prod(mesh)}_rank_{rank}.pt").unlink()
    found = gathered(tmp_path / "actor")
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], whole) for name, whole in state.items())


def test_weights_divided_twice_are_refused(tmp_path: Path) -> None:
    import torch
    from torch.distributed.tensor import Shard

    from tbexp.training.export import gathered

    saved_by_ranks(tmp_path / "actor", {"a": torch.zeros(8, 6)}, (2, 2), [Shard(1), Shard(0)])
    with pytest.raises(ValueError, match=r"a is divided as \(Shard\(dim=1\), Shard\(dim=0\)\)"):
        gathered(tmp_path / "actor")


@pytest.mark.parametrize("only", [False, True])
def test_a_lora_checkpoint_is_merged_as_peft_merges_it(tmp_path: Path, base: Path, only: bool) -> None:
    import torch
    from peft import LoraConfig, TaskType, get_peft_model

    from tbexp.training.export import export

    settings = LoraConfig(task_type=TaskType.CAUSAL_LM, r=4, lora_alpha=8, target_modules="all-linear", bias="none")
    trained = get_peft_model(loaded(base), settings)
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.1 * torch.randn_like(parameter))
    state = {name: tensor.clone() for name, tensor in trained.state_dict().items() if not only or "lora_" in name}
    assert sum("lora_B" in name for name in state) == 14  # seven projections in each of two layers
    saved = checkpoint(tmp_path, state, {"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"})
    export(saved, base, tmp_path / "chosen")
    before, merged = logits(loaded(base)), logits(loaded(tmp_path / "chosen"))
    torch.testing.assert_close(merged, logits(trained.merge_and_unload()), atol=1e-5, rtol=0)
    assert (merged - before).abs().max() > 0.01
    assert weights.fault(tmp_path / "chosen", base) == ""


def test_adapters_that_are_not_plain_lora_are_refused(tmp_path: Path, base: Path) -> None:
    from peft import LoraConfig, get_peft_model

    from tbexp.training.export import export

    trained = get_peft_model(loaded(base), LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"], use_dora=True))
    with pytest.raises(ValueError, match="2 weights of adapters that are not plain LoRA"):
        export(checkpoint(tmp_path, trained.state_dict(), {"r": 4, "lora_alpha": 8}), base, tmp_path / "chosen")
    assert not (tmp_path / "chosen").exists()


def test_weights_that_are_not_finite_are_not_exported(tmp_path: Path, base: Path) -> None:
    from tbexp.training.export import export

    state = model_of().state_dict()
    state["model.norm.weight"][3] = float("nan")
    with pytest.raises(ValueError, match=r"1 weights that are not finite, such as model\.norm\.weight"):
        export(checkpoint(tmp_path, state), base, tmp_path / "chosen")


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (lambda f: None, ""),
        (lambda f: cut(f / "model.safetensors", 5), "model.safetensors has"),
        (lambda f: (f / "model.safetensors").write_bytes(b"no"), "is no safetensors file"),
        (lambda f: (f / "model.safetensors").unlink(), "it has no safetensors files"),
        (lambda f: (f / "config.json").write_text("{}"), "names no model_type"),
        (lambda f: (f / "config.json").unlink(), "FileNotFoundError"),
        (
            lambda f: (f / weights.INDEX).write_text('{"weight_map": {"x": "y"}}'),
            "1 weights of its index are in no file",
        ),
    ],
)
def test_a_folder_that_is_not_whole_says_why(base: Path, harm: Any, fault: str) -> None:
    harm(base)
    found = weights.fault(base)
    assert found.startswith(fault) or fault in found
    assert bool(found) == bool(fault)


def cut(file: Path, count: int) -> None:
    file.write_bytes(file.read_bytes()[:-count])
