from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from tbexp.errors import UserError
from tbexp.training.mapping import (
    check_passed_through,
    compose,
    overrides,
    passed_through,
    quoted,
    save_every,
    verls_own,
)
from tbexp.training.run import check

sys.path.insert(0, str(Path(__file__).parent))
pytestmark = pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="needs the train extra")


def config(**changes: dict[str, Any]) -> Any:
    from toy_config import toy_config

    return toy_config(**changes)


def composed(**changes: dict[str, Any]) -> Any:
    return compose(overrides(config(**changes), model_folder=Path("/m"), folder=Path("/f")))


def test_our_overrides_are_verls_own_keys() -> None:
    from tbexp.training.mapping import dotted_keys, is_open, settings

    base = verls_own()
    known = set(dotted_keys(base))
    ours = settings(config(), model_folder=Path("/m"), folder=Path("/f"))
    # verl reads these two although its YAML does not list them
    unlisted = {"actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype", "ray_kwargs.ray_init.num_gpus"}
    assert {key for key in ours if key not in known and not is_open(base, key)} <= unlisted


def test_a_group_update_is_grpo_with_the_token_mean_and_no_kl() -> None:
    made = composed(group={"size": 8, "groups_per_update": 6}, training={"mini_batches": 3})
    assert made.algorithm.adv_estimator == "grpo"
    assert not made.algorithm.use_kl_in_reward and not made.actor_rollout_ref.actor.use_kl_loss
    assert made.actor_rollout_ref.actor.loss_agg_mode == "token-mean"
    assert (made.data.train_batch_size, made.actor_rollout_ref.rollout.n) == (6, 8)
    assert made.actor_rollout_ref.actor.ppo_mini_batch_size == 2


def test_the_published_run_is_reproduced() -> None:
    from toy_config import composed_config

    published = composed_config(["experiment=q38_rlft"])
    made = compose(overrides(published, model_folder=Path("/m"), folder=Path("/f")))
    assert (made.trainer.nnodes, made.trainer.n_gpus_per_node, made.trainer.total_training_steps) == (3, 8, 50)
    assert (made.data.max_prompt_length, made.data.max_response_length) == (26624, 106496)
    assert (made.data.train_batch_size, made.actor_rollout_ref.rollout.n) == (18, 8)
    actor, rollout = made.actor_rollout_ref.actor, made.actor_rollout_ref.rollout
    assert (actor.optim.lr, actor.optim.weight_decay, actor.ulysses_sequence_parallel_size) == (1e-6, 0.0, 4)
    assert actor.fsdp_config.param_offload and actor.fsdp_config.optimizer_offload
    assert (rollout.name, rollout.tensor_model_parallel_size, rollout.gpu_memory_utilization) == ("vllm", 4, 0.7)
    assert (rollout.temperature, rollout.top_p, rollout.top_k) == (1.0, 0.95, 20)
    assert made.trainer.save_freq == 5
    assert not made.algorithm.rollout_correction.bypass_mode  # top-p changes the rollout's probabilities


@pytest.mark.parametrize("name", ["q38_rlft", "q38_node8", "q38_lora", "smollm2"])
def test_verls_own_validation_takes_what_the_experiments_tell_it(name: str) -> None:
    pytest.importorskip("torch")
    from toy_config import composed_config
    from verl.utils.config import validate_config

    made = compose(overrides(composed_config([f"experiment={name}"]), model_folder=Path("/m"), folder=Path("/f")))
    validate_config(made, use_reference_policy=False, use_critic=False)


def test_verls_own_validation_refuses_what_our_checks_refuse() -> None:
    pytest.importorskip("torch")
    from toy_config import composed_config
    from verl.utils.config import validate_config

    sdpa = composed_config(["experiment=q38_rlft", "topology.attention=sdpa"])
    made = compose(overrides(sdpa, model_folder=Path("/m"), folder=Path("/f")))
    with pytest.raises(ValueError, match="use_remove_padding"):
        validate_config(made, use_reference_policy=False, use_critic=False)


@pytest.mark.parametrize(
    ("verl", "said"),
    [
        ({"actor_rollout_ref.rollout.disaggregation.enabled": True}, "disaggregation"),
        ({"actor_rollout_ref.rollout.expert_parallel_size": 5}, "must be equal to tensor_model"),
        ({"actor_rollout_ref.actor.ppo_micro_batch_size": 2}, "ppo_micro_batch_size"),
        ({}, ""),
    ],
)
@pytest.mark.filterwarnings("ignore:Disabled critic")  # verl says so of each GRPO
def test_what_verl_alone_can_judge_is_the_user_s_to_mend_before_ray_is_started(verl: dict[str, Any], said: str) -> None:
    pytest.importorskip("torch")
    from tbexp.training.driver import judged, outcome_of

    asked = config(training={"verl": verl})
    told = overrides(asked, model_folder=Path("/m"), folder=Path("/f"))
    if not verl:
        assert judged(told, verl).trainer.total_epochs == 1
        return
    with pytest.raises(UserError, match=said) as refused:
        judged(told, verl)
    assert outcome_of(refused.value)["status"] == "user" and "training.verl" in str(refused.value)
    with pytest.raises(Exception, match=said) as ours:  # nothing that the user has said
        judged(told, {})
    assert outcome_of(ours.value)["status"] == "failed"


def test_old_log_probabilities_are_recomputed_unless_the_rollouts_are_the_same_numbers() -> None:
    def bypasses(**changes: dict[str, Any]) -> bool:
        return bool(composed(**changes).algorithm.rollout_correction.bypass_mode)

    assert bypasses()
    assert not bypasses(policy={"sampling": {"top_p": 0.9}})
    assert not bypasses(policy={"sampling": {"temperature": 0.7}})
    assert not bypasses(training={"mini_batches": 2})


@pytest.mark.parametrize(("validate", "save", "both"), [(10, 5, 5), (4, 6, 2), (3, 5, 1), (5, 5, 5)])
def test_every_step_that_validates_has_a_checkpoint(validate: int, save: int, both: int) -> None:
    assert save_every(config(training={"validate_every": validate, "save_every": save})) == both


def test_whatever_verl_takes_is_passed_through_last() -> None:
    made = composed(training={"verl": {"actor_rollout_ref": {"actor": {"optim": {"lr": 0.5}}}, "trainer.nnodes": 7}})
    assert made.actor_rollout_ref.actor.optim.lr == 0.5
    assert made.trainer.nnodes == 7


@pytest.mark.parametrize(
    ("vocabulary", "hidden", "context", "tokens", "rows"),
    [
        (1_200, 128, 1024, None, 16),  # the tiny policy
        (49_152, 576, 2048, None, 1),  # SmolLM2 with 135 million parameters: 2.2 MB of activations a token
        (49_152, 576, 512, None, 4),  # 7.5 fit; 32 rows are divided evenly
        (49_152, 576, 2048, 4096, 2),
        (49_152, 576, 2048, 100, 1),
        (1_200, 128, 1024, 131_072, 16),
    ],
)
def test_a_pass_on_a_cpu_takes_as_many_conversations_as_its_activations_have_room_for(
    vocabulary: int, hidden: int, context: int, tokens: int | None, rows: int
) -> None:
    shape = {"parameters_billion": 0.1, "layers": 30, "attention_layers": 30, "hidden": hidden, "intermediate": 1536}
    shape |= {"heads": 9, "kv_heads": 3, "head_dim": 64, "vocabulary": vocabulary}
    made = composed(
        model={"max_context": context, "shape": shape},
        topology={"micro_batch_tokens": tokens},
        group={"size": 8, "groups_per_update": 4},
        policy={"sampling": {"max_tokens": 64}},
    )
    assert made.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == rows
    assert made.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu == rows


def test_another_topology_takes_nothing_of_the_one_that_the_small_experiment_names() -> None:
    from toy_config import composed_config

    assert composed_config(["experiment=smollm2", "topology=laptop"]).topology == composed_config([]).topology


def test_all_unknown_keys_are_told_at_once_with_the_nearest() -> None:
    verl = {
        "actor_rollout_ref.actor.entropy_coef": 0.1,
        "trainer": {"save_frequency": 3, "total_epochs": 1},
        "actor_rollout_ref.rollout.engine_kwargs.vllm.anything": 1,
    }
    problems = check_passed_through(verl, verls_own())
    assert [p.where for p in problems] == [
        "training.verl.actor_rollout_ref.actor.entropy_coef",
        "training.verl.trainer.save_frequency",
    ]
    assert "training.verl.actor_rollout_ref.actor.entropy_coeff" in problems[0].fix
    assert problems[1].fix == "did you mean training.verl.trainer.save_freq?"


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("actor_rollout_ref.actor.ppo_epoch", ["actor_rollout_ref.actor.ppo_epochs"]),
        ("actor_rolout_ref.actr.optim.lrr", ["actor_rollout_ref.actor.optim.lr"]),
        ("actor.ppo_epochs", ["actor_rollout_ref.actor.ppo_epochs", "critic.ppo_epochs"]),
        ("trainer.enable", []),  # many have such a key, and none is nearer than others
        ("actor_rollout_ref.actor.foo", []),
    ],
)
def test_what_is_suggested_differs_in_spelling_or_in_its_place(key: str, meant: list[str]) -> None:
    (problem,) = check_passed_through({key: 1}, verls_own())
    suggested = re.findall(r"training\.verl\.([\w.]+)", problem.fix)
    assert suggested == meant and bool(meant) == problem.fix.startswith("did you mean ")


def test_what_cannot_be_trained_is_told_at_once_before_anything_starts() -> None:
    with pytest.raises(UserError) as error:
        check(config(training={"max_prompt_tokens": 128, "verl": {"trainer.step": 1}}), ["a"], [])
    text = str(error.value)
    assert "a prompt may have 128 tokens, and a conversation 128" in text
    assert "verl has no key trainer.step" in text
    assert "no task to validate on" in text


def test_nested_and_dotted_keys_are_the_same() -> None:
    assert dict(passed_through({"a": {"b": 1, "c": {}}, "d.e": None})) == {"a.b": 1, "a.c": {}, "d.e": None}


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("aZ0 ./:'\"[]{}=,#-_"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    max_leaves=6,
)


@given(values)
def test_a_quoted_value_is_read_back_as_it_was(value: Any) -> None:
    (override,) = OverridesParser.create().parse_overrides([f"++key={quoted(value)}"])
    assert override.value() == value
