"""The base policies that the rental desk can make: which there are, their identity, and building one once.

Decided here: a policy is cached under a key of its settings and of the code that its lessons come from; jobs that need
the same one at once wait for the one that builds it; a build that was killed goes on.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from filelock import FileLock

from tbexp.config.schema import Imitation, ModelConfig
from tbexp.samples.imitation import Progress, imitate

VERSION = 4  # raised when a change elsewhere makes another policy of the same settings
# What a lesson is made of; a test holds this to what is imported. Other modules of the room may change freely.
LESSONS = [
    *("conversations", "desk", "imitation", "imitation_loss", "machines_out", "money", "shapes", "shipped"),
    *("situation", "speech", "tools", "tiny_words"),
]


def settings_of(config: ModelConfig) -> Imitation:
    """How the model of this config imitates."""
    return config.tiny if config.kind == "tiny" else config.warmup


def base_key(config: ModelConfig) -> str:
    """Identity of the policy that these settings build. For kind=warmed it starts from `path`, or from SmolLM2."""
    start = None
    if config.kind == "warmed":
        from tbexp.samples.warmed import start_identity

        start = start_identity(config)
    of = [VERSION, config.kind, config.format, settings_of(config).model_dump(), start]
    sha = hashlib.sha256(json.dumps(of, sort_keys=True).encode())
    own = "tiny" if config.kind == "tiny" else "warmed"
    for module in (*LESSONS, own):
        sha.update(Path(__file__).with_name(f"{module}.py").read_bytes())
    return sha.hexdigest()[:16]


def build_base(
    config: ModelConfig,
    folder: Path,
    *,
    device: str = "cpu",
    progress: Progress | None = None,
    alone: Callable[[Path], AbstractContextManager[object]] = FileLock,
) -> Path:
    """The Hugging Face folder of the policy, built unless it is there. device: where it learns, cpu or cuda. alone:
    holds the lock of that name.
    """
    from tbexp.interpret import Renderer

    folder.parent.mkdir(parents=True, exist_ok=True)
    work = folder.with_name(folder.name + ".work")
    with alone(folder.with_name(folder.name + ".lock")):
        if (folder / "config.json").exists():
            return folder
        work.mkdir(exist_ok=True)
        model, tokenizer = first_weights(config, device)
        renderer = Renderer(tokenizer, format=config.format)
        model = imitate(model, renderer, settings_of(config), work / "checkpoint.pt", progress)
        done = work / "done"
        shutil.rmtree(done, ignore_errors=True)
        if config.kind == "warmed":
            model = model.bfloat16()
        model.save_pretrained(done)
        tokenizer.save_pretrained(done)
        done.rename(folder)
        shutil.rmtree(work)
    del model
    give_back(device)
    return folder


def give_back(device: str) -> None:
    """Memory that is free in this process and counts as its own: what comes next is done by others."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def first_weights(config: ModelConfig, device: str) -> tuple[Any, Any]:
    """The model in float32 before it has seen anything of the desk, and its tokenizer."""
    if config.kind == "warmed":
        from tbexp.samples.warmed import load_start

        model, tokenizer = load_start(config)
    else:
        from tbexp.samples.tiny import make_model
        from tbexp.samples.tiny_words import make_tokenizer

        tokenizer = make_tokenizer()
        model = make_model(config, tokenizer)
    return model.to(device), tokenizer
