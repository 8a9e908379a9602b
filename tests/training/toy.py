"""A toy task and model for the tests of training: say as many vowels as you can, in two turns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tbexp.config.schema import Sampling
from tbexp.errors import WorldError
from tbexp.training.agent_loop import AttemptLoop, Generator, Played


class ToyLoop(AttemptLoop):
    """The task's uid is the prompt. TOY_FAIL: comma-separated `uid:session:tries` whose first tries the world fails."""

    async def play(self, task: str, *, seed: int, generate: Generator, sampling: Sampling) -> Played:
        fail_planned(task, self.session, self.retry)
        prompt = self.tokenizer.encode(f"{task}\n", add_special_tokens=False)
        tokens, mask, logprobs = list(prompt), [0] * len(prompt), [0.0] * len(prompt)
        said = []
        for turn in range(2):
            if turn:
                more = self.tokenizer.encode("\nmore\n", add_special_tokens=False)
                tokens, mask, logprobs = tokens + more, mask + [0] * len(more), logprobs + [0.0] * len(more)
            made = await generate(tokens, max_tokens=12, session=f"{task}-{seed}", seed=seed + turn, sampling=sampling)
            tokens = tokens + made.token_ids
            mask += [1] * len(made.token_ids)
            logprobs += made.logprobs or []
            said += made.token_ids
        text = self.tokenizer.decode(said)
        if task.startswith("flat"):
            reward = 1.0
        else:
            reward = float(sum(c in "aeiou" for c in text) > 0.15 * len(text))
        return Played(tokens, mask, logprobs, len(prompt), reward, 2, "stop", {"tools": 0.001})


def fail_planned(task: str, session: int, retry: int) -> None:
    for plan in filter(None, os.environ.get("TOY_FAIL", "").split(",")):
        uid, which, tries = plan.split(":")
        if uid == task and which in ("*", str(session)) and retry < int(tries):
            raise WorldError("tool_timeout", "planned")


def build_model(folder: Path) -> Path:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(["more task one two three"], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def config(**changes: dict[str, Any]) -> Any:
    """A whole Config with toy settings; keyword arguments update single groups."""
    from tbexp.config.schema import Config

    groups: dict[str, Any] = {
        "name": "toy",
        "seed": 1,
        "stages": ["train"],
        "store": "store",
        "model": {"name": "toy", "kind": "folder", "max_context": 128},
        "tasks": {"name": "toy"},
        "buckets": {
            "name": "toy",
            "bands": {b: {"keep": True} for b in ("rarely", "hard", "medium", "often", "nearly_always")},
        },
        "group": {"name": "toy", "size": 4, "groups_per_update": 2},
        "optimizer": {"name": "toy", "lr": 1e-2},
        "topology": {"name": "cpu", "device": "cpu"},
        "launcher": {"name": "local", "kind": "local"},
        "policy": {"name": "local", "kind": "local", "sampling": {"max_tokens": 12}, "concurrency": 8},
        "user": {"name": "none", "kind": "none"},
        "judge": {"name": "none", "kind": "none"},
        "sandbox": {"name": "toy", "kind": "process"},
        "probe": {"name": "toy"},
        "selection": {"name": "toy"},
        "training": {"name": "toy", "steps": 2, "validate_every": 1, "validation_attempts": 2, "save_every": 1},
        "evaluation": {"name": "toy"},
        "prices": {"name": "none", "dated": "2026-01-01"},
        "tracking": {"name": "none", "kind": "none"},
    }
    for group, change in changes.items():
        groups[group] = {**groups[group], **change}
    return Config.model_validate(groups)
