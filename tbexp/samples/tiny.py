"""The tiny base policy: a Qwen3 of under a million parameters that has seen how others work at the rental desk.

Decided here: its words, its chat template, and how it learns. It imitates `demonstrations`, mistakes included, so it
begins as a clerk who has seen every rule kept and broken, and it is rendered by the same code as in every attempt. It
never sees a shipped task, and neither it nor the environment knows a task's name. Left to others: how often each
mistake is shown (shapes.py).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tbexp.config.schema import ModelConfig

if TYPE_CHECKING:
    from tbexp.interpret import Renderer

VERSION = 1  # raised when a change here makes another policy of the same settings
CHECKPOINT_EVERY = 50  # steps
ENDS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Pieces of Qwen's XML that always come together are one token each: a call of one argument takes 8 tokens.
FRAGMENTS = (
    "<tool_call>\n<function=",
    ">\n<parameter=",
    "\n</parameter>\n<parameter=",
    "\n</parameter>\n</function>\n</tool_call>",
    ">\n",
    " <DONE>",
)
IDENTIFIER = r"[A-Z]{1,2}-?\d+|\d+"
# A word takes the blank before it, and the one behind it if an identifier follows: identifiers are the same token wherever
# they stand, so copying one is a single step of attention.
WORD = r" ?[A-Za-z_']+(?: (?=[A-Z]{0,2}-?\d))?"
TEMPLATE = (
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}<|im_start|>tool\n{{ m.content }}<|im_end|>\n"
    "{%- else %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{%- if loop.first and tools %}"
    "{%- for t in tools %}{%- set f = t.function %}{{ '\n' + f.name }}("
    "{%- for name, p in (f.parameters.properties or {}).items() %}{{ name }}"
    "{%- if p.enum %}:{{ p.enum | join('|') }}{%- elif p.type and p.type != 'string' %}:{{ p.type }}{%- endif %}"
    "{%- if not loop.last %},{%- endif %}{%- endfor %}){%- endfor %}"
    "{%- endif %}"
    "{%- for c in m.tool_calls or [] %}"
    "{{ '<tool_call>\n<function=' + c.function.name + '>\n' }}"
    "{%- for name, value in c.function.arguments.items() %}"
    "{{ '<parameter=' + name + '>\n' }}{{ value if value is string else value | tojson }}{{ '\n</parameter>\n' }}"
    "{%- endfor %}"
    "{{ '</function>\n</tool_call>' }}{%- endfor %}<|im_end|>\n"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Progress = Callable[[int, int, Mapping[str, float]], None]  # steps done, steps in all, figures


def tiny_key(config: ModelConfig) -> str:
    """Identity of the policy that these settings build: they, and the code of the domain that it learns."""
    sha = hashlib.sha256(json.dumps([VERSION, config.format, config.tiny.model_dump()], sort_keys=True).encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        sha.update(file.read_bytes())
    return sha.hexdigest()[:16]


def build_tiny(config: ModelConfig, folder: Path, *, progress: Progress | None = None) -> Path:
    """The Hugging Face folder of the policy, built unless it is there. Killed, it goes on from its last checkpoint."""
    if (folder / "config.json").exists():
        return folder
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    work = folder.with_name(folder.name + ".work")
    work.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    model = imitate(config, tokenizer, work / "checkpoint.pt", progress)
    done = work / "done"
    shutil.rmtree(done, ignore_errors=True)
    model.save_pretrained(done)
    tokenizer.save_pretrained(done)
    done.rename(folder)
    shutil.rmtree(work)
    return folder


def make_tokenizer() -> Any:
    """Every word, identifier and amount of the domain is one token; any other text is spelled in bytes, without loss."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join([*FRAGMENTS, IDENTIFIER, WORD, r"\s+|."])), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words: dict[str, None] = {}
    for text in corpus():
        for piece, _ in split.pre_tokenize_str(text):
            words.setdefault(piece)
    # A word costs less than any spelling of it, so it is always taken whole.
    vocabulary = [(end, 0.0) for end in ENDS] + [(byte, -100.0) for byte in alphabet]
    vocabulary += [(word, -1.0) for word in sorted(words) if word not in set(alphabet)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=None, byte_fallback=False))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(end, special=True, normalized=False) for end in ENDS])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


def corpus() -> list[str]:
    """Texts that contain every word of the domain: demonstrations, and all identifiers and amounts."""
    from tbexp.interpret import render_call
    from tbexp.samples import situation
    from tbexp.samples.conversations import demonstrations

    texts = [f"{name}({','.join(p)})" for name, p in _tools()] + ["|".join(e) for e in _enums()]
    for each in ("CUSTOMERS", "MACHINES", "RENTALS", "INVOICES", "TICKETS", "AMOUNTS"):
        texts += [str(value) for value in getattr(situation, each)]
    texts += [f"{number}" for number in range(100)] + ["AP-1", "AP-2", "TK-1", "TK-2", "DM-0", "DM-1", "DM-2"]
    texts += [
        "system\n",
        "user\n",
        "assistant\n",
        "tool\n",
        "true",
        "false",
        "null",
        "integer",
        "number",
        "boolean",
        "array",
    ]
    for shown in itertools.islice(demonstrations(0, 0.5), 4000):
        for message in shown.messages:
            texts.append(message.content)
            texts += [render_call(call, format="qwen3_xml", tools=shown.tools) for call in message.calls]
    return texts


def _tools() -> list[tuple[str, list[str]]]:
    from tbexp.samples.tools import TOOLS

    return [(tool.name, list(tool.input_schema["properties"])) for tool in TOOLS]


def _enums() -> list[list[str]]:
    from tbexp.samples.tools import TOOLS

    schemas = [schema for tool in TOOLS for schema in tool.input_schema["properties"].values()]
    return [schema["enum"] for schema in schemas if "enum" in schema]


def make_model(config: ModelConfig, tokenizer: Any) -> Any:
    """A fresh model; its weights depend on `tiny.seed` alone."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tiny = config.tiny
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
            attention_dropout=0.0,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
    )


def imitate(config: ModelConfig, tokenizer: Any, checkpoint: Path, progress: Progress | None) -> Any:
    """The model after `tiny.steps` steps of imitation; each step has demonstrations of its own, the same in every
    build.
    """
    import torch

    from tbexp.interpret import Renderer

    tiny = config.tiny
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    renderer = Renderer(tokenizer, format=config.format)
    model = make_model(config, tokenizer).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=tiny.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    start = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
    for step in range(start, tiny.steps):
        if step and step % CHECKPOINT_EVERY == 0 and step > start:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)
        rate = (
            tiny.learning_rate
            * min(1.0, (step + 1) / 40)
            * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / tiny.steps)))
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = imitation_loss(model, *batch_of(renderer, tiny.seed, step, tiny.batch, tiny.mistakes))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if progress:
            progress(step + 1, tiny.steps, {"loss": float(loss.detach())})
    return model.eval()


def batch_of(renderer: Renderer, seed: int, step: int, size: int, mistakes: float) -> tuple[list[int], list[Any]]:
    """The tokens that all conversations begin with, and the rest of each with its mask."""
    from tbexp.samples.conversations import demonstrations

    rows = []
    for shown in itertools.islice(demonstrations((seed + 1) * 1_000_003 + step, mistakes), size):
        rows.append(tokens_of(renderer, shown))
    shortest = min(len(ids) for ids, _ in rows)
    first = rows[0][0]
    common = next((i for i in range(shortest) if any(ids[i] != first[i] for ids, _ in rows)), shortest - 1)
    return first[:common], [(ids[common:], mask[common:]) for ids, mask in rows]


def tokens_of(renderer: Renderer, shown: Any) -> tuple[list[int], list[int]]:
    """A demonstration as tokens and mask, made turn by turn as an attempt is."""
    from tbexp.interpret import render_call

    messages = list(shown.messages)
    opening = next(i for i, m in enumerate(messages) if m.role == "assistant")
    talk = renderer.open(messages[:opening], shown.tools)
    heard: list[Any] = []
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


def imitation_loss(model: Any, prefix: list[int], rows: list[Any]) -> Any:
    """Mean cross entropy of the policy's tokens. The common prefix is computed once, and every row attends to it."""
    import torch

    width = max(len(ids) for ids, _ in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for number, (ids, produced) in enumerate(rows):
        tokens[number, : len(ids)] = torch.tensor(ids)
        mask[number, : len(ids)] = torch.tensor(produced, dtype=torch.bool)
    decoder = model.get_decoder()
    shared = _SharedPrefix()
    decoder(input_ids=torch.tensor([prefix]), past_key_values=shared, use_cache=True)
    shared.rows = len(rows)
    positions = torch.arange(len(prefix), len(prefix) + width)
    seen = torch.arange(len(prefix) + width)[None, :] <= positions[:, None]
    hidden = decoder(
        input_ids=tokens,
        attention_mask=seen[None, None],
        position_ids=positions[None],
        past_key_values=shared,
        use_cache=True,
    ).last_hidden_state
    # The token at j is predicted at j - 1; what the policy says never begins a row.
    chosen = mask[:, 1:]
    logits = model.get_output_embeddings()(hidden[:, :-1][chosen])
    return torch.nn.functional.cross_entropy(logits, tokens[:, 1:][chosen])


def _shared_prefix() -> Any:
    from transformers.cache_utils import Cache

    class SharedPrefix(Cache):  # type: ignore[misc]
        """Keys and values of one row, with their gradients, that many rows attend to."""

        def __init__(self) -> None:
            super().__init__(layers=[])
            self.rows = 0
            self.pairs: list[tuple[Any, Any]] = []

        def update(self, key_states: Any, value_states: Any, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
            import torch

            if not self.rows:
                self.pairs.append((key_states, value_states))
                return key_states, value_states
            keys, values = (pair.expand(self.rows, -1, -1, -1) for pair in self.pairs[layer_idx])
            return torch.cat([keys, key_states], 2), torch.cat([values, value_states], 2)

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return 0

        def get_mask_sizes(self, query_length: Any, layer_idx: int = 0, *_: Any, **__: Any) -> tuple[int, int]:
            length = query_length if isinstance(query_length, int) else len(query_length)
            return length, 0

    return SharedPrefix()


_SharedPrefix = _shared_prefix
