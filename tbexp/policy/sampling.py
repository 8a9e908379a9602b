"""Drawing tokens from logits so that a draw depends on nothing but the request.

Decided here: the number that decides token t of a request is a hash of (seed, t), and picks the token by inverting the
distribution's sum in float64. Which other requests share the batch changes the logits' last bits and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class Draw:
    """How the next token of one request is drawn: the `number`-th of its completion. top_k < 1: off."""

    seed: int
    number: int
    temperature: float
    top_p: float
    top_k: int


@torch.inference_mode()  # type: ignore[untyped-decorator]
def draw_tokens(logits: torch.Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[float]]:
    """One token for each row of logits [n, vocabulary], and its log-probability.

    The log-probability is that under the logits divided by the temperature, before top_k and top_p: what a trainer
    computes anew from the same logits. Without filters it is that of the distribution drawn from. Temperature 0 takes
    the likeliest token, with its log-probability at temperature 1.
    """
    rows = logits.double()
    if any(d.temperature not in (0.0, 1.0) for d in draws):
        rows = rows / torch.tensor([d.temperature or 1.0 for d in draws], device=rows.device, dtype=rows.dtype)[:, None]
    logprobs = torch.log_softmax(rows, -1)
    greedy = [i for i, d in enumerate(draws) if d.temperature == 0.0]
    if len(greedy) == len(draws):
        chosen = logprobs.argmax(-1)
    else:
        chosen = _inverted(_filtered(logprobs, draws).exp(), draws)
        if greedy:
            chosen[greedy] = logprobs[greedy].argmax(-1)
    taken = logprobs.gather(1, chosen[:, None])[:, 0]
    return chosen.tolist(), taken.tolist()


def _inverted(shares: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    sums = shares.cumsum(-1)
    at = uniforms(np.array([d.seed for d in draws]), np.array([d.number for d in draws]))
    # A number is at most 1 - 2^-52, so that its product with the whole sum stays below it: no token of share 0 is
    # taken.
    return torch.searchsorted(sums, torch.from_numpy(at).to(sums.device)[:, None] * sums[:, -1:], right=True)[:, 0]


def _filtered(logprobs: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Minus infinity where top_k, and then top_p of what is left, cut a token off. The likeliest token always stays."""
    some = [i for i, d in enumerate(draws) if d.top_p < 1.0 or d.top_k > 0]
    if not some:
        return logprobs
    ordered, index = logprobs[some].sort(descending=True, stable=True)
    size = ordered.shape[1]
    keep = torch.tensor([draws[i].top_k if draws[i].top_k > 0 else size for i in some], device=ordered.device)
    ordered = ordered.masked_fill(torch.arange(size, device=ordered.device) >= keep[:, None], -torch.inf)
    shares = ordered.softmax(-1)
    before = shares.cumsum(-1) - shares
    top_p = torch.tensor([draws[i].top_p for i in some], device=ordered.device, dtype=ordered.dtype)
    ordered = ordered.masked_fill((before >= top_p[:, None]) & (top_p < 1.0)[:, None], -torch.inf)
    cut = logprobs.clone()
    cut[some] = torch.empty_like(ordered).scatter_(1, index, ordered)
    return cut


def uniforms(seeds: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers in [0, 1) with 52 bits, one for each (seed, number): two rounds of the splitmix64 mixer."""
    with np.errstate(over="ignore"):
        state = _mixed(seeds.astype(np.uint64) * _GOLDEN + _GOLDEN)
        state = _mixed(state + (numbers.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    out: NDArray[np.float64] = (state >> np.uint64(12)).astype(np.float64) * 2.0**-52
    return out


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))
