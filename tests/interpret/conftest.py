from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def byte_level() -> Any:
    """A function that makes a small BPE tokenizer of bytes: its special tokens, and more added ones."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    def make(special: list[str], added: list[Any] = []) -> Any:  # noqa: B006
        model = Tokenizer(models.BPE())
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = decoders.ByteLevel()
        corpus = [
            f"user assistant system rent machine {a} for {a * 7} days <function=rent> <parameter=days>\n"
            for a in range(200)
        ]
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, initial_alphabet=alphabet)
        model.train_from_iterator(corpus, trainer)
        model.add_tokens(added)
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=model, eos_token="<|im_end|>", pad_token="<|endoftext|>", additional_special_tokens=special
        )

    return make
