from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tbexp.attempts import AttemptRow
from tbexp.config.schema import Evaluation, ModelPrice
from tbexp.errors import UserError, WorldFailure
from tbexp.evaluation import summarise
from tbexp.evaluation.cost import Spending, thrown_away_usd, token_cost
from tbexp.evaluation.intervals import alike_interval, paired_share_interval, share_interval

FAULT = {"kind": "tool_timeout", "message": ""}


def settings(**more: Any) -> Evaluation:
    return Evaluation(name="test", bootstrap=400, **more)


def attempts_of(passed: dict[str, int], n: int = 4, **more: Any) -> list[AttemptRow]:
    return [
        AttemptRow(uid, i, i < c, float(i < c), finish_reason="done", domain=uid[0], **more)
        for uid, c in passed.items()
        for i in range(n)
    ]


BASE = {"a:1": 4, "a:2": 2, "b:1": 0, "b:2": 1}
TRAINED = {"a:1": 4, "a:2": 4, "b:1": 1, "b:2": 1}
TASKS = {uid: uid[0] for uid in BASE}
PAIR = {"base": 0, "trained": 2}
KEYS = ("pass_at_k", "pass_power_k", "pass_power_k_plug_in")


def run(policies: Any, **more: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"attempts": 4, "tasks": TASKS, "settings": settings(), **more}
    return summarise(policies, **options)


def test_the_figures_of_a_policy() -> None:
    figures = run({"base": attempts_of(BASE)})["policies"]["base"]
    assert (figures["tasks"], figures["attempts"], figures["passed_attempts"]) == (4, 4, 7)
    assert figures["coverage"] == {
        "expected": 16,
        "clean": 16,
        "missing": 0,
        "system_errors": 0,
        "beyond": 0,
        "share": 1.0,
        "complete": True,
    }
    assert figures["partial"] is False
    assert figures["pass_at_1"]["value"] == pytest.approx(7 / 16)
    assert figures["pass_at_1"]["low"] <= figures["pass_at_1"]["fixed_low"] <= 7 / 16
    assert figures["pass_at_k"]["4"]["value"] == pytest.approx(3 / 4)
    assert figures["pass_at_k"]["2"]["value"] == pytest.approx((1 + (1 - 1 / 6) + 0 + 1 / 2) / 4)
    assert figures["pass_power_k"]["2"]["value"] == pytest.approx((1 + 1 / 6 + 0 + 0) / 4)
    assert figures["pass_power_k_plug_in"]["2"]["value"] == pytest.approx((1 + 1 / 4 + 0 + 1 / 16) / 4)
    assert (figures["observed_all_k"]["value"], figures["observed_all_k"]["tasks"]) == (0.25, 1)
    assert figures["passed_at_least_once"]["tasks"] == 3
    assert figures["by_domain"]["a"]["pass_at_1"]["value"] == pytest.approx(6 / 8)
    assert figures["by_domain"]["b"]["observed_all_k"]["tasks"] == 0
    assert figures["by_domain"]["b"]["observed_all_k"]["high"] > 0.0
    assert figures["passed_by_task"] == {uid: [c] for uid, c in BASE.items()}
    assert figures["finish_reasons"] == {"done": 16}
    assert figures["cost"] is None


def test_every_k_up_to_the_number_of_attempts_has_its_figures_also_of_many() -> None:
    n, passed = 150, {"x": 30, "y": 149}
    figures = run({"rows": attempts_of(passed, n=n)}, attempts=n, tasks={"x": "d", "y": "d"})["policies"]["rows"]
    for part in (figures, figures["by_domain"]["d"]):
        for key in ("pass_at_k", "pass_power_k", "pass_power_k_plug_in"):
            assert list(part[key]) == [str(k) for k in range(1, n + 1)]
    for k in (101, 121, 149, 150):
        power = [math.comb(c, k) / math.comb(n, k) for c in passed.values()]
        once = [1 - math.comb(n - c, k) / math.comb(n, k) for c in passed.values()]
        assert figures["pass_power_k"][str(k)]["value"] == pytest.approx(sum(power) / 2, abs=1e-12)
        assert figures["pass_at_k"][str(k)]["value"] == pytest.approx(sum(once) / 2)


def test_the_example_of_the_specification() -> None:
    rows = attempts_of({"x": 5, "y": 2}, n=5)
    figures = run({"rows": rows}, attempts=5, tasks={"x": "d", "y": "d"})["policies"]["rows"]
    assert figures["pass_at_1"]["value"] == pytest.approx(0.70)
    assert figures["pass_at_k"]["5"]["value"] == 1.0
    assert figures["pass_power_k_plug_in"]["5"]["value"] == pytest.approx(0.50512)
    assert figures["observed_all_k"]["value"] == 0.5


def test_the_paired_difference_names_what_was_gained_and_lost() -> None:
    difference = run({"base": attempts_of(BASE), "trained": attempts_of(TRAINED)})["difference"]
    assert difference["of"] == ["trained", "base"]
    assert difference["pass_at_1"]["value"] == pytest.approx(3 / 16)
    assert difference["observed_all_k"]["value"] == pytest.approx(0.25)
    assert difference["pass_at_k"]["4"]["value"] == pytest.approx(0.25)
    assert (difference["gained"], difference["lost"]) == (["a:2"], [])
    assert difference["mcnemar"] == {"gained": 1, "lost": 0, "compared": 4, "p": 1.0}
    assert difference["by_domain"]["b"]["pass_at_1"]["value"] == pytest.approx(1 / 8)


@pytest.mark.parametrize(
    ("base", "trained", "gained", "lost", "tests"),
    [
        ([BASE], [TRAINED], ["a:2"], [], [(1, 0, 4)]),
        # a:1 passed every time on both sides as far as it goes, and has an attempt less
        ([BASE], [TRAINED | {"a:1": 3}], ["a:2"], [], [(1, 0, 3)]),
        ([BASE | {"a:2": -3}], [TRAINED], [], [], [(0, 0, 3)]),
        ([BASE | {"a:1": 3}], [TRAINED | {"a:1": 0}], ["a:2"], [], [(1, 0, 3)]),
        ([BASE, BASE], [TRAINED, TRAINED | {"a:2": 3}], [], [], [(1, 0, 4), (0, 0, 3)]),
        ([BASE], [dict.fromkeys(BASE, 3)], [], [], [(0, 0, 0)]),
    ],
)
def test_only_tasks_that_have_all_attempts_on_both_sides_are_gained_or_lost(
    base: list[dict[str, int]],
    trained: list[dict[str, int]],
    gained: list[str],
    lost: list[str],
    tests: list[tuple[int, int, int]],
) -> None:
    def made(counts: dict[str, int]) -> list[AttemptRow]:
        """As many passes of four attempts; of three (a task with 3 passes, or -3 for none) the fourth was not made."""
        rows = attempts_of({uid: max(passed, 0) for uid, passed in counts.items()})
        return [row for row in rows if not (abs(counts[row.uid]) == 3 and row.attempt == 3)]

    sides = {name: [made(run_) for run_ in runs] for name, runs in (("base", base), ("trained", trained))}
    difference = run(sides, settings=settings(allow_partial=True))["difference"]
    assert (difference["gained"], difference["lost"]) == (gained, lost)
    found = difference["mcnemar"] if len(tests) > 1 else [difference["mcnemar"]]
    assert [(test["gained"], test["lost"], test["compared"]) for test in found] == tests
    assert [test["p"] is None for test in found] == [not compared for *_, compared in tests]
    assert difference["compared"] == min(compared for *_, compared in tests)


def test_a_policy_compared_with_itself_does_not_differ() -> None:
    difference = run({"base": attempts_of(BASE), "trained": attempts_of(BASE)})["difference"]
    low, high = paired_share_interval(0, 0, len(BASE))  # that no task was seen to change does not say that none would
    assert difference["pass_at_1"] == {"value": 0.0, "low": low, "high": high}
    assert (difference["gained"], difference["lost"]) == ([], [])


def test_seeds_are_pooled_by_task() -> None:
    other = {"a:1": 4, "a:2": 3, "b:1": 0, "b:2": 4}
    pooled = run({"base": [attempts_of(BASE)] * 2, "trained": [attempts_of(TRAINED), attempts_of(other)]})
    trained = pooled["policies"]["trained"]
    assert trained["seeds"] == 2
    assert trained["pass_at_1"]["value"] == pytest.approx((10 + 11) / 32)
    assert trained["observed_all_k"]["value"] == pytest.approx(0.5)
    assert trained["observed_all_k"]["tasks"] == 2
    assert [seed["passed_every_time"] for seed in trained["by_seed"]] == [2, 2]
    assert pooled["difference"]["pass_at_1"]["value"] == pytest.approx(21 / 32 - 7 / 16)
    assert pooled["difference"]["gained"] == ["a:2", "b:2"]
    assert [test["gained"] for test in pooled["difference"]["mcnemar"]] == [1, 1]


def test_repeating_a_seed_does_not_narrow_the_interval_over_tasks() -> None:
    rng = np.random.default_rng(0)
    passed = {f"a:{i}": int(c) for i, c in enumerate(rng.integers(0, 5, 40))}
    tasks = dict.fromkeys(passed, "a")
    one = run({"rows": [attempts_of(passed)]}, tasks=tasks)["policies"]["rows"]["pass_at_1"]
    five = run({"rows": [attempts_of(passed)] * 5}, tasks=tasks)["policies"]["rows"]["pass_at_1"]
    assert (one["low"], one["high"]) == pytest.approx((five["low"], five["high"]))


def test_seeds_that_cannot_be_paired_are_refused() -> None:
    with pytest.raises(UserError, match="cannot be paired"):
        run({"base": [attempts_of(BASE)] * 2, "trained": [attempts_of(TRAINED)] * 3})


def test_no_figure_without_coverage_and_the_counts_say_what_is_missing() -> None:
    rows = attempts_of(BASE)[:-3]
    rows.append(AttemptRow("b:2", 1, None, 0.0, FAULT))
    with pytest.raises(WorldFailure) as caught:
        run({"base": rows})
    text = str(caught.value)
    assert "13 of 16" in text and "1 ended in system errors, 2 were not made" in text
    figures = run({"base": rows}, settings=settings(allow_partial=True))["policies"]["base"]
    assert figures["partial"] is True
    assert figures["coverage"]["share"] == pytest.approx(13 / 16)
    assert figures["system_error_kinds"] == {"tool_timeout": 1}
    assert figures["pass_at_1"]["value"] == pytest.approx((1 + 0.5 + 0 + 1) / 4)
    assert figures["observed_all_k"]["value"] == pytest.approx(1 / 3)


def test_a_domain_without_a_verdict_has_no_figures_in_a_partial_summary() -> None:
    rows = [row for row in attempts_of(BASE) if row.uid.startswith("a")]
    summary = run(
        {"base": [rows, rows], "trained": [rows, attempts_of(TRAINED)]}, settings=settings(allow_partial=True)
    )
    domain = summary["policies"]["base"]["by_domain"]["b"]
    assert domain["pass_at_1"]["value"] is None and domain["by_seed"][0]["pass_at_1"] is None
    assert summary["policies"]["base"]["coverage"]["share"] == 0.5
    json.dumps(summary, allow_nan=False)


def test_a_system_error_that_was_made_good_counts_as_a_retried_attempt_and_changes_nothing_else() -> None:
    rows = attempts_of(BASE)
    with_error = [AttemptRow("a:1", 0, None, 0.0, FAULT), *rows]
    before, after = (run({"base": r})["policies"]["base"] for r in (rows, with_error))
    assert after.pop("system_error_kinds") == {"tool_timeout": 1}
    assert before.pop("system_error_kinds") == {}
    assert (before.pop("retried")["attempts"], before.pop("first_try")["attempts"]) == (0, 16)
    assert after.pop("retried") == {"attempts": 1, "pass_rate": 1.0}
    assert after.pop("first_try") == {"attempts": 15, "pass_rate": 6 / 15}
    assert before == after


def test_attempts_beyond_the_protocol_are_left_out() -> None:
    rows = attempts_of(BASE, n=6)
    rows = [replace(row, prompt_tokens=1) for row in rows]
    figures = run({"base": rows})["policies"]["base"]
    assert (figures["clean_attempts"], figures["coverage"]["beyond"]) == (16, 8)
    assert figures["tokens"]["prompt_tokens"] == 16


def test_duplicates_and_foreign_rows_are_named() -> None:
    rows = attempts_of(BASE)
    with pytest.raises(UserError, match=r"more than one clean row of 1 attempt: a:1 attempt 0"):
        run({"base": [*rows, rows[0]]})
    with pytest.raises(UserError, match=r"rows of 1 task not evaluated: z:9"):
        run({"base": [*rows, AttemptRow("z:9", 0, True, 1.0)]})


def test_the_order_of_rows_does_not_matter() -> None:
    rows = attempts_of(BASE)
    assert run({"base": rows}) == run({"base": rows[::-1]})


def test_first_tries_and_retried_attempts_are_told_apart() -> None:
    rows = attempts_of(BASE)
    rows[0] = AttemptRow("a:1", 0, True, 1.0, tries=3, judged=True)
    figures = run({"base": rows})["policies"]["base"]
    assert figures["first_try"] == {"attempts": 15, "pass_rate": pytest.approx(6 / 15)}
    assert figures["retried"] == {"attempts": 1, "pass_rate": 1.0}
    assert figures["judged_share"] == pytest.approx(1 / 16)


@pytest.mark.parametrize(
    ("searches", "mark"), [((), None), (("external",), "external"), (("external", "embedded"), "embedded")]
)
def test_one_attempt_under_the_embedded_search_marks_the_figures(searches, mark) -> None:
    rows = attempts_of(BASE)
    for i, search in enumerate(searches):
        rows[i] = replace(rows[i], search=search)
    assert run({"base": rows})["policies"]["base"]["search"] == mark


def test_the_cost_of_tokens_and_of_a_reliable_task() -> None:
    rows = attempts_of(BASE, prompt_tokens=1000, cached_tokens=400, completion_tokens=100, user_prompt_tokens=50)
    spending = Spending(
        policy=ModelPrice(prompt=2.0, cached=0.5, completion=10.0),
        user=ModelPrice(prompt=1.0),
        gpu_hours=0.5,
        gpu_hour_usd=2.0,
        besides={"probing": 4.0, "training": 6.0},
    )
    cost = run({"base": rows}, spending={"base": spending})["policies"]["base"]["cost"]
    tokens = 16 * (600 * 2.0 + 400 * 0.5 + 100 * 10.0) / 1e6
    campaign = tokens + 16 * 50 / 1e6 + 1.0
    assert cost["policy_usd"] == pytest.approx(tokens)
    assert cost["campaign_usd"] == pytest.approx(campaign)
    assert cost["per_passed_attempt_usd"] == pytest.approx(campaign / 7)
    assert cost["per_reliable_task_usd"] == pytest.approx(campaign)
    assert cost["total_usd"] == pytest.approx(campaign + 10.0)
    assert "not invoices" in cost["caution"] and "probing and training" in cost["caution_of_total"]


def test_a_role_without_a_price_leaves_a_lower_bound_and_no_cost() -> None:
    rows = attempts_of(BASE, prompt_tokens=1000, user_prompt_tokens=50)
    spending = Spending(policy=ModelPrice(prompt=2.0), unpriced=("user",), besides={"probing": 4.0})
    cost = run({"base": rows}, spending={"base": spending})["policies"]["base"]["cost"]
    names = ("campaign_usd", "per_passed_attempt_usd", "per_reliable_task_usd", "total_usd")
    assert [cost[name] for name in names] == [None] * 4
    assert (cost["at_least_usd"], cost["unpriced"]) == (pytest.approx(0.032), ["user"])


def test_there_is_no_total_while_a_part_of_it_is_unknown() -> None:
    spending = Spending(
        policy=ModelPrice(attempt=0.5), besides={"probing": 4.0}, besides_unknown=("training: no rate",)
    )
    cost = run({"base": attempts_of(BASE)}, spending={"base": spending})["policies"]["base"]["cost"]
    assert (cost["campaign_usd"], cost["total_usd"]) == (8.0, None)


def test_what_is_priced_by_attempts_alone_has_no_price_for_thrown_away_tokens() -> None:
    row = {"train/thrown_away/tokens": 100.0}
    assert thrown_away_usd(row, gpu_hour_usd=0.0, devices=1, price=ModelPrice(attempt=0.1)) is None


def test_reasoning_tokens_are_part_of_the_completion_and_can_have_a_price_of_their_own() -> None:
    tokens = {"completion_tokens": 1000, "reasoning_tokens": 600}
    assert token_cost(tokens, "", ModelPrice(completion=10.0)) == pytest.approx(0.01)
    assert token_cost(tokens, "", ModelPrice(completion=10.0, reasoning=5.0)) == pytest.approx(0.007)


def test_an_attempt_claims_success_when_the_agent_itself_ends_it_and_the_check_disagrees() -> None:
    ends = ["done", "done", "end_turn_tool", "agent_limit", "user_done", "action_limit", "", "done"]
    rows = [AttemptRow("a:1", i, i == 7, float(i == 7), finish_reason=end) for i, end in enumerate(ends)]
    found = run({"rows": rows}, attempts=8, tasks={"a:1": "a"})["policies"]["rows"]["claimed_success"]
    unsure = dict.fromkeys(f"{name}_{side}" for name in ("share", "share_of_claims") for side in ("low", "high"))
    assert found == {"attempts": 4, "failed": 3, "share": 3 / 7, "share_of_claims": 3 / 4, **unsure}


def test_the_share_of_false_claims_has_an_interval_over_tasks() -> None:
    def rows(falsely: dict[str, int]) -> list[AttemptRow]:
        return [
            AttemptRow(uid, i, i >= count, float(i >= count), finish_reason="done")
            for uid, count in falsely.items()
            for i in range(4)
        ]

    def claims(falsely: dict[str, int]) -> dict[str, float]:
        found = run({"rows": rows(falsely)}, tasks=dict.fromkeys(falsely, "a"))["policies"]["rows"]["claimed_success"]
        assert isinstance(found, dict)
        return found

    mixed = claims({f"a:{i}": i % 3 for i in range(30)})
    assert mixed["share"] == mixed["share_of_claims"] == 0.25
    assert 0.15 < mixed["share_low"] < 0.25 < mixed["share_high"] < 0.35
    # Whole tasks that fail or pass are a count of tasks; that none was seen does not say that there are none.
    halves = claims({f"a:{i}": 4 * (i % 2) for i in range(30)})
    assert (halves["share_low"], halves["share_high"]) == share_interval(15, 30)
    assert claims({f"a:{i}": 0 for i in range(30)})["share_high"] == share_interval(0, 30)[1]


def test_where_all_tasks_have_the_same_figure_its_interval_is_no_point() -> None:
    before, after = (attempts_of({f"a:{i}": k for i in range(12)}) for k in (1, 2))
    found = run({"base": before, "trained": after}, tasks={f"a:{i}": "a" for i in range(12)})
    figures = found["policies"]["trained"]
    for figure, value, lowest in (
        (figures["pass_at_1"], 0.5, 0.0),
        (figures["pass_at_k"]["2"], 5 / 6, 0.0),
        (found["difference"]["pass_at_1"], 0.25, -1.0),
        (found["difference"]["by_domain"]["a"]["pass_at_1"], 0.25, -1.0),
    ):
        assert figure["value"] == pytest.approx(value)
        assert (figure["low"], figure["high"]) == pytest.approx(alike_interval(value, 12, lowest=lowest))
    claims = figures["claimed_success"]
    assert (claims["share"], claims["share_low"], claims["share_high"]) == (0.5, *alike_interval(0.5, 12))


def test_one_task_has_no_interval_over_tasks_and_keeps_that_of_the_same_task() -> None:
    part = run({"base": attempts_of({"a:1": 2}), "trained": attempts_of({"a:1": 3})}, tasks={"a:1": "a"})
    for figures in (part["policies"]["base"], part["policies"]["base"]["by_domain"]["a"]):
        for figure in (figures["pass_at_1"], figures["observed_all_k"], figures["pass_at_k"]["4"]):
            assert (figure["low"], figure["high"]) == (None, None)
        assert (figures["pass_at_1"]["fixed_low"], figures["pass_at_1"]["fixed_high"]) == (0.0, 1.0)
        assert figures["observed_all_k"]["fixed_low"] == 0.0 < figures["observed_all_k"]["fixed_high"]
    assert part["difference"]["pass_at_1"] == {"value": 0.25, "low": None, "high": None}


def test_without_a_reliable_task_its_cost_is_infinite_and_the_summary_is_still_json() -> None:
    rows = attempts_of({uid: 0 for uid in BASE}, prompt_tokens=10)
    summary = run({"base": rows}, spending={"base": Spending(policy=ModelPrice(prompt=1.0))})
    assert summary["policies"]["base"]["cost"]["per_reliable_task_usd"] == "inf"
    assert summary["policies"]["base"]["retried"]["pass_rate"] is None
    text = json.dumps(summary, allow_nan=False)
    assert json.loads(text) == summary


def test_the_same_tasks_have_the_same_intervals_whatever_they_are_called() -> None:
    runs = {name: attempts_of({f"a:{i}": (i * i + shift) % 5 for i in range(30)}) for name, shift in PAIR.items()}
    tasks = {uid: "all" for uid in (row.uid for row in runs["base"])}
    found = run(runs, tasks=tasks, groups={"scenario": dict.fromkeys(tasks, "one"), "tag": dict.fromkeys(tasks, "x")})
    for whole in (*found["policies"].values(), found["difference"]):
        for part in (whole["by_domain"]["all"], whole["by_scenario"]["one"], whole["by_tag"]["x"]):
            for key in ("pass_at_1", "passed_at_least_once", "observed_all_k"):
                assert part[key] == whole[key] and part[key]["low"] < part[key]["high"]
            assert part["pass_at_k"].items() <= whole["pass_at_k"].items()


def test_of_each_k_it_is_told_whether_its_interval_is_that_of_a_count() -> None:
    passed = {f"a:{i}": (0, 3, 4)[i % 3] for i in range(12)}
    figures = run({"base": attempts_of(passed)}, tasks=dict.fromkeys(passed, "a"))["policies"]["base"]
    counts = {key: [k for k, v in figures[key].items() if v.get("interval") == "count"] for key in KEYS}
    assert counts == {"pass_at_k": ["2", "3", "4"], "pass_power_k": ["4"], "pass_power_k_plug_in": []}
    for key, part in ((key, figures[key]) for key in counts):
        for k in counts[key]:
            assert (part[k]["low"], part[k]["high"]) == share_interval(round(part[k]["value"] * 12), 12)


def test_further_groupings_get_their_own_figures() -> None:
    topics = {"a:1": "refunds", "a:2": ["refunds", "returns"], "b:1": "returns"}
    figures = run({"base": attempts_of(BASE)}, groups={"topic": topics})["policies"]["base"]
    assert {label: part["tasks"] for label, part in figures["by_topic"].items()} == {"refunds": 2, "returns": 2}
    assert math.isclose(figures["by_topic"]["refunds"]["pass_at_1"]["value"], 6 / 8)
