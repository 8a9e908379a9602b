"""What an endpoint's policy is told by the config, and what its attempts cost."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tbexp.attempts import AttemptRow
from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder
from tbexp.config.schema import Config
from tbexp.episode import Attempt
from tbexp.evaluation import cost_of, summarise
from tbexp.evaluation.tally import tally
from tbexp.pipeline import policies
from tbexp.pipeline.campaign import row_of
from tbexp.pipeline.evaluated import evaluation_metrics, told_cost
from tbexp.pipeline.prices import faults_of, probing_usd, spending_of, training_usd
from tbexp.policy import ChatPolicy, Usage

with opened(conf_folder()) as compose:
    SHIPPED = plain(compose([]))

CHAT = {"policy.kind": "chat", "policy.endpoint.base_url": "http://localhost/v1", "policy.endpoint.model": "m"}
SERVED = {"policy.kind": "chat", "policy.serve": "vllm", "policy.vllm.model": "weights"}
WEIGHTS = {"policy.serve": "vllm", "policy.vllm.model": "weights"}
NO_START = policies.Start(Path("vllm.log"), lambda text: pytest.fail("nothing is started for it"))
PRICE = {"prompt": 2.0, "cached": 1.0, "completion": 10.0}


def config(**changes: Any) -> Config:
    values = copy.deepcopy(SHIPPED)
    for key, value in changes.items():
        *parents, leaf = key.split(".")
        node = values
        for part in parents:
            node = node[part]
        node[leaf] = value
    return Config.model_validate(values)


def rows(count: int = 4) -> list[AttemptRow]:
    tokens = {"prompt_tokens": 1000, "cached_tokens": 500, "completion_tokens": 100}
    return [AttemptRow("a", n, True, 1.0, seconds=90.0, domain="d", **tokens) for n in range(count)]


def test_a_chat_policy_reads_calls_in_the_models_format_and_knows_its_price_and_cap() -> None:
    made = policies.chat(
        config(**CHAT, **{"model.format": "hermes", "prices.models": {"m": PRICE}, "policy.spending_cap_usd": 3.0}),
        NO_START,
    )
    assert isinstance(made, ChatPolicy)
    assert made.format == "hermes" and made.endpoint.section == "policy"
    assert made.endpoint._cap == 3.0 and made.endpoint._price is not None and made.endpoint._price.completion == 10.0
    assert isinstance(plain_ := policies.chat(config(**CHAT), NO_START), ChatPolicy) and plain_.endpoint._price is None


def test_a_reference_policy_has_its_own_section_format_and_price() -> None:
    key = "selection.reference.policy"
    told = {f"{key}.kind": "chat", f"{key}.endpoint.base_url": "http://localhost/v1", f"{key}.endpoint.model": "big"}
    made = policies.reference(config(**told, **{f"{key}.format": "hermes", "prices.models": {"big": PRICE}}), NO_START)
    assert isinstance(made, ChatPolicy)
    assert (made.format, made.name, made.endpoint.section) == ("hermes", "big", key)
    assert made.endpoint._price is not None and made.sampling.max_tokens == 8192


@pytest.mark.parametrize(
    ("changes", "usd"),
    [
        ({}, None),
        ({**CHAT, "prices.models": {"other": PRICE}}, None),  # not known is not free
        # 4 x (500 fresh x 2 + 500 cached x 1 + 100 x 10) per million
        ({**CHAT, "prices.models": {"m": PRICE}}, 4 * 2500 / 1e6),
        ({"prices.models": {"tiny": PRICE}}, 4 * 2500 / 1e6),
        # 4 x 90 s, two at a time, at 6 dollars an hour
        ({"prices.gpu_hour_usd": 6.0, "policy.concurrency": 2}, 180 / 3600 * 6),
        ({**CHAT, "prices.gpu_hour_usd": 6.0}, None),
        # served here, on two devices
        ({**SERVED, "prices.gpu_hour_usd": 6.0, "policy.vllm.tensor_parallel_size": 2}, 2 * 360 / 4 / 3600 * 6),
        ({**SERVED, "policy.endpoint.model": "m", "prices.gpu_hour_usd": 6.0, "prices.models": {"m": PRICE}}, 0.01),
        # local weights on vLLM: the same, by the name of the model
        ({**WEIGHTS, "prices.gpu_hour_usd": 6.0, "policy.vllm.tensor_parallel_size": 2}, 2 * 360 / 4 / 3600 * 6),
        (
            {**WEIGHTS, "prices.gpu_hour_usd": 6.0, "prices.models": {"other": PRICE}},
            360 / 4 / 3600 * 6,
        ),
        ({**WEIGHTS, "prices.gpu_hour_usd": 6.0, "prices.models": {"tiny": PRICE}}, 0.01),
        ({**WEIGHTS, "prices.models": {"tiny": PRICE}}, 0.01),
        ({"prices.gpu_hour_usd": 6.0, "policy.concurrency": 2, "prices.models": {"tiny": PRICE}}, 180 / 3600 * 6),
    ],
)
def test_an_evaluation_costs_what_the_price_table_says(changes: dict[str, Any], usd: float | None) -> None:
    made = config(**changes)
    spending = spending_of(made, rows())
    assert (spending is None) == (usd is None)
    found = summarise(
        {"base": rows()},
        attempts=4,
        tasks={"a": "d"},
        settings=made.evaluation,
        spending={} if spending is None else {"base": spending},
    )["policies"]["base"]
    metrics = evaluation_metrics(found, "4", prefix="eval")
    if usd is None:
        assert found["cost"] is None and not [name for name in metrics if "usd" in name]
    else:
        assert found["cost"]["per_reliable_task_usd"] == pytest.approx(usd)
        assert metrics["eval/cost_per_reliable_task_usd"] == pytest.approx(usd)


def test_what_user_and_judge_used_stands_in_the_row_and_is_paid_for() -> None:
    used = {"user": Usage(1000, 400, 10, 4), "judge": Usage(200, 100, 2, 1)}
    done = Attempt("a", 0, True, 1.0, "done", 1, 0, Usage(100, 50, 5), {"total": 2.0}, "d", others=used)
    row = row_of(done, 1, "none")
    assert (row.user_prompt_tokens, row.user_completion_tokens) == (1000, 10)
    assert (row.judge_prompt_tokens, row.judge_completion_tokens) == (200, 2)
    kept = {f"{role}_{kind}_tokens" for role in used for kind in ("cached", "reasoning")}
    assert sorted(getattr(row, name) for name in kept) == [1, 4, 100, 400]
    made = config(
        **CHAT,
        **{f"{role}.kind": "chat" for role in ("user", "judge")},
        **{f"{role}.endpoint.model": role for role in ("user", "judge")},
        **{"prices.models": {"m": PRICE, "user": {**PRICE, "reasoning": 20.0}, "judge": PRICE}},
    )
    spending = spending_of(made, [row])
    assert spending is not None
    assert not spending.unpriced and not list(faults_of(made, {"base": spending}))
    found = cost_of([tally([row], ["a"], 1)], 1, spending)
    assert found["policy_usd"] == pytest.approx((50 * 2 + 50 * 1 + 5 * 10) / 1e6)
    assert found["user_usd"] == pytest.approx((600 * 2 + 400 * 1 + 6 * 10 + 4 * 20) / 1e6)
    assert found["judge_usd"] == pytest.approx((100 * 2 + 100 * 1 + 2 * 10) / 1e6)
    probed, _ = probing_usd(made, [row], "it")
    assert probed == pytest.approx(found["campaign_usd"])


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        (
            ["m"],
            ["the user's model user has no price; add it: prices.models={user: {", "the judge's model judge has no"],
        ),
        (["m", "user"], ["the cost is not told, for the judge's model judge has no price"]),
        (["user", "judge"], ["there is no cost: the policy has no price; add it: prices.models={m: {"]),
        (["qwen"], ["prices.models names no model of this run (policy m, user user, judge judge); it has qwen"]),
        ([], []),
    ],
)
def test_what_the_price_table_lacks_or_has_in_vain_is_told_once(listed: list[str], told: list[str]) -> None:
    made = config(
        **CHAT,
        **{f"{role}.kind": "chat" for role in ("user", "judge")},
        **{f"{role}.endpoint.model": role for role in ("user", "judge")},
        **{"prices.models": dict.fromkeys(listed, PRICE)},
    )
    found = spending_of(made, rows())
    spending = {} if found is None else {"base": found, "trained": found}
    said = list(faults_of(made, spending))
    assert len(said) == len(told) and all(text in line for line, text in zip(said, told, strict=True))


NOTHING = {"prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0}


@pytest.mark.parametrize(
    ("price", "changes", "untold"),
    [
        (PRICE, {}, {}),
        (PRICE, NOTHING, {"policy": (1, 4)}),
        (PRICE, {"prompt_tokens": 0, "cached_tokens": 0}, {"policy": (1, 4)}),
        (PRICE, {"completion_tokens": 0}, {"policy": (1, 4)}),
        ({"prompt": 2.0}, {"completion_tokens": 0}, {}),
        ({"attempt": 2.0}, NOTHING, {}),
        ({"attempt": 2.0, "prompt": 1.0}, NOTHING, {"policy": (1, 4)}),
        (PRICE, {**NOTHING, "finish_reason": "token_limit"}, {}),  # its first prompt was too long
        (PRICE, {**NOTHING, "finish_reason": "token_limit", "turns": 3, "tool_calls": 2}, {"policy": (1, 4)}),
        (PRICE, {**NOTHING, "passed": None, "system_error": {"kind": "k", "message": ""}}, {}),
        (PRICE, {"judged": True, "judge_prompt_tokens": 9}, {"judge": (1, 1)}),
        (PRICE, {"judged": True, "judge_prompt_tokens": 9, "judge_completion_tokens": 1}, {}),
        (PRICE, {"turns": 3, "tool_calls": 1, "finish_reason": "done"}, {"user": (1, 1)}),
        (PRICE, {"turns": 3, "tool_calls": 2, "finish_reason": "done"}, {}),  # perhaps nobody asked the user
        (PRICE, {"turns": 1, "finish_reason": "user_done"}, {"user": (1, 1)}),
        (PRICE, {"turns": 1, "finish_reason": "user_done", "user_prompt_tokens": 9}, {"user": (1, 1)}),
        (PRICE, {"turns": 3, "user_prompt_tokens": 9, "user_completion_tokens": 1}, {}),
        (PRICE, {"turns": 3, "judged": True, **NOTHING}, {"policy": (1, 4), "user": (1, 1), "judge": (1, 1)}),
    ],
)
def test_attempts_that_do_not_tell_their_tokens_are_counted_and_leave_the_cost_unknown(
    price: dict[str, float], changes: dict[str, Any], untold: dict[str, tuple[int, int]]
) -> None:
    others = {f"{role}.kind": "chat" for role in ("user", "judge")}
    others |= {f"{role}.endpoint.model": role for role in ("user", "judge")}
    made = config(**CHAT, **others, **{"prices.models": {"m": price, "user": PRICE, "judge": PRICE}})
    attempts = [*rows(3), replace(rows(4)[3], **changes)]
    spending = spending_of(made, attempts)
    assert spending is not None and spending.untold == untold and spending.unpriced == tuple(untold)
    cost = cost_of([tally(attempts, ["a"], 4)], 4, spending)
    assert (cost["campaign_usd"] is None) == bool(untold) and cost["at_least_usd"] > 0
    said = list(faults_of(made, {"base": spending}))
    assert len(said) == len(untold)
    for line, (role, (n, of)) in zip(said, untold.items(), strict=True):
        assert f"{n} of {of} clean attempts do not tell all tokens of the {role}, whose model is" in line
        assert f"the {role}'s tokens in {n} of {of} attempts" in told_cost(cost)
    if untold:
        told = re.match(r"at least US\$ ([\d.]+), which is without the ", told_cost(cost))
        assert told and float(told[1]) == pytest.approx(cost["at_least_usd"], rel=0.005)


@pytest.mark.parametrize(
    ("usd", "text"), [(0.0, "US$ 0.00,"), (0.000123, "US$ 0.000123,"), (0.0123, "US$ 0.01,"), (925.8, "US$ 925.80,")]
)
def test_a_cost_below_a_cent_is_told_in_three_digits_that_count(usd: float, text: str) -> None:
    figures = {"campaign_usd": usd, "per_passed_attempt_usd": usd, "per_reliable_task_usd": "inf", "besides_usd": None}
    assert told_cost(figures).startswith(text) and told_cost(figures).endswith("no reliable task")


def test_the_hours_of_devices_are_those_that_the_attempts_were_made_under_whatever_the_settings_are_now() -> None:
    made = [replace(row, at_a_time=2, devices=4) for row in rows(3)]
    made += [replace(row, at_a_time=6, devices=1) for row in rows(4)[3:]]  # made later, or by another job
    now = ({}, {"policy.concurrency": 1}, {"policy.concurrency": 64}, SERVED, {"policy.serve": "vllm"})
    for changes in (*now, {**SERVED, "policy.vllm.tensor_parallel_size": 8}):
        spending = spending_of(settings := config(**{"prices.gpu_hour_usd": 6.0}, **changes), made)
        assert spending is not None and spending.gpu_hours == pytest.approx((3 * 90 / 2 * 4 + 90 / 6) / 3600)
        assert not spending.assumed and not list(faults_of(settings, {"base": spending}))
    older = config(**{"prices.gpu_hour_usd": 6.0, "policy.concurrency": 3})
    spending = spending_of(older, [*made[:2], *rows(4)[2:]])
    assert spending is not None and spending.gpu_hours == pytest.approx((2 * 90 / 2 * 4 + 2 * 90 / 3) / 3600)
    (said,) = faults_of(older, {"base": spending})
    assert (
        said.startswith("2 attempts without a word of how many ran at a time")
        and "policy.concurrency=3 is taken" in said
    )
    assert probing_usd(config(**RATE), made, "it") == probing_usd(config(**RATE, **{"policy.concurrency": 9}), made, "")


@pytest.mark.parametrize(
    ("changes", "devices"),
    [
        ({}, 1),
        ({"policy.serve": "vllm", "policy.vllm.tensor_parallel_size": 2}, 2),
        (CHAT, 0),
        ({**SERVED, "policy.vllm.tensor_parallel_size": 8}, 8),
    ],
)
def test_devices_are_counted_where_this_run_generates(changes: dict[str, Any], devices: int) -> None:
    assert policies.devices_of(config(**changes).policy) == devices


STEPS = {
    0: {"train/validation_pass_rate": 0.2},
    1: {"train/seconds/step": 80.0},
    2: {"train/seconds/step": 80.0, "train/seconds/validation": 20.0, "train/validation_pass_rate": 0.3},
}
NOTED = {(0, "validation"): (2, {}), (1, "update"): (8, {"user_prompt_tokens": 3_000_000, "judge_prompt_tokens": 9})}
NOTED |= {(2, "update"): (8, {"user_completion_tokens": 500_000}), (2, "validation"): (2, {"user_prompt_tokens": 4})}
NOTED |= {(3, "update"): (8, {"user_prompt_tokens": 10**9})}  # of a longer training than this one
RATE = {"prices.gpu_hour_usd": 6.0}
USER = {"user.kind": "chat", "user.endpoint.model": "u", "prices.models": {"u": {"prompt": 2.0, "completion": 8.0}}}


@pytest.mark.parametrize(
    ("changes", "usd", "lacking"),
    [
        ({**RATE, "topology.gpus_per_node": 8}, 180 / 3600 * 8 * 6, []),
        ({**RATE, **USER}, 180 / 3600 * 6 + 3 * 2.0 + 0.5 * 8.0 + 4 * 2e-6, []),
        ({**RATE, **USER, "judge.kind": "chat", "judge.endpoint.model": "j"}, 180 / 3600 * 6 + 10.000008,
         ["training: the judge has no price"]),
        (USER, 10.000008, ["training: prices.gpu_hour_usd is 0"]),
        ({}, 0.0, ["training: prices.gpu_hour_usd is 0"]),
    ],
)  # fmt: skip
def test_training_costs_the_devices_in_its_seconds_and_the_tokens_of_user_and_judge(
    changes: dict[str, Any], usd: float, lacking: list[str]
) -> None:
    assert training_usd(config(**changes), STEPS, NOTED) == (pytest.approx(usd), lacking)


def test_training_costs_the_devices_that_its_updates_ran_on_whatever_the_topology_is_now() -> None:
    def told(step: int, devices: int) -> dict[str, float]:  # as verl tells them
        row: dict[str, float] = {"perf/total_num_tokens": 7199.0, "perf/time_per_step": 80.3}
        return {**STEPS[step], **row, "perf/throughput": 7199.0 / (80.3 * devices)}

    for now in ({}, {"topology.gpus_per_node": 8}):
        found = training_usd(config(**RATE, **now), {0: {"train/seconds/validation": 36.0}, 1: told(1, 4)}, {})
        assert found == (pytest.approx((36 + 80) / 3600 * 4 * 6), [])
        found = training_usd(config(**RATE, **now), {1: told(1, 4), 2: told(2, 16)}, {})
        assert found == (pytest.approx((80 * 4 + 100 * 16) / 3600 * 6), [])


def test_what_a_training_has_not_recorded_is_told() -> None:
    assert training_usd(config(**RATE), {0: STEPS[0]}, NOTED) == (0.0, ["training: its metrics hold no seconds"])
    assert training_usd(config(**RATE), STEPS, {}) == (pytest.approx(0.3), [])  # nobody else was to be paid
    of_user = "training: the tokens of user in {} of 4 updates and validations were not recorded, as by older versions"
    assert training_usd(config(**RATE, **USER), STEPS, {}) == (pytest.approx(0.3), [of_user.format(4)])
    begun = {key: NOTED[key] for key in ((2, "update"), (2, "validation"))}
    assert training_usd(config(**RATE, **USER), STEPS, begun)[1] == [of_user.format(2)]


def test_probing_costs_what_its_attempts_do_and_what_has_no_price_is_told() -> None:
    assert probing_usd(config(**RATE, **{"policy.concurrency": 2}), rows(), "it") == (pytest.approx(0.3), [])
    assert probing_usd(config(), rows(), "it") == (0.0, ["probing: it has no price"])
    paid = config(**RATE, **{"user.kind": "chat", "user.endpoint.model": "u"})
    assert probing_usd(paid, rows(), "it")[1] == ["probing: the user of it has no price"]
