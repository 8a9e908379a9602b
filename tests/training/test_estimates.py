"""Estimates against figures worked out by hand, and their laws."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbexp.training import estimates
from tbexp.training.estimates import GIB

sys.path.insert(0, str(Path(__file__).parent))

SHAPE = {"parameters_billion": 10.0, "layers": 10, "attention_layers": 5, "hidden": 1000, "intermediate": 3000}
SHAPE |= {"heads": 8, "kv_heads": 2, "head_dim": 125, "vocabulary": 100_000}
GPUS = {"device": "cuda", "rollout": "vllm", "nodes": 2, "gpus_per_node": 5, "offload": True, "gpu_memory_gib": 80.0}


def config(**changes: dict[str, Any]) -> Any:
    from toy_config import toy_config

    model = {"shape": SHAPE, "max_context": 10_000} | changes.pop("model", {})
    return toy_config(model=model, topology=GPUS | changes.pop("topology", {}), **changes)


def shape_of(made: Any) -> estimates.Shape:
    shape = estimates.shape_of(made)
    assert shape is not None
    return shape


def test_memory_is_the_sum_that_the_docstring_tells() -> None:
    made = config(topology={"sequence_parallel": 2})
    parts = estimates.trainer_memory(made, shape_of(made))
    layer = (10e9 - 2 * 1e8) / 10
    assert parts["weights, gradients and Adam"] == 16 * 10e9 / 10
    assert parts["gathered layers"] == 2 * (2 * layer + 2e8) + 4 * layer
    assert parts["kept between layers"] == 2 * 5000 * 1000 * 10
    assert parts["the layer under way"] == 34 * 5000 * 1000
    assert parts["logits"] == 12 * 512 * 100_000


HSDP = "actor_rollout_ref.actor.fsdp_config.fsdp_size"


@pytest.mark.parametrize(("size", "ranks"), [(-1, 10), (10, 10), (20, 10), (5, 5), (2, 2), (1, 1)])
def test_each_copy_of_the_weights_takes_its_memory_and_its_disk(size: int, ranks: int) -> None:
    made = config(training={"verl": {HSDP: size}})
    shape = shape_of(made)
    assert estimates.trainer_memory(made, shape)["weights, gradients and Adam"] == 16 * 10e9 / ranks
    assert estimates.host_memory(made, shape)[0] == 5 * 12 * 10e9 / ranks
    assert estimates.disk(made, shape)[0] == 12 * 10e9 * 10 / ranks


@pytest.mark.parametrize("device", [{}, {"device": "cpu", "rollout": "transformers"}])
@pytest.mark.parametrize(("size", "wrong"), [(-1, False), (0, True), (3, True), (5, False), (11, False)])
def test_devices_that_do_not_divide_into_copies_of_the_weights_are_refused(
    size: int, wrong: bool, device: dict[str, str]
) -> None:
    made = config(training={"verl": {HSDP: size}}, topology={"gpu_memory_gib": None, **device})
    told = [(p.where, p.what) for p in estimates.problems(made)]
    what = f"10 devices (2 nodes x 5) is not a multiple of {size}"
    assert told == ([(f"training.verl.{HSDP}", what)] if wrong else [])


def test_a_copy_of_the_weights_that_does_not_fit_names_the_size_of_a_copy() -> None:
    problem = next(iter(estimates.problems(config(training={"verl": {HSDP: 1}}))))
    assert problem.where == "topology.gpu_memory_gib" and problem.fix.startswith("a larger fsdp_size, ")


def test_generation_holds_weights_and_keys_and_values() -> None:
    made = config(topology={"rollout_tensor_parallel": 5})
    weights, one = estimates.rollout_memory(made, shape_of(made))
    assert weights == 2 * 10e9 / 5
    assert one == 2 * 2 * 10_000 * 5 * 2 * 125 / 2  # two key-value heads cannot be divided by five


def test_disk_holds_what_is_kept_the_best_and_what_is_being_written() -> None:
    made = config(training={"keep_checkpoints": 2})
    assert estimates.disk(made, shape_of(made)) == (12 * 10e9, 2 * 10e9, 4)


def test_offloading_moves_state_to_the_host() -> None:
    kept = config(topology={"offload": False})
    assert estimates.host_memory(config(), shape_of(kept))[0] == 12 * 10e9 / 2
    assert estimates.host_memory(kept, shape_of(kept))[0] == 0


def test_lora_trains_its_own_matrices_only() -> None:
    made = config(training={"verl": {"actor_rollout_ref": {"model": {"lora_rank": 16}}}})
    trained = estimates.trained_parameters(made, shape_of(made))
    assert trained == 16 * 10 * (2 * 2000 + 2 * 1250 + 3 * 4000)
    assert estimates.trainer_memory(made, shape_of(made))["weights, gradients and Adam"] == (4e10 + 12 * trained) / 10


@pytest.mark.parametrize(
    ("topology", "where"),
    [
        ({}, []),
        ({"gpu_memory_gib": 15.0}, ["topology.gpu_memory_gib", "topology.rollout_tensor_parallel"]),
        ({"gpu_memory_gib": None, "offload": False}, []),
        ({"offload": False, "gpu_memory_utilization": 0.9}, ["topology.gpu_memory_utilization"]),
        ({"offload": False, "gpu_memory_utilization": 0.7}, ["topology.gpu_memory_utilization"]),  # 56 GiB, and 26.4
        ({"offload": False, "gpu_memory_utilization": 0.6}, []),
        ({"gpu_memory_utilization": 0.2}, ["topology.rollout_tensor_parallel"]),
        ({"sequence_parallel": 5}, ["topology.sequence_parallel"]),  # of 8 heads
        ({"micro_batch_tokens": 9_999}, ["topology.micro_batch_tokens"]),  # of 10,000 of a conversation
        ({"micro_batch_tokens": 9_999, "gpu_memory_gib": None}, ["topology.micro_batch_tokens"]),
        ({"micro_batch_tokens": 5_000, "sequence_parallel": 2}, []),
        ({"micro_batch_tokens": 4_999, "sequence_parallel": 2}, ["topology.micro_batch_tokens"]),
        ({"device": "cpu", "rollout": "transformers", "gpu_memory_gib": 1.0}, []),
    ],
)
def test_what_does_not_fit_names_the_key_to_change(topology: dict[str, Any], where: list[str]) -> None:
    assert [problem.where for problem in estimates.problems(config(topology=topology))] == where


def test_a_pass_that_is_too_large_names_the_setting_that_made_it_so() -> None:
    whole = config(topology={"gpu_memory_gib": 20.0, "rollout_tensor_parallel": 5, "gpu_memory_utilization": 0.9})
    large = whole.model_copy(update={"topology": whole.topology.model_copy(update={"micro_batch_tokens": 100_000})})
    for made, key in ((whole, "model.max_context"), (large, "topology.micro_batch_tokens")):
        (problem,) = estimates.problems(made)
        assert key in problem.fix and re.search(r"about \d+\.\d GiB of a GPU that has 20 ", problem.what)
    assert "10,000, one conversation" in next(iter(estimates.problems(large))).fix


def test_a_model_of_unknown_shape_is_not_judged() -> None:
    passes = config(model={"shape": {}}, topology={"micro_batch_tokens": 9_999})  # which is known without
    assert [problem.where for problem in estimates.problems(passes)] == ["topology.micro_batch_tokens"]
    made = config(model={"shape": {}})
    assert list(estimates.problems(made)) == []
    assert "not estimated" in estimates.lines(made)[0][1]


def test_tied_embeddings_are_counted_once() -> None:
    tied = {**SHAPE, "tied_embeddings": True}
    made = config(model={"shape": tied})
    layer = (10e9 - 1e8) / 10
    assert estimates.trainer_memory(made, shape_of(made))["gathered layers"] == 2 * (2 * layer + 1e8) + 4 * layer


def test_a_folder_that_is_there_says_its_own_shape(tmp_path: Path) -> None:
    text = {"num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2, "hidden_size": 64}
    text |= {"intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": text, "dtype": "bfloat16"}))
    made = config(model={"path": str(tmp_path)})
    assert shape_of(made).source == "model.shape"  # no weights yet
    (tmp_path / "model.safetensors").write_bytes(bytes(2000))
    found = shape_of(made)
    assert (found.parameters, found.layers, found.attention_layers, found.head_dim) == (1000, 4, 2, 16)


@settings(max_examples=40)
@given(st.integers(1, 8), st.sampled_from([1, 2, 4, 8]), st.integers(1000, 200_000))
def test_more_nodes_and_a_shorter_context_never_take_more_of_a_gpu(nodes: int, parallel: int, context: int) -> None:
    def needed(nodes: int, context: int) -> float:
        topology = {"nodes": nodes, "gpus_per_node": 8, "sequence_parallel": parallel}
        made = config(topology=topology, model={"max_context": context})
        return sum(estimates.trainer_memory(made, shape_of(made)).values()) / GIB

    assert needed(nodes + 1, context) < needed(nodes, context)
    assert needed(nodes, context) <= needed(nodes, context + 1000)


@pytest.mark.parametrize(
    ("shown", "as_"),
    [
        (estimates.memory(10.5 * 2**30), "10.5 GiB"),
        (estimates.memory(48 * 2**20), "48 MiB"),
        (estimates.stored(1.25e12), "1.25 TB"),
        (estimates.stored(3e8), "0.3 GB"),
        (estimates.lasting(165.2), "165 h"),
        (estimates.lasting(1.54), "1.5 h"),
        (estimates.lasting(0.5), "30 min"),
        (estimates.lasting(0.01), "36 s"),
    ],
)
def test_an_amount_has_the_unit_that_shows_it(shown: str, as_: str) -> None:
    assert shown == as_
