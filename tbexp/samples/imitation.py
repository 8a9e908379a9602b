"""How a base policy of the rental desk learns: it imitates `demonstrations`, mistakes included.

Decided here: it begins as a clerk who has seen every rule kept and broken, and its conversations are rendered by the
same code as in every attempt. It never sees a shipped task, and neither it nor the environment knows a task's name.
Left to others: how often each mistake is shown (shapes.py), and which model learns (tiny.py, warmed.py).
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tbexp.config.schema import Imitation

if TYPE_CHECKING:
    from tbexp.interpret import Renderer
    from tbexp.samples import Demonstration

CHECKPOINT_EVERY = 50  # steps
WARM_UP = 40  # steps

Progress = Callable[[int, int, Mapping[str, float]], None]  # steps done, steps in all, figures
Row = tuple[Sequence[int], Sequence[int]]  # tokens, and 1 where the policy produced them


def imitate(model: Any, renderer: Renderer, settings: Imitation, checkpoint: Path, progress: Progress | None) -> Any:
    """The model after `settings.steps` steps of imitation, in place and on its own device; each step has
    demonstrations of its own, the same in every build.

    The state of every 50th step is kept in `checkpoint`, from which a build that was killed goes on as if it had not
    been. On a GPU the forward pass is in bfloat16, the weights and the optimiser in float32.
    """
    import torch

    from tbexp.samples.imitation_loss import imitation_loss

    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    start = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True, map_location=model.device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
    device = model.device.type
    threads = torch.get_num_threads()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    try:
        for step in range(start, settings.steps):
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * rate(step, settings.steps)
            shown = batch_of(renderer, settings.seed, step, settings.batch, settings.mistakes)
            with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
                loss = imitation_loss(model, *shown)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if progress:
                progress(step + 1, settings.steps, {"loss": float(loss.detach())})
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
