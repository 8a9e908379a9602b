"""A generate-in-batches engine with the interface of `tbexp.policy.engine`, until that exists."""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from tbexp.training.agent_loop import Generated


class Engine:
    def __init__(self, folder: str, slots: int):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        self.eos, self.pad, self.slots = tokenizer.eos_token_id, tokenizer.pad_token_id, slots
        self.waiting: list[Any] = []
        self.task: asyncio.Task[None] | None = None

    async def generate(self, ids: list[int], *, session: str, max_tokens: int, sampling: Any, seed: int) -> Generated:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((ids, max_tokens, future))
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self.work())
        return await future

    async def work(self) -> None:
        while self.waiting:
            await asyncio.sleep(0.01)
            batch, self.waiting = self.waiting[: self.slots], self.waiting[self.slots :]
            for (_, _, future), made in zip(batch, await asyncio.to_thread(self.sample, batch), strict=True):
                future.set_result(made)

    @torch.inference_mode()
    def sample(self, batch: list[Any]) -> list[Generated]:
        width = max(len(b[0]) for b in batch)
        ids = torch.full((len(batch), width), self.pad)
        mask = torch.zeros_like(ids)
        for i, (prompt, _, _) in enumerate(batch):
            ids[i, width - len(prompt) :] = torch.tensor(prompt)
            mask[i, width - len(prompt) :] = 1
        out = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max(b[1] for b in batch),
            do_sample=True,
            top_k=0,
            eos_token_id=self.eos,
            pad_token_id=self.pad,
            return_dict_in_generate=True,
            output_scores=True,
        )
        scores = self.model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
        made = []
        for i, (_, limit, _) in enumerate(batch):
            tokens = out.sequences[i, width:].tolist()[:limit]
            end = tokens.index(self.eos) + 1 if self.eos in tokens else len(tokens)
            made.append(Generated(tokens[:end], scores[i, :end].tolist(), "stop" if self.eos in tokens else "length"))
        return made

    async def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        self.model.load_state_dict(dict(weights), strict=False)


def load_engine(folder: str, slots: int) -> Engine:
    return Engine(folder, slots)
