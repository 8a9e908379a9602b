"""The tiny base policy: a Qwen3 of under a million parameters that has seen how others work at the rental desk.

Decided here: how it learns. It imitates `demonstrations`, mistakes included, so it begins as a clerk who has seen every
rule kept and broken, and its conversations are rendered by the same code as in every attempt. It never sees a shipped
task, and neither it nor the environment knows a task's name. Left to others: how often each mistake is shown
(shapes.py), and what a token is (tiny_words.py).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from tbexp.config.schema import ModelConfig

if TYPE_CHECKING:
    from tbexp.interpret import Renderer
    from tbexp.samples import Demonstration

VERSION = 3  # raised when a change here makes another policy of the same settings
CHECKPOINT_EVERY = 50  # steps
WARM_UP = 40  # steps
# Standard deviation of fresh weights. With the usual 0.02 a model this narrow needs twice the steps to begin to copy.
SPREAD = 0.06

Progress = Callable[[int, int, Mapping[str, float]], None]  # steps done, steps in all, figures
Row = tuple[Sequence[int], Sequence[int]]  # tokens, and 1 where the policy produced them


def tiny_key(config: ModelConfig) -> str:
    """Identity of the policy that these settings build: they, and the code of the domain that it learns."""
    sha = hashlib.sha256(json.dumps([VERSION, config.format, config.tiny.model_dump()], sort_keys=True).encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        sha.update(file.read_bytes())
    return sha.hexdigest()[:16]


def build_tiny(config: ModelConfig, folder: Path, *, progress: Progress | None = None) -> Path:
    """The Hugging Face folder of the policy, built unless it is there. Killed, it goes on from its last checkpoint.

    Jobs that need the same policy at once wait for the one that builds it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = folder.with_name(folder.name + ".work")
    with FileLock(folder.with_name(folder.name + ".lock")):
        if (folder / "config.json").exists():
            return folder
        from tbexp.samples.tiny_words import make_tokenizer

        work.mkdir(exist_ok=True)
        tokenizer = make_tokenizer()
        model = imitate(config, tokenizer, work / "checkpoint.pt", progress)
        done = work / "done"
        shutil.rmtree(done, ignore_errors=True)
        model.save_pretrained(done)
        tokenizer.save_pretrained(done)
        done.rename(folder)
        shutil.rmtree(work)
    return folder


def make_model(config: ModelConfig, tokenizer: Any) -> Any:
    """A fresh model; its weights depend on `tiny.seed` alone."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tiny = config.tiny
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(tiny.seed)
        return Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=len(tokenizer),
                hidden_size=tiny.hidden,
                intermediate_size=tiny.intermediate,
                num_hidden_layers=tiny.layers,
                num_attention_heads=tiny.heads,
                num_key_value_heads=tiny.kv_heads,
                head_dim=tiny.hidden // tiny.heads,
                max_position_embeddings=config.max_context,
                tie_word_embeddings=True,
                initializer_range=SPREAD,
                attention_dropout=0.0,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=None,
            )
        )


def imitate(config: ModelConfig, tokenizer: Any, checkpoint: Path, progress: Progress | None) -> Any:
    """The model after `tiny.steps` steps of imitation; each step has demonstrations of its own, the same in every
    build.

    The state of every 50th step is kept in `checkpoint`, from which a build that was killed goes on as if it had not
    been.
    """
    import torch

    from tbexp.interpret import Renderer
    from tbexp.samples.tiny_loss import imitation_loss

    tiny = config.tiny
    renderer = Renderer(tokenizer, format=config.format)
    model = make_model(config, tokenizer).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=tiny.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    start = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
    threads = torch.get_num_threads()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    try:
        for step in range(start, tiny.steps):
            for group in optimizer.param_groups:
                group["lr"] = tiny.learning_rate * rate(step, tiny.steps)
            loss = imitation_loss(model, *batch_of(renderer, tiny.seed, step, tiny.batch, tiny.mistakes))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if progress:
                progress(step + 1, tiny.steps, {"loss": float(loss.detach())})
            if (step + 1) % CHECKPOINT_EVERY == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
                torch.save(state, checkpoint.with_suffix(".new"))
                checkpoint.with_suffix(".new").replace(checkpoint)
    finally:
        torch.set_num_threads(threads)
    model.set_attn_implementation("sdpa")
    return model.eval()


def rate(step: int, steps: int) -> float:
    """The share of the learning rate: a linear rise, then half a cosine down to a twentieth."""
    return min(1.0, (step + 1) / WARM_UP) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def batch_of(renderer: Renderer, seed: int, step: int, size: int, mistakes: float) -> tuple[list[int], list[Row]]:
    """The tokens that all conversations of a step begin with, and the rest of each."""
    from tbexp.samples.conversations import demonstrations

    shown = itertools.islice(demonstrations((seed + 1) * 1_000_003 + step, mistakes), size)
    rows = [tokens_of(renderer, each) for each in shown]
    shortest = min(len(ids) for ids, _ in rows)
    first = rows[0][0]
    common = next((i for i in range(shortest) if any(ids[i] != first[i] for ids, _ in rows)), shortest - 1)
    return list(first[:common]), [(ids[common:], mask[common:]) for ids, mask in rows]


def tokens_of(renderer: Renderer, shown: Demonstration) -> Row:
    """A demonstration as tokens and mask, made turn by turn as an attempt is."""
    from tbexp.interpret import render_call
    from tbexp.interpret.messages import Message

    messages = list(shown.messages)
    opening = next(i for i, m in enumerate(messages) if m.role == "assistant")
    talk = renderer.open(messages[:opening], shown.tools)
    heard: list[Message] = []
    for message in messages[opening:]:
        if message.role != "assistant":
            heard.append(message)
            continue
        if heard:
            talk.add(heard)
            heard = []
        calls = "\n".join(render_call(call, format=renderer.format, tools=shown.tools) for call in message.calls)
        talk.produced([*renderer.encode(message.content + calls), *renderer.end_ids], None)
    return talk.tokens, talk.mask
