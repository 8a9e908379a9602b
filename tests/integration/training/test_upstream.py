"""What is mended in the installed verl. In processes of their own, since a mend is for good; forked from one that has
loaded verl, which takes longer than all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.train

MENDED = """
import json, sys, types
from tbexp.training import upstream
import torch
import verl.experimental.agent_loop.agent_loop as agent_loop
import verl.utils.experimental.torch_functional as fused

told = {"made": upstream.made, "still": upstream.needed()}

torch.manual_seed(0)
hidden, head = torch.randn(1, 6, 8, requires_grad=True), torch.randn(16, 8, requires_grad=True)
labels = torch.arange(6)[None]
log_probs, _ = fused.FusedLinearForPPO().forward(hidden, head, labels)
plain = torch.log_softmax(hidden @ head.t(), -1).gather(-1, labels[..., None])[..., 0]
log_probs.sum().backward()
grads = hidden.grad.clone(), head.grad.clone()
hidden.grad = head.grad = None
plain.sum().backward()
told["log_probs"] = bool(torch.allclose(log_probs, plain, atol=1e-5))
told["gradients"] = all(torch.allclose(a, b, atol=1e-4) for a, b in zip(grads, (hidden.grad, head.grad)))

class Processor:
    def get_rope_index(self, input_ids, mm_token_type_ids, image_grid_thw=None, **_):
        return torch.full((3, *input_ids.shape), 7), None

worker = types.SimpleNamespace(processor=Processor())
ids = torch.arange(5)[None]
output = types.SimpleNamespace(multi_modal_data={"images": None})
told["inputs"] = agent_loop.AgentLoopWorker._compute_multi_modal_inputs(worker, output, ids)
mask = torch.tensor([[0, 1, 1, 1, 1]])
told["text"] = agent_loop.AgentLoopWorker._compute_position_ids(worker, ids, mask, {}).tolist()
media = {"image_grid_thw": torch.ones(1, 3), "mm_token_type_ids": ids}
worker.processor.image_token_id = worker.processor.video_token_id = None
told["image"] = list(agent_loop.AgentLoopWorker._compute_position_ids(worker, ids, mask, media).shape)
sys.stdout.write(json.dumps(told))
"""

SLICING = """
import json, sys
from unittest import mock
import torch
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration, AttentionInterface
from tbexp.training import upstream
import verl.models.transformers.monkey_patch as monkey_patch
import verl.workers.engine.fsdp.transformer_impl as engine

torch.manual_seed(0)
text = dict(vocab_size=60, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, head_dim=8, layer_types=["full_attention"] * 2, linear_num_key_heads=2,
            linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8, pad_token_id=0)
vision = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=16, patch_size=4,
              spatial_merge_size=2, num_position_embeddings=16)
config = Qwen3_5Config(text_config=text, vision_config=vision, image_token_id=58, video_token_id=59)
config._attn_implementation = "sdpa"
model = Qwen3_5ForConditionalGeneration(config).eval()
ids = torch.arange(1, 13)[None]

# One row of plain positions is to the model what four equal rows are.
with torch.no_grad():
    rows = torch.arange(12)[None]
    one = model(ids, position_ids=rows, use_cache=False).logits
    four = model(ids, position_ids=rows[None].expand(4, -1, -1), use_cache=False).logits
told = {"same": bool(torch.equal(one, four))}

seen = {"tower": [], "text": []}
def watched(module, query, key, value, attention_mask=None, **named):
    place = "tower" if "Vision" in type(module).__name__ else "text"
    seen[place].append((query.shape[2], named.get("position_ids") is not None))
    return torch.zeros(query.shape[0], query.shape[2], query.shape[1], query.shape[3]), None
AttentionInterface.register("watched", watched)
model.set_attn_implementation("watched")

unknown = sys.argv[1] == "unknown"
if unknown:
    model.config.model_type = "qwen9"
half = lambda x, dim, padding=True, group=None: x.narrow(dim, 0, x.size(dim) // 2)
with mock.patch.object(monkey_patch, "get_ulysses_sequence_parallel_world_size", lambda: 2), \\
     mock.patch.object(monkey_patch, "slice_input_tensor", half), torch.no_grad():
    for turn in range(2):  # what is wrapped already is not wrapped again
        engine.apply_monkey_patch(model=model, use_remove_padding=True, ulysses_sp_size=2)
    model.model(input_ids=ids, position_ids=torch.arange(12)[None], attention_mask=None, use_cache=False)
told["text"] = sorted(set(seen["text"]))
told["tower"] = sorted(set(seen["tower"]))
sys.stdout.write(json.dumps(told))
"""


# Runs each script of a JSON object of [script, words...] in a fork, and tells what it printed, or how it failed.
FORKING = """
import io, json, os, sys, traceback
import torch
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration
from tbexp.training import upstream
import verl.experimental.agent_loop.agent_loop, verl.utils.experimental.torch_functional
import verl.models.transformers.monkey_patch, verl.workers.engine.fsdp.transformer_impl

told = {}
for name, (script, *words) in json.load(sys.stdin).items():
    read, write = os.pipe()
    child = os.fork()
    if not child:
        sys.argv[1:], sys.stdout = words, io.StringIO()
        try:
            exec(script, {"__name__": "__main__"})
            said = sys.stdout.getvalue().splitlines()[-1]
        except BaseException:
            said = json.dumps(traceback.format_exc())
        with os.fdopen(write, "w") as out:
            out.write(said)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        told[name] = json.load(said)
    os.waitpid(child, 0)
sys.__stdout__.write(json.dumps(told))
"""
SCRIPTS = {"mended": [MENDED], "known": [SLICING, "known"], "unknown": [SLICING, "unknown"]}


@pytest.fixture(scope="module")
def all_told() -> dict[str, Any]:
    words = [sys.executable, "-c", FORKING]
    done = subprocess.run(words, input=json.dumps(SCRIPTS), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_verl_0_9_1_needs_every_mend_and_none_after_it(all_told: dict[str, Any]) -> None:
    told = all_told["mended"]
    assert isinstance(told, dict), told
    assert told.pop("made") == ["head_device", "head_device of the Triton kernel", "text_positions", "vision_slicing"]
    assert told.pop("still") == []
    assert told.pop("log_probs") is True and told.pop("gradients") is True  # as before where nothing had to move
    assert told == {"inputs": {}, "text": [[0, 0, 1, 2, 3]], "image": [1, 4, 5]}


@pytest.mark.parametrize("kind", ["known", "unknown"])
def test_under_ulysses_the_text_is_sliced_once_and_the_vision_tower_never(all_told: dict[str, Any], kind: str) -> None:
    told = all_told[kind]
    assert isinstance(told, dict), told
    assert told["same"] is True
    assert told["text"] == [[6, True]]  # of 12 tokens, on the first of two ranks
    # The tower sees its 16 patches whole, and no positions, by which verl's attention would take it for text.
    assert told["tower"] in ([[16, False]], [])
