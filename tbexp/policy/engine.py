"""Batched sampling from a Hugging Face causal language model, in-process and inside verl's rollout server.

Decided here: continuous batching. Requests join between two steps, one thread runs the model, the asyncio loop stays
free. A conversation's keys and values are kept from turn to turn, and a prefix that several share, such as the system
prompt with its tools, is computed once (slots.py). How a token is drawn stands in sampling.py.

Results must not depend on which requests happen to share a batch: a killed run that is resumed has other batches. The
draw is a hash of seed and position; what is left is the rounding of the logits, which in float32 shifts probabilities
by about 1e-6 and would change a token now and then. In float64, 768 attempts run in batches of 64 and of 7 had all of
their 14,632 tokens equal, and log-probabilities within 1.4e-14. So small models on a CPU run in float64, at 0.6 of the
speed. Measured on one core at 2.6 GHz with 64 requests at once, tokens a second:

    model and context                       sampled float32  float64   prefilled float32  float64
    2 layers, 0.6 million, 160 tokens                 9,700    6,000              31,000   12,800
    2 layers, 0.6 million, 1,000 tokens               5,400    2,600              18,200    7,400
    4 layers, 0.9 million, 160 tokens                 7,300    4,500              21,500    9,900
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer

from tbexp.config.schema import Sampling
from tbexp.errors import UserError
from tbexp.policy.memory import memory, slots_that_fit
from tbexp.policy.policy import Finish
from tbexp.policy.sampling import Draw, draw_tokens
from tbexp.policy.slots import ATTENTION, Slots, Step, attend, bytes_of_slot
from tbexp.policy.tokens import Generated

log = logging.getLogger(__name__)

_SMALL = 20_000_000  # parameters up to which a CPU computes in float64
_TOKENS_AT_ONCE = 8192  # padded tokens of one prefill pass
_SCORES_AT_ONCE = 2**25  # attention scores of one prefill pass and layer
_ALIKE = 32  # shared tokens for which a prompt waits until a like one has been computed

AttentionInterface.register(ATTENTION, attend)


@dataclass(eq=False, slots=True)
class _Request:
    """ids: the prompt and what was drawn so far."""

    ids: list[int]
    session: str
    limit: int
    sampling: Sampling
    seed: int
    done: Callable[[Generated | BaseException], None]
    prompt: int
    slot: int = -1
    logprobs: list[float] = field(default_factory=list)
    dropped: bool = False

    def draw(self) -> Draw:
        how = self.sampling
        return Draw(self.seed, len(self.logprobs), how.temperature, how.top_p, how.top_k)


@dataclass(frozen=True, slots=True)
class _Task:
    """Something that the thread does between two steps."""

    run: Callable[[], None]
    done: Callable[[BaseException | None], None]


class TransformersEngine:
    """One model on one device.

    model: a causal language model whose layers all attend to the whole context (UserError otherwise). eos: tokens that
    end a completion. slots: conversations kept at once; more requests than that wait. max_context: tokens of one
    conversation.
    """

    def __init__(self, model: Any, *, eos: Iterable[int], slots: int, max_context: int, threads: int = 1):
        config = model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise UserError(
                "the transformers rollout needs full attention in every layer, and this model has "
                f"{', '.join(sorted(kinds))}; use topology.rollout=vllm"
            )
        self.model = model.eval()
        self.model.set_attn_implementation(ATTENTION)
        self.eos = frozenset(eos)
        self.max_context = max_context
        self._threads = threads
        self._heads = config.num_attention_heads
        self._slots = Slots(self.model, slots, max_context)
        self._inbox: queue.SimpleQueue[_Request | _Task | None] = queue.SimpleQueue()
        self._waiting: list[_Request] = []
        self._active: list[_Request] = []
        self._thread: threading.Thread | None = None
        self.steps = 0  # forward passes so far

    async def generate(
        self, ids: Sequence[int], *, session: str, max_tokens: int, sampling: Sampling, seed: int
    ) -> Generated:
        """At most `max_tokens` tokens after `ids`, fewer where the context ends; logprobs as in `sampling.draw_tokens`.

        session: requests with one name reuse its slot. The same ids, sampling and seed give the same tokens.
        """
        if not 0 < len(ids) < self.max_context:
            raise ValueError(f"a prompt of {len(ids)} tokens, and a conversation has 1 to {self.max_context}")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generated] = loop.create_future()
        request = _Request(
            ids=list(ids),
            session=session,
            limit=min(max_tokens, self.max_context - len(ids)),
            sampling=sampling,
            seed=seed,
            done=_deliver(loop, future),
            prompt=len(ids),
        )
        self._submit(request)
        try:
            return await future
        finally:
            request.dropped = True

    async def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace all weights; requests under way go on with the new ones. ValueError for names that are not its
        own."""
        new = dict(weights)
        await self._between_steps(lambda: self._load(new))

    def release(self, session: str) -> None:
        """The conversation is over: its slot may be taken by another."""
        self._submit(_Task(lambda: self._slots.release(session), lambda result: None))

    async def close(self) -> None:
        """End the thread; requests under way fail."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._inbox.put(None)
            await asyncio.to_thread(thread.join)

    async def _between_steps(self, run: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._submit(_Task(run, _deliver(loop, future)))
        await future

    def _submit(self, item: _Request | _Task) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
            self._thread.start()
        self._inbox.put(item)

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self.model.device.type == "cpu":
            torch.set_num_threads(self._threads)  # holds for the calling thread
        with torch.inference_mode():
            while self._receive():
                try:
                    self._admit()
                    self._advance()
                except Exception as problem:
                    log.exception("the engine failed; %d requests with it", len(self._active) + len(self._waiting))
                    self._fail(problem)
        self._fail(RuntimeError("the engine was closed"))

    def _receive(self) -> bool:
        """Take what has come, waiting for something if there is nothing to do. False: close."""
        block = not (self._active or self._waiting)
        while True:
            try:
                item = self._inbox.get(block=block)
            except queue.Empty:
                break
            block = False
            if item is None:
                return False
            if isinstance(item, _Request):
                self._waiting.append(item)
            else:
                try:
                    item.run()
                except Exception as problem:
                    item.done(problem)
                else:
                    item.done(None)
        self._waiting = [r for r in self._waiting if not r.dropped]
        for request in [r for r in self._active if r.dropped]:
            self._leave(request)
        return True

    def _admit(self) -> None:
        """Give slots to waiting requests, compute their prompts and draw their first tokens."""
        while self._waiting:
            admitted: list[_Request] = []
            later: list[_Request] = []
            prompts: list[np.ndarray[Any, Any]] = []
            for request in self._waiting:
                ids = np.array(request.ids, np.int64)
                # A prompt like another of this batch waits for it, and then copies what they share.
                alike = max((_common(ids, other) for other in prompts), default=0)
                if alike >= _ALIKE and alike > self._slots.best(ids) + _ALIKE:
                    later.append(request)
                    continue
                slot = self._slots.take(request.session, ids)
                if slot is None:
                    later.append(request)
                    continue
                request.slot = slot
                admitted.append(request)
                prompts.append(ids)
            self._waiting = later
            if not admitted:
                return
            self._active.extend(admitted)
            for batch in self._batches(admitted):
                self._prefill(batch)

    def _batches(self, requests: list[_Request]) -> list[list[_Request]]:
        """Groups of about equal numbers of new tokens, so that little is padded."""
        batches: list[list[_Request]] = []
        width = 0
        for request in sorted(requests, key=self._new_tokens):
            size = self._new_tokens(request)
            if not batches or (len(batches[-1]) + 1) * size > _TOKENS_AT_ONCE or size > 2 * width + 16:
                batches.append([])
                width = size
            batches[-1].append(request)
        return batches

    def _new_tokens(self, request: _Request) -> int:
        return len(request.ids) - int(self._slots.length[request.slot])

    def _prefill(self, batch: list[_Request]) -> None:
        longest = max(len(r.ids) for r in batch)
        chunk = max(16, _SCORES_AT_ONCE // (self._heads * longest * len(batch)))
        while long := [r for r in batch if self._new_tokens(r) > chunk]:
            begins = [int(self._slots.length[r.slot]) for r in long]
            self._forward(long, [r.ids[b : b + chunk] for r, b in zip(long, begins, strict=True)])
        self._draw(batch, [r.ids[int(self._slots.length[r.slot]) :] for r in batch])

    def _advance(self) -> None:
        """One token for every active request."""
        if self._active:
            batch = sorted(self._active, key=lambda r: r.slot)
            self._draw(batch, [r.ids[-1:] for r in batch])

    def _draw(self, batch: list[_Request], pieces: list[list[int]]) -> None:
        logits = self._forward(batch, pieces)
        if not bool(torch.isfinite(logits).all()):
            raise FloatingPointError("the model's logits are not finite")
        tokens, logprobs = draw_tokens(logits, [r.draw() for r in batch])
        for request, token, logprob in zip(batch, tokens, logprobs, strict=True):
            request.ids.append(token)
            request.logprobs.append(logprob)
            finish: Finish = "stop" if token in self.eos else "length"
            if finish == "stop" or len(request.logprobs) >= request.limit:
                self._leave(request)
                request.done(Generated(request.ids[request.prompt :], request.logprobs, finish))

    def _forward(self, batch: Sequence[_Request], pieces: Sequence[Sequence[int]]) -> torch.Tensor:
        """Logits [n, vocabulary] after each row's last new token."""
        step = Step(self._slots, [r.slot for r in batch], pieces)
        self.steps += 1
        out = self.model(input_ids=step.ids, position_ids=step.positions, use_cache=False, logits_to_keep=1, step=step)
        logits: torch.Tensor = out.logits[:, -1]
        return logits

    def _leave(self, request: _Request) -> None:
        self._active.remove(request)
        self._slots.busy.discard(request.slot)

    def _load(self, new: dict[str, torch.Tensor]) -> None:
        own = dict(self.model.named_parameters(remove_duplicate=False))
        distinct = dict(self.model.named_parameters())
        unknown, missing = sorted(new.keys() - own.keys()), sorted(distinct.keys() - new.keys())
        if unknown or missing:
            raise ValueError(f"weights that the model does not have: {unknown[:5]}; that are missing: {missing[:5]}")
        for name, tensor in new.items():
            own[name].copy_(tensor)
        self._slots.clear()
        self._waiting = self._active + self._waiting
        self._active = []
        self._slots.busy.clear()

    def _fail(self, problem: BaseException) -> None:
        for request in [*self._active, *self._waiting]:
            request.done(problem)
        for request in self._active:
            self._slots.forget(request.slot)
        self._active, self._waiting = [], []
        self._slots.busy.clear()


def load_engine(
    folder: str | Path,
    *,
    slots: int,
    max_context: int | None = None,
    threads: int = 1,
    device: str = "cpu",
    dtype: str | None = None,
) -> TransformersEngine:
    """The engine of a Hugging Face folder. On a CPU there are no more slots than its memory holds. dtype None: float64
    for small models on a CPU, else as the folder has it.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype) if dtype else "auto")
    if dtype is None and device == "cpu" and model.num_parameters() <= _SMALL:
        model = model.double()
    own = model.generation_config.eos_token_id
    eos = {AutoTokenizer.from_pretrained(folder).eos_token_id, *(own if isinstance(own, list) else [own])} - {None}
    if not eos:
        raise UserError(f"{folder}: neither tokenizer nor generation_config.json names a token that ends a completion")
    length = max_context or int(model.config.get_text_config().max_position_embeddings)
    if device == "cpu" and (fit := slots_that_fit(slots, bytes_of_slot(model, length), memory())) < slots:
        log.info("%d conversations of %d tokens at once instead of %d: so many fit into memory", fit, length, slots)
        slots = fit
    return TransformersEngine(model.to(device), eos=eos, slots=slots, max_context=length, threads=threads)


def _common(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> int:
    width = min(len(a), len(b))
    differs = a[:width] != b[:width]
    return int(differs.argmax()) if differs.any() else width


def _deliver(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any]) -> Callable[[Any], None]:
    """A function that settles the future from another thread."""

    def settle(result: Any) -> None:
        if future.done():
            return
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

    def deliver(result: Any) -> None:
        try:
            loop.call_soon_threadsafe(settle, result)
        except RuntimeError:  # the loop has been closed: nobody waits any more
            log.debug("a result came after its event loop had ended")

    return deliver
