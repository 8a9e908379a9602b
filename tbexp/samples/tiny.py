"""The tiny base policy: a Qwen3 of under a million parameters that starts from nothing.

Decided here: its architecture and first weights. What it learns is `imitation`'s, what a token is `tiny_words`'.
"""

from __future__ import annotations

from typing import Any

from tbexp.config.schema import ModelConfig

# Standard deviation of fresh weights. With the usual 0.02 a model this narrow needs twice the steps to begin to copy.
SPREAD = 0.06


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
