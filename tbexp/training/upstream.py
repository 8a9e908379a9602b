"""What verl still needs for Qwen3.8, mended at run time. Loaded by `actor_rollout_ref.model.external_lib` on CUDA.

Each mend stands behind a check that tries the installed verl (and transformers), so one that upstream has made drops
out by itself, and no installed file is touched. Decided here:
- `head_device`: the language model's head is brought to the device of the hidden states. With FSDP's CPU offload its
  weight is on the host, and verl's fused log-probabilities multiply it with what is on the GPU.
- `text_positions`: a conversation without images has plain positions. verl asks the image processor of a model that has
  one, which decodes and tokenizes every attempt again and, with transformers 5, wants a list of token types.
- `vision_slicing`: with Ulysses, verl gives a model that has a vision tower the whole sequence, and slices it in the
  text model, of the model types that it knows. A text model of another type would run on all of it on every rank, so
  there it is wrapped in verl's own slicing; if it has other layers than full attention, which would each see a part of
  the sequence as all of it, that is an error. The tower itself is never sliced.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import verl.experimental.agent_loop.agent_loop as agent_loop
import verl.models.transformers.monkey_patch as monkey_patch
import verl.utils.experimental.torch_functional as fused
import verl.utils.kernel.linear_cross_entropy as kernel
import verl.workers.engine.fsdp.transformer_impl as engine
from torch._subclasses.fake_tensor import FakeTensorMode

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Mend:
    name: str
    needed: Callable[[], bool]
    apply: Callable[[], None]


def head_stays_elsewhere() -> bool:
    """Whether verl's torch path fails for hidden states and a head on two devices: fake ones, so no GPU is needed."""
    with FakeTensorMode():
        hidden, head = torch.empty(1, 4, 8, device="meta"), torch.empty(16, 8)
        labels = torch.zeros(1, 4, dtype=torch.int64, device="meta")
        try:
            fused.FusedLinearForPPO().forward(hidden, head, labels)
        except Exception as error:  # of another kind when upstream has come further than the product
            return "same device" in str(error)
    return False


def kernel_head_stays_elsewhere() -> bool:
    """The same of verl's Triton path, by its source: it runs on a GPU only."""
    return "weight.to(" not in inspect.getsource(kernel) and not getattr(kernel, "tbexp_mended", False)


def move_head() -> None:
    forward = fused.FusedLinearForPPO.forward

    def moved(self: Any, hidden_states: Any, vocab_weights: Any, *rest: Any, **named: Any) -> Any:
        return forward(self, hidden_states, vocab_weights.to(hidden_states.device), *rest, **named)

    fused.FusedLinearForPPO.forward = moved


def move_kernel_head() -> None:
    apply = kernel.linear_cross_entropy

    def moved(hidden: Any, weight: Any, *rest: Any) -> Any:
        return apply(hidden, weight.to(hidden.device), *rest)

    kernel.linear_cross_entropy = moved
    kernel.tbexp_mended = True


class _Processor:
    """An image processor that notes what it is asked."""

    def __init__(self) -> None:
        self.asked = False

    def get_rope_index(self, input_ids: Any, **_: Any) -> Any:
        self.asked = True
        return torch.zeros(3, *input_ids.shape, dtype=torch.int64), None


class _Worker:
    def __init__(self) -> None:
        self.processor = _Processor()


def text_asks_the_image_processor() -> bool:
    """Whether positions of a text come from the image processor."""
    worker, ids = _Worker(), torch.arange(5)[None]
    agent_loop.AgentLoopWorker._compute_position_ids(worker, ids, torch.ones_like(ids), {})
    return worker.processor.asked


def text_has_plain_positions() -> None:
    inputs = agent_loop.AgentLoopWorker._compute_multi_modal_inputs
    positions = agent_loop.AgentLoopWorker._compute_position_ids

    def inputs_of_media(self: Any, output: Any, input_ids: Any) -> Any:
        return inputs(self, output, input_ids) if any((output.multi_modal_data or {}).values()) else {}

    def positions_of_media(
        self: Any, input_ids: Any, attention_mask: Any, multi_modal_inputs: Any, *rest: Any, **named: Any
    ) -> Any:
        if not multi_modal_inputs:
            return agent_loop.compute_position_id_with_mask(attention_mask)
        return positions(self, input_ids, attention_mask, multi_modal_inputs, *rest, **named)

    agent_loop.AgentLoopWorker._compute_multi_modal_inputs = inputs_of_media
    agent_loop.AgentLoopWorker._compute_position_ids = positions_of_media


SLICED = "ulysses_wrapped_decoder_forward"  # verl's name for a text model's forward that slices its inputs


def text_model_of(model: Any) -> type | None:
    """The class whose inputs verl leaves whole because the model has a vision tower; None: it has none."""
    if not hasattr(model.config, "vision_config"):
        return None
    inner = getattr(getattr(model, "model", model), "language_model", None)
    return None if inner is None else type(inner)


def is_sliced(text_model: type) -> bool:
    return bool(text_model.forward.__name__ == SLICED)  # type: ignore[attr-defined]


def slicing_depends_on_the_type() -> bool:
    """Whether verl leaves the text model of a type that it does not know unsliced."""
    patch = engine.apply_monkey_patch
    return not getattr(patch, "tbexp_mended", False) and "model_type in" in inspect.getsource(patch)


def slice_every_type() -> None:
    patch = engine.apply_monkey_patch

    def patched(model: Any, *rest: Any, **named: Any) -> Any:
        done = patch(model, *rest, **named)
        size = named.get("ulysses_sp_size", rest[0] if rest else 1)
        if size > 1 and (text_model := text_model_of(model)) is not None and not is_sliced(text_model):
            if odd := set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - {"full_attention"}:
                raise RuntimeError(
                    f"verl does not know how to share a sequence of {model.config.model_type} between devices "
                    f"(layers of {', '.join(sorted(odd))}): topology.sequence_parallel=1"
                )
            monkey_patch.patch_vlm_for_ulysses_input_slicing(text_model)
            log.warning("verl does not slice inputs of %s for Ulysses; wrapped in its own slicing", text_model.__name__)
        return done

    patched.tbexp_mended = True  # type: ignore[attr-defined]
    engine.apply_monkey_patch = patched


MENDS = (
    Mend("head_device", head_stays_elsewhere, move_head),
    Mend("head_device of the Triton kernel", kernel_head_stays_elsewhere, move_kernel_head),
    Mend("text_positions", text_asks_the_image_processor, text_has_plain_positions),
    Mend("vision_slicing", slicing_depends_on_the_type, slice_every_type),
)


def needed() -> list[str]:
    """Names of the mends that the installed verl needs; none once they are made."""
    return [mend.name for mend in MENDS if mend.needed()]


def mend() -> list[str]:
    """Makes those that are needed; their names."""
    made = []
    for one in MENDS:
        if one.needed():
            one.apply()
            made.append(one.name)
    return made


if made := mend():
    log.warning("mended in verl at run time: %s", ", ".join(made))
