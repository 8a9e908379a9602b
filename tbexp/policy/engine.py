"""Batched sampling from a Hugging Face causal language model, for models small enough to run without vLLM.

The same engine generates in probe and evaluate (in the run's own process) and behind verl's rollout in training.

Decided here: - Requests join and leave the running batch between two decoding steps. Rows of the batch lie side by
side in one key/value buffer; a conversation that waits for its tools keeps its keys and values beside it, so a turn
costs its new tokens only. What a new conversation shares with an earlier one (system prompt, tools) is copied, not
computed. - Equal results whatever else is in the batch, so that a run that was killed ends in the same rows as one
that was not. Draw t of a request depends on its seed and t alone. The probabilities would still differ in the last
bits with the shape of a matrix product, and 1 draw in a million with them; float64 makes that about 1 in 10^13.
Measured on two cores with the tiny policy, float64 costs 1.4 times float32's time (tests/benchmarks/bench_engine.py).

Log-probabilities are those of the distribution at the request's temperature before top-k and top-p cut it: what a
trainer computes from the same logits. Greedy requests (temperature 0) report them at temperature 1.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers.cache_utils import Cache

from tbexp.config.schema import Sampling
from tbexp.policy.tokens import Generated

log = logging.getLogger(__name__)

PREFILL_TOKENS = 8192  # padded tokens of one prefill at most
TEMPLATES = 4  # prompts kept for what later conversations share with them
SHARED_AT_LEAST = 32  # tokens; below, two prompts are held to share nothing


@dataclass(eq=False, slots=True)
class Request:
    """One completion on its way. `length`: tokens whose keys and values are in the row."""

    ids: list[int]
    max_tokens: int
    session: str
    sampling: Sampling
    draws: random.Random
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Generated]
    made: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    length: int = 0


@dataclass(eq=False, slots=True)
class Kept:
    """Keys and values of a conversation's tokens: [layers, 2, heads, length, dim]."""

    ids: list[int]
    values: torch.Tensor


class TransformersEngine:
    """model: any causal model of transformers with full attention, moved to `dtype` here. end_ids: tokens that end a
    completion.

    slots: requests decoded at once; more wait. max_context: tokens of prompt and completion together. kept: waiting
    conversations whose keys and values are kept; the longest unused go first, and are computed again when they come
    back.
    """

    def __init__(
        self,
        model: Any,
        *,
        end_ids: Iterable[int],
        slots: int,
        max_context: int,
        threads: int = 1,
        dtype: torch.dtype = torch.float64,
        kept: int | None = None,
    ):
        self.model = model.to(dtype).eval()
        self.end_ids = frozenset(end_ids)
        self.slots, self.max_context, self.threads = slots, max_context, threads
        self.prefilled = self.decoded = self.reused = 0  # tokens, for benchmarks
        config = model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        device = next(model.parameters()).device
        shape = (config.num_hidden_layers, 2, slots, heads, max_context + 1, dim)
        self._values = torch.zeros(shape, dtype=dtype, device=device)
        self._cache = _RowCache(self._values)
        self._rows: list[Request] = []
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._templates: OrderedDict[int, Kept] = OrderedDict()
        self._most_kept = 4 * slots if kept is None else kept
        self._inbox: queue.SimpleQueue[Request | Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: list[Request] = []
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    # -- from the event loop

    async def generate(
        self, ids: Sequence[int], *, max_tokens: int, session: str, seed: int, sampling: Sampling
    ) -> Generated:
        """A completion of `ids`. ValueError when prompt and `max_tokens` exceed the context."""
        if not ids or max_tokens < 1 or len(ids) + max_tokens > self.max_context:
            raise ValueError(f"{len(ids)} + {max_tokens} tokens, the context has {self.max_context}")
        loop = asyncio.get_running_loop()
        request = Request(
            ids=list(ids),
            max_tokens=max_tokens,
            session=session,
            sampling=sampling,
            draws=random.Random(seed),
            loop=loop,
            future=loop.create_future(),
        )
        self._inbox.put(request)
        return await request.future

    def forget(self, session: str) -> None:
        """The conversation is over: what is kept of it may go."""
        self._inbox.put(lambda: self._drop(session))

    def _drop(self, session: str) -> None:
        self._kept.pop(session, None)

    async def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """New weights by name (tied ones may be missing). Everything kept was computed by the old ones and is
        dropped.
        """
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        pairs = dict(weights)

        def load() -> None:
            try:
                own = self.model.state_dict()
                unknown = [name for name in pairs if name not in own]
                if unknown:
                    raise ValueError(f"the model has no weights {', '.join(unknown[:5])}")
                self.model.load_state_dict(pairs, strict=False)
                self._kept.clear()
                self._templates.clear()
            except Exception as error:
                loop.call_soon_threadsafe(_settle, done, None, error)
            else:
                loop.call_soon_threadsafe(_settle, done, None, None)

        self._inbox.put(load)
        await done

    async def close(self) -> None:
        """Ends the thread; requests that are still on their way are given up."""
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)

    # -- in the thread

    def _work(self) -> None:
        torch.set_num_threads(self.threads)
        with torch.inference_mode():
            while self._take():
                try:
                    self._admit()
                    if self._rows:
                        self._decode()
                except Exception as error:
                    log.exception("the engine failed")
                    for request in [*self._rows, *self._waiting]:
                        self._answer(request, None, error)
                    self._rows, self._waiting = [], []

    def _take(self) -> bool:
        """Empties the inbox, waiting for something to do. False: the engine is to end."""
        while True:
            idle = not self._rows and not self._waiting
            try:
                item = self._inbox.get(block=idle)
            except queue.Empty:
                return True
            if item is None:
                error = RuntimeError("the engine was closed")
                for request in [*self._rows, *self._waiting]:
                    self._answer(request, None, error)
                return False
            if isinstance(item, Request):
                self._waiting.append(item)
            else:
                item()

    def _admit(self) -> None:
        """Moves waiting requests into free rows and computes what their prompts have new."""
        while self._waiting and len(self._rows) < self.slots:
            joined: list[Request] = []
            first = len(self._rows)
            widest = 0
            fresh_prompt = False
            while self._waiting and first + len(joined) < self.slots:
                request = self._waiting[0]
                source, shared = self._best(request)
                if source is None:
                    if fresh_prompt:
                        break  # it may share the prompt that is being computed for the first time
                    fresh_prompt = True
                new = len(request.ids) - shared
                if joined and max(widest, new) * (len(joined) + 1) > PREFILL_TOKENS:
                    break
                self._waiting.pop(0)
                if source is not None:
                    self._values[:, :, first + len(joined), :, :shared] = source.values[:, :, :, :shared]
                    self.reused += shared
                request.length = shared
                widest = max(widest, new)
                joined.append(request)
            self._rows.extend(joined)
            self._prefill(joined, first, widest)
            if fresh_prompt:
                self._keep_template(joined, first)
            self._retire()

    def _best(self, request: Request) -> tuple[Kept | None, int]:
        """Where the longest beginning of the prompt is known from, and its length; at least one token is computed
        anew.
        """
        kept = self._kept.pop(request.session, None)
        most = len(request.ids) - 1
        if kept is not None:
            shared = min(_common(kept.ids, request.ids), most)
            if shared >= SHARED_AT_LEAST:
                return kept, shared
        best, length = None, SHARED_AT_LEAST - 1
        for template in self._templates.values():
            shared = min(_common(template.ids, request.ids), most)
            if shared > length:
                best, length = template, shared
        return (best, length) if best is not None else (None, 0)

    def _prefill(self, joined: list[Request], first: int, width: int) -> None:
        rows, pad = len(joined), next(iter(self.end_ids), 0)
        tokens = torch.full((rows, width), pad)
        starts = torch.tensor([request.length for request in joined])
        last = torch.tensor([len(request.ids) - request.length - 1 for request in joined])
        for number, request in enumerate(joined):
            new = request.ids[request.length :]
            tokens[number, : len(new)] = torch.tensor(new)
            self.prefilled += len(new)
        # Padding lies behind a row's end: it is written over before anything looks at it.
        positions = (starts[:, None] + torch.arange(width)).clamp_(max=self.max_context)
        hidden = self._forward(tokens, positions, first)
        for request in joined:
            request.length = len(request.ids)
        self._sample(joined, hidden[torch.arange(rows), last])

    def _decode(self) -> None:
        tokens = torch.tensor([[request.made[-1]] for request in self._rows])
        positions = torch.tensor([[request.length] for request in self._rows])
        hidden = self._forward(tokens, positions, 0)
        for request in self._rows:
            request.length += 1
        self._sample(self._rows, hidden[:, 0])
        self._retire()

    def _forward(self, tokens: torch.Tensor, positions: torch.Tensor, first: int) -> torch.Tensor:
        """Hidden states [rows, width, hidden] of tokens at their positions, in the rows from `first` on."""
        until = int(positions.max()) + 1
        mask = torch.arange(until)[None, None, None, :] <= positions[:, None, :, None]
        device = self._values.device
        self._cache.aim(first, positions.to(device), until)
        output = self.model.get_decoder()(
            input_ids=tokens.to(device),
            attention_mask=mask.to(device),
            position_ids=positions.to(device),
            past_key_values=self._cache,
            use_cache=True,
        )
        hidden: torch.Tensor = output.last_hidden_state
        return hidden

    def _sample(self, requests: Sequence[Request], hidden: torch.Tensor) -> None:
        logits = self.model.get_output_embeddings()(hidden).double().cpu()
        heat = torch.tensor([r.sampling.temperature if r.sampling.temperature > 0 else 1.0 for r in requests])
        logprobs = torch.log_softmax(logits / heat[:, None].double(), -1)
        weights = logprobs.exp()
        for number, request in enumerate(requests):
            if 0 < request.sampling.top_k < weights.shape[1] or request.sampling.top_p < 1.0:
                weights[number] = _cut(weights[number], request.sampling)
        cumulative = weights.cumsum(-1)
        draws = torch.tensor([[request.draws.random()] for request in requests], dtype=torch.float64)
        chosen = torch.searchsorted(cumulative, draws * cumulative[:, -1:], right=True)[:, 0]
        chosen.clamp_(max=weights.shape[1] - 1)
        for number, request in enumerate(requests):
            if request.sampling.temperature == 0:
                chosen[number] = logits[number].argmax()
        picked = logprobs.gather(1, chosen[:, None])[:, 0].tolist()
        for request, token, logprob in zip(requests, chosen.tolist(), picked, strict=True):
            request.made.append(token)
            request.logprobs.append(logprob)
        self.decoded += len(requests)

    def _retire(self) -> None:
        """Answers finished requests and closes the gaps that they leave."""
        number = 0
        while number < len(self._rows):
            request = self._rows[number]
            ended = request.made[-1] in self.end_ids
            if not ended and len(request.made) < request.max_tokens:
                number += 1
                continue
            self._keep(request, number)
            tail = self._rows.pop()
            if tail is not request:
                here, there = (
                    self._values[:, :, number, :, : tail.length],
                    self._values[:, :, len(self._rows), :, : tail.length],
                )
                here.copy_(there)
                self._rows[number] = tail
            self._answer(request, Generated(request.made, request.logprobs, "stop" if ended else "length"), None)

    def _keep(self, request: Request, row: int) -> None:
        if self._most_kept < 1:
            return
        tokens = [*request.ids, *request.made][: request.length]
        self._kept[request.session] = Kept(tokens, self._values[:, :, row, :, : request.length].clone())
        while len(self._kept) > self._most_kept:
            self._kept.popitem(last=False)

    def _keep_template(self, joined: Sequence[Request], first: int) -> None:
        """Keeps the prompt that shared nothing with any other, for those that will share with it."""
        for number, request in enumerate(joined):
            if all(_common(t.ids, request.ids) < SHARED_AT_LEAST for t in self._templates.values()):
                values = self._values[:, :, first + number, :, : len(request.ids)].clone()
                self._templates[id(request)] = Kept(list(request.ids), values)
                while len(self._templates) > TEMPLATES:
                    self._templates.popitem(last=False)

    def _answer(self, request: Request, value: Generated | None, error: BaseException | None) -> None:
        try:
            request.loop.call_soon_threadsafe(_settle, request.future, value, error)
        except RuntimeError:  # the event loop is closed: nobody waits any more
            log.debug("nobody waits for %s", request.session)


class _RowCache(Cache):  # type: ignore[misc]
    """transformers' cache interface over a part of the engine's buffer: some rows, each at its own positions."""

    def __init__(self, values: torch.Tensor):
        super().__init__(layers=[])
        self._values = values
        self._first = self._until = 0
        self._positions = torch.zeros(0, 0, dtype=torch.long)
        self._rows = torch.zeros(0, 1, dtype=torch.long)

    def aim(self, first: int, positions: torch.Tensor, until: int) -> None:
        """The next forward writes `positions` of the rows from `first` on and sees everything before `until`."""
        self._first, self._positions, self._until = first, positions, until
        self._rows = torch.arange(first, first + positions.shape[0], device=positions.device)[:, None]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._values[layer_idx, 0], self._values[layer_idx, 1]
        keys[self._rows, :, self._positions] = key_states.transpose(1, 2)
        values[self._rows, :, self._positions] = value_states.transpose(1, 2)
        rows = slice(self._first, self._first + self._positions.shape[0])
        return keys[rows, :, : self._until], values[rows, :, : self._until]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # positions and mask are always given

    def get_mask_sizes(self, *_: Any, **__: Any) -> tuple[int, int]:
        return self._until, 0


def load_engine(
    folder: Path | str, *, slots: int, max_context: int, threads: int = 1, dtype: torch.dtype = torch.float64
) -> TransformersEngine:
    """The engine of a Hugging Face folder; completions end at its tokenizer's or generation config's end tokens."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    named = model.generation_config.eos_token_id
    ends = {*(named if isinstance(named, list) else [named]), tokenizer.eos_token_id} - {None}
    return TransformersEngine(model, end_ids=ends, slots=slots, max_context=max_context, threads=threads, dtype=dtype)


def _cut(weights: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The distribution without what top-k and top-p leave out; not normalised. Equal weights are kept in order of
    token.
    """
    ordered, order = weights.sort(descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if 0 < sampling.top_k < len(ordered):
        keep[sampling.top_k :] = False
        ordered = ordered * keep
    if sampling.top_p < 1.0:
        share = ordered.cumsum(-1) / ordered.sum()
        keep &= torch.cat([torch.zeros(1, dtype=share.dtype), share[:-1]]) < sampling.top_p
    return torch.zeros_like(weights).scatter(0, order, ordered * keep)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    if a[: len(b)] == b[: len(a)]:
        return min(len(a), len(b))
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
