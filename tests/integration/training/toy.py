"""A toy task and model for the tests of training. Importable by Ray's workers, so it stands in a file of its own."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tbexp.config.schema import Sampling
from tbexp.errors import WorldError
from tbexp.training.agent_loop import AttemptLoop, Generator, Played


class ToyLoop(AttemptLoop):
    """Two short turns; the task's name decides the rewards. `flat-*`: all 1, `mixed-*`: 0 and 1 in turn.

    TOY_NAN: log-probabilities are no numbers from this version of the weights on.
    """

    async def play(self, task: str, *, seed: int, generate: Generator, sampling: Sampling) -> Played:
        generate.others = {"user_prompt_tokens": 10, "user_completion_tokens": 2}
        started = time.monotonic()
        fail_as_planned(task, self.session, self.retry)
        prompt = self.tokenizer.encode(f"{task}\n", add_special_tokens=False)
        tokens, mask, logprobs = list(prompt), [0] * len(prompt), [0.0] * len(prompt)
        for turn in range(2):
            if turn:
                more = self.tokenizer.encode("\nmore\n", add_special_tokens=False)
                tokens, mask, logprobs = tokens + more, mask + [0] * len(more), logprobs + [0.0] * len(more)
            made = await generate(tokens, max_tokens=8, session=f"{task}-{seed}", seed=seed + turn, sampling=sampling)
            tokens = tokens + list(made.token_ids)
            mask += [1] * len(made.token_ids)
            logprobs += list(made.logprobs or [])
        if max(generate.versions, default=0) >= int(os.environ.get("TOY_NAN", 10**9)):
            logprobs = [float("nan")] * len(logprobs)
        reward = 1.0 if task.startswith("flat") else float(self.session % 2)
        seconds = {"tools": 0.001, "total": time.monotonic() - started + 0.001}
        return Played(tokens, mask, logprobs, len(prompt), reward, 2, "done", seconds)


def fail_as_planned(task: str, session: int, retry: int) -> None:
    """TOY_FAIL: comma-separated `task:session:tries`, session `*` for all: the first tries end as system errors."""
    for plan in filter(None, os.environ.get("TOY_FAIL", "").split(",")):
        uid, which, tries = plan.split(":")
        if uid == task and which in ("*", str(session)) and retry < int(tries):
            raise WorldError("tool_timeout", "as planned")


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
