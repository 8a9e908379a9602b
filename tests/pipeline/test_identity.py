"""What decides a result changes its key, and nothing else does."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbexp.config.compose import opened, plain, run_id_of
from tbexp.config.folders import conf_folder
from tbexp.config.schema import Config
from tbexp.pipeline.finished import given as given_of
from tbexp.pipeline.identity import attempt_seed, campaign_key, digest, policy_identity, tasks_digest, training_key
from tbexp.pipeline.inputs import Inputs
from tbexp.tasks import Agent, Scenario, Task

with opened(conf_folder()) as compose:
    SHIPPED = plain(compose([]))

SCENARIO = Scenario(name="shop", world_state={"shop": {"stock": 1}})
TASKS = [Task(f"t.py:test_{n}", Agent("agent", "S"), SCENARIO, query=f"Q{n}", user_context="K") for n in range(4)]


def config(changes: dict[str, Any]) -> Config:
    """The default config with dotted keys changed."""
    values = copy.deepcopy(SHIPPED)
    for key, value in changes.items():
        *parents, leaf = key.split(".")
        node = values
        for part in parents:
            node = node[part]
        node[leaf] = value
    return Config.model_validate(values)


def keys(changes: dict[str, Any], tasks: list[Task] = TASKS, model: str = "m1", servers: str = "s1") -> tuple[str, str]:
    """Of a campaign and of a training."""
    made = config(changes)
    policy = policy_identity(made, model)
    return campaign_key(made, policy, tasks, servers), training_key(made, model, tasks[:2], tasks[2:], servers)


PLAIN = keys({})
CHAT = {"policy.kind": "chat", "policy.endpoint.base_url": "http://localhost/v1", "policy.endpoint.model": "m"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 2),
        ("policy.sampling.temperature", 0.3),
        ("policy.sampling.top_p", 0.5),
        ("policy.sampling.top_k", 7),
        ("policy.sampling.max_tokens", 77),
        ("policy.limits.actions", 7),
        ("policy.limits.tokens", 77),
        ("policy.limits.generation_seconds", 77.0),
        ("policy.limits.empty_completion", "ask_user"),
        ("model.max_context", 777),
        ("user.kind", "none"),
        ("user.temperature", 0.3),
        ("user.max_tokens", 77),
        ("user.may_end", True),
        ("user.endpoint.model", "u"),
        ("user.endpoint.base_url", "http://localhost/u"),
        ("user.endpoint.extra_body", {"min_p": 0.1}),
        ("judge.kind", "scripted"),
        ("judge.answers", {"polite": True}),
        ("judge.style", "motivation"),
        ("judge.reading", "reference"),
        ("judge.endpoint.model", "j"),
        ("sandbox.max_result_chars", 777),
        ("sandbox.call_timeout_s", 7.0),
        ("sandbox.grade_numbers", "pass"),
    ],
)
def test_what_decides_an_attempt_changes_the_key_of_a_campaign_and_of_a_training(key: str, value: Any) -> None:
    changed = keys({key: value})
    assert changed[0] != PLAIN[0] and changed[1] != PLAIN[1]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("group.size", 77),
        ("group.groups_per_update", 77),
        ("optimizer.lr", 7e-7),
        ("topology.device", "cuda"),
        ("topology.dtype", "bfloat16"),
        ("training.clip_high", 0.77),
        ("training.mini_batches", 7),
        ("training.normalise_by_std", not SHIPPED["training"]["normalise_by_std"]),
        ("training.validate_every", 77),
        ("training.validation_attempts", 77),
        ("training.refill_rounds", 77),
        ("training.verl", {"actor.ppo_epochs": 2}),
    ],
)
def test_what_decides_a_training_alone_leaves_the_attempts_of_the_base_policy(key: str, value: Any) -> None:
    changed = keys({key: value})
    assert changed[0] == PLAIN[0] and changed[1] != PLAIN[1]


def test_what_generates_in_training_generates_the_attempts_of_local_weights_too_unless_it_is_told_otherwise() -> None:
    changed = keys({"topology.rollout": "vllm"})
    assert changed[0] != PLAIN[0] and changed[1] != PLAIN[1]
    changed = keys({"topology.rollout": "vllm", "policy.serve": "none"})
    assert changed[0] == PLAIN[0] and changed[1] != PLAIN[1]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            (f"{group}.name", "other")
            for group in ("model", "policy", "user", "judge", "sandbox", "group", "optimizer")
        ),
        *((f"{group}.name", "other") for group in ("training", "topology", "tracking", "probe", "evaluation")),
        ("name", "other"),
        ("stages", ["report"]),
        ("store", "/other"),
        ("dry_run", True),
        ("probe.attempts", 77),
        ("probe.retries", 7),
        ("probe.max_system_error_share", 0.5),
        ("evaluation.attempts", 77),
        ("buckets.bands.hard.keep", not SHIPPED["buckets"]["bands"]["hard"]["keep"]),
        ("selection.min_clean", 3),
        ("policy.concurrency", 7),
        ("user.spending_cap_usd", 7.0),
        ("user.endpoint.timeout_s", 7.0),
        ("user.endpoint.retries", 7),
        ("user.endpoint.max_concurrency", 7),
        ("user.endpoint.api_key_env", "OTHER"),
        ("judge.spending_cap_usd", 7.0),
        ("sandbox.kind", "process"),
        ("sandbox.max_sessions", 7),
        ("sandbox.start_timeout_s", 7.0),
        ("training.steps", 777),
        ("training.save_every", 77),
        ("training.keep_checkpoints", 7),
        ("topology.threads", 7),
        ("topology.agent_workers", 7),
        ("topology.gpus_per_node", 7),
        ("tracking.experiment", "other"),
        ("prices.gpu_hour_usd", 7.0),
        ("launcher.secrets_file", "/other"),
        ("sandbox.remote_env", ["OTHER"]),
        ("sandbox.proxy.api_key_env", "OTHER"),
    ],
)
def test_names_lengths_speed_and_patience_change_no_key(key: str, value: Any) -> None:
    assert keys({key: value}) == PLAIN


@pytest.mark.parametrize(
    ("key", "value", "same"),
    [
        ("launcher.secrets_file", "/other", True),
        ("launcher.kind", "slurm", True),
        ("launcher.partition", "other", True),
        ("tracking.experiment", "other", True),
        ("parity.compare", ["calls"], True),
        ("policy.endpoint.api_key_env", "OTHER", True),
        ("selection.reference.policy.endpoint.api_key_env", "OTHER", True),
        ("sandbox.proxy.api_key_env", "OTHER", True),
        ("sandbox.remote_env", ["OTHER"], True),
        ("seed", 2, False),
        ("prices.gpu_hour_usd", 7.0, False),
        ("evaluation.attempts", 77, False),
    ],
)
def test_a_run_and_what_it_was_given_are_the_same_wherever_it_runs_and_its_secrets_come_from(
    key: str, value: Any, same: bool
) -> None:
    looked, other = config({"stages": ["report"]}), config({"stages": ["report"], key: value})
    assert (run_id_of(other) == run_id_of(looked)) is same
    assert (given_of(other, None, Inputs()) == given_of(looked, None, Inputs())) is same


@pytest.mark.parametrize(
    ("key", "value", "same"),
    [
        ("policy.endpoint.model", "n", False),
        ("policy.endpoint.base_url", "http://localhost/v2", False),
        ("policy.endpoint.extra_body", {"min_p": 0.1}, False),
        ("policy.endpoint.timeout_s", 7.0, True),
        ("policy.endpoint.api_key_env", "OTHER", True),
        ("policy.spending_cap_usd", 7.0, True),
        ("model.format", "hermes", False),
        ("model.max_context", 777, True),
    ],
)
def test_a_policy_behind_an_endpoint_is_its_address_and_model(key: str, value: Any, same: bool) -> None:
    assert (keys({**CHAT, key: value})[0] == keys(CHAT)[0]) is same
    assert keys(CHAT)[0] != PLAIN[0]


def test_a_policy_that_is_served_here_is_its_weights_and_what_changes_answers(tmp_path: Path) -> None:
    def key(**vllm: Any) -> str:
        changes = {"policy.kind": "chat", "policy.serve": "vllm", "policy.vllm.model": str(tmp_path)}
        return digest(policy_identity(config({**changes, **{f"policy.vllm.{n}": v for n, v in vllm.items()}}), ""))

    (tmp_path / "config.json").write_text("{}")
    first = key()
    assert first == key(port=9000, command=["other"], gpu_memory_utilization=0.5, ready_timeout_s=5.0)
    assert (
        len({first, key(dtype="float16"), key(max_model_len=512), key(reasoning_parser="qwen3"), key(flags=["x"])}) == 5
    )
    (tmp_path / "config.json").write_text('{"changed": 1}')
    assert first != key()


def test_another_model_is_another_policy() -> None:
    changed = keys({}, model="m2")
    assert changed[0] != PLAIN[0] and changed[1] != PLAIN[1]


@given(st.permutations(TASKS))
def test_the_order_of_tasks_does_not_matter(shuffled: list[Task]) -> None:
    assert tasks_digest(shuffled) == tasks_digest(TASKS)


@pytest.mark.parametrize(
    "tasks",
    [
        TASKS[:3],
        [*TASKS[:3], replace(TASKS[3], uid="t.py:other")],
        [*TASKS[:3], replace(TASKS[3], query="Q")],
        [*TASKS[:3], replace(TASKS[3], user_context=None)],
        [*TASKS[:3], replace(TASKS[3], test_code="def t(x, judge): assert 0\n__tb_test_fn = t\n")],
        [*TASKS[:3], replace(TASKS[3], init={"shop": {"stock": 2}})],
        # Contents that change places are other tasks.
        [*TASKS[:2], replace(TASKS[2], query="Q3"), replace(TASKS[3], query="Q2")],
    ],
)
def test_other_tasks_are_another_campaign(tasks: list[Task]) -> None:
    assert keys({}, tasks)[0] != PLAIN[0]


def test_training_and_validation_tasks_do_not_change_places_unnoticed() -> None:
    made = config({})
    one, other = (
        training_key(made, "m1", TASKS[:2], TASKS[2:], "s"),
        training_key(made, "m1", TASKS[2:], TASKS[:2], "s"),
    )
    assert one != other


def test_other_servers_are_another_campaign_and_training() -> None:
    changed = keys({}, servers="s2")
    assert changed[0] != PLAIN[0] and changed[1] != PLAIN[1]


def test_a_digest_does_not_depend_on_the_order_of_keys_but_on_that_of_lists() -> None:
    assert digest({"a": [1, 2], "b": "ü"}) == digest({"b": "ü", "a": [1, 2]}) != digest({"a": [2, 1], "b": "ü"})
    assert len(digest(1)) == 16 and len(digest(1, 8)) == 8


@pytest.mark.parametrize(
    ("seed", "uid", "attempt", "expected"),
    [
        (1, "shop.py:test_a", 0, 477959245),
        (1, "shop.py:test_a", 1, 1994046293),
        (2, "shop.py:test_a", 0, 1429028988),
        (1, "b.py:ü", 7, 562052073),
    ],
)
def test_the_seed_of_an_attempt_never_changes(seed: int, uid: str, attempt: int, expected: int) -> None:
    assert attempt_seed(seed, uid, attempt) == expected


@given(st.integers(), st.text(st.characters(exclude_categories=["Cs"])), st.integers(0))
def test_the_seed_of_an_attempt_has_31_bits(seed: int, uid: str, attempt: int) -> None:
    assert 0 <= attempt_seed(seed, uid, attempt) < 2**31


def test_the_attempts_of_a_run_have_seeds_of_their_own() -> None:
    seeds = {attempt_seed(seed, task.uid, n) for seed in (1, 2) for task in TASKS for n in range(100)}
    assert len(seeds) == 800
