"""Keys and values of many conversations in one tensor: a slot for each, of equal and growing length.

Decided here: what is kept, copied and evicted, and how a model's attention reads it. A slot holds the tokens whose
keys and values it has, so that a prompt is met by the longest prefix that some slot holds. Left to others: which
conversation runs when (engine.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

ATTENTION = "tbexp_slots"  # the name under which transformers knows `attend`
_GROWTH = 128  # slots are this many tokens long, or a power of two times as many
_WORTH_COPYING = 16  # tokens


def dimensions(model: Any) -> tuple[int, int, int]:
    """Layers, heads of keys and values, and the width of one."""
    config = model.config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return config.num_hidden_layers, config.num_key_value_heads, width


def bytes_of_slot(model: Any, length: int) -> int:
    """Of a slot that holds so many tokens."""
    layers, heads, width = dimensions(model)
    return int(layers * 2 * heads * width * length * model.dtype.itemsize)


class Slots:
    """The cache. `tokens[slot, :length[slot]]` are the tokens that a slot holds.

    busy: slots whose conversation is being continued; they are not evicted.
    """

    def __init__(self, model: Any, count: int, max_length: int):
        layers, self.heads, width = dimensions(model)
        self.count, self.max_length = count, max_length
        capacity = min(_GROWTH, max_length)
        shape = (layers, 2, count, self.heads, capacity, width)
        self.store = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self.tokens: NDArray[np.int64] = np.zeros((count, capacity), np.int64)
        self.length: NDArray[np.int64] = np.zeros(count, np.int64)
        self.session: list[str | None] = [None] * count
        self.busy: set[int] = set()
        self._used = [0] * count
        self._clock = 0

    def clear(self) -> None:
        """Forget everything: the weights have changed."""
        self.length[:] = 0
        self.session = [None] * self.count

    def release(self, session: str) -> None:
        """Its slot may be taken by another; until then its tokens still serve as a prefix to copy."""
        if session in self.session:
            slot = self.session.index(session)
            self.session[slot] = None

    def shared(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each slot, how many of its first tokens are those of `ids`."""
        width = min(len(ids), self.tokens.shape[1])
        differs = self.tokens[:, :width] != ids[:width]
        first = np.where(differs.any(1), differs.argmax(1), width) if width else np.zeros(self.count, np.int64)
        shared: NDArray[np.int64] = np.minimum(first, self.length)
        return shared

    def best(self, ids: NDArray[np.int64]) -> int:
        """The most tokens of `ids` that any slot begins with."""
        return int(self.shared(ids).max())

    def take(self, session: str, ids: NDArray[np.int64]) -> int | None:
        """A slot for the session, holding the longest prefix of `ids` that is known; None when its own or all are busy.

        The last token of `ids` is never counted as known: its logits are wanted.
        """
        shared = np.minimum(self.shared(ids), len(ids) - 1)
        if session in self.session:
            slot = self.session.index(session)
            if slot in self.busy:
                return None
        else:
            free = [slot for slot in range(self.count) if slot not in self.busy]
            if not free:
                return None
            slot = min(free, key=lambda s: (self.session[s] is not None, self._used[s]))
            self.session[slot] = session
        source = int(shared.argmax())
        self.length[slot] = shared[slot]
        if shared[source] >= shared[slot] + _WORTH_COPYING:
            known = int(shared[source])
            self.store[:, :, slot, :, :known] = self.store[:, :, source, :, :known]
            self.tokens[slot, :known] = ids[:known]
            self.length[slot] = known
        self.busy.add(slot)
        self._clock += 1
        self._used[slot] = self._clock
        return slot

    def reserve(self, length: int) -> None:
        """Make slots at least this long."""
        capacity = self.tokens.shape[1]
        if length <= capacity:
            return
        while capacity < length:
            capacity *= 2
        capacity = min(capacity, self.max_length)
        longer = self.store.new_zeros((*self.store.shape[:4], capacity, self.store.shape[5]))
        longer[..., : self.store.shape[4], :] = self.store
        self.store = longer
        self.tokens = np.pad(self.tokens, ((0, 0), (0, capacity - self.tokens.shape[1])))

    def forget(self, slot: int) -> None:
        """Nothing in the slot is to be trusted, not even as something masked out."""
        self.store[:, :, slot].zero_()
        self.length[slot] = 0


class Step:
    """The layout of one forward pass: n rows, each continuing one slot by up to `width` tokens, aligned to the
    right."""

    def __init__(self, slots: Slots, rows: Sequence[int], pieces: Sequence[Sequence[int]]):
        self.slots = slots
        width = max(map(len, pieces))
        sizes = np.array([len(piece) for piece in pieces])
        begins = slots.length[list(rows)]
        ends = begins + sizes
        slots.reserve(int(ends.max()))
        ids = np.zeros((len(rows), width), np.int64)
        for i, (slot, piece) in enumerate(zip(rows, pieces, strict=True)):
            ids[i, width - len(piece) :] = piece
            slots.tokens[slot, begins[i] : ends[i]] = piece
        slots.length[list(rows)] = ends
        positions = ends[:, None] - width + np.arange(width)
        device = slots.store.device
        self.length = int(ends.max())
        self.ids = torch.from_numpy(ids).to(device)
        self.positions = torch.from_numpy(np.maximum(positions, 0)).to(device)
        real = positions >= begins[:, None]
        self.real = None if real.all() else torch.from_numpy(real).to(device)
        self.row_slots = torch.tensor(list(rows), device=device)
        self.write_slots = torch.from_numpy(np.repeat(np.array(rows), sizes)).to(device)
        self.write_positions = torch.from_numpy(positions[real]).to(device)
        # Reading a range of slots in place costs a third of gathering some of them, so idle ones in between are read
        # too.
        low, high = min(rows), max(rows) + 1
        self.range = (low, high) if len(rows) * 3 >= high - low else None
        self.dense = self.range is not None and list(rows) == list(range(low, high))
        readers, where = len(rows), self.positions
        if self.range is not None and not self.dense:
            self.inside = self.row_slots - low
            readers = high - low
            where = self.positions.new_zeros((readers, width))
            where[self.inside] = self.positions
        mask = torch.zeros((readers, 1, width, self.length), dtype=slots.store.dtype, device=device)
        mask.masked_fill_(torch.arange(self.length, device=device) > where[:, None, :, None], -torch.inf)
        self.mask = mask

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """query [n, heads, width, d], key and value [n, kv heads, width, d] of new tokens -> [n, width, heads, d]."""
        _, heads, width, depth = query.shape
        kept = self.slots.store[layer]
        for part, new in ((kept[0], key), (kept[1], value)):
            flat = new.transpose(1, 2)
            part[self.write_slots, :, self.write_positions] = (
                flat.flatten(0, 1) if self.real is None else flat[self.real]
            )
        keys, values = (part[:, :, : self.length] for part in kept)
        if self.range is None:
            keys, values = keys[self.row_slots], values[self.row_slots]
        else:
            keys, values = (part[self.range[0] : self.range[1]] for part in (keys, values))
            if not self.dense:
                spread = query.new_zeros((keys.shape[0], *query.shape[1:]))
                spread[self.inside] = query
                query = spread
        shared = heads // self.slots.heads  # query heads that share a key head become rows of one matrix
        folded = query.reshape(query.shape[0], self.slots.heads, shared * width, depth)
        mask = self.mask if shared == 1 else self.mask.repeat(1, 1, shared, 1)
        out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scaling)
        out = out.reshape(out.shape[0], heads, width, depth)
        if self.range is not None and not self.dense:
            out = out[self.inside]
        return out.transpose(1, 2)


def attend(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, step: Step, **_: Any
) -> Any:
    """What transformers calls in place of its own attention; the cache is ours, so the model is given none."""
    return step.attend(module.layer_idx, query, key, value, scaling), None
