"""The reference aggregation and the published figures, to the digit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tbexp.attempts import read_rows, to_tb_infer_row
from tbexp.evaluation import load_published, published_from_counts, tb_agg
from tbexp.evaluation.published import derived_cost_per_passed_attempt

GOLDEN = Path(__file__).parent / "golden"
CASES = json.loads((GOLDEN / "aggregate.json").read_text())["cases"]


@pytest.mark.parametrize("name", sorted(CASES))
def test_tb_agg_gives_the_numbers_of_the_reference(name: str) -> None:
    rows = [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()]
    assert tb_agg(rows) == CASES[name]


def test_tb_agg_of_no_rows_has_no_means() -> None:
    found = tb_agg([])
    assert found["per_test"] == [] and found["metrics"].keys() == CASES["equal_20"]["metrics"].keys()
    assert found["metrics"]["mean_pass"] is None and found["metrics"]["pass_power_k"] == []


@pytest.mark.parametrize("name", sorted(CASES))
def test_own_rows_written_as_tb_infer_rows_aggregate_to_the_same_counts(name: str) -> None:
    rows = [to_tb_infer_row(row) for row in read_rows([GOLDEN / f"{name}.jsonl"])]
    found, expected = tb_agg(rows), CASES[name]
    counts = [{key: test[key] for key in ("runs", "passed", "failed", "error")} for test in expected["per_test"]]
    by_uid = sorted(zip([test["uid"] for test in expected["per_test"]], counts, strict=True), key=lambda pair: pair[0])
    for (uid, numbers), test in zip(by_uid, found["per_test"], strict=True):
        assert test["uid"] == uid
        assert {key: test[key] for key in numbers} == numbers
    for key in ("total_runs", "mean_pass", "mean_pass_ci_low", "mean_pass_ci_high"):
        assert found["metrics"][key] == expected["metrics"][key]


@pytest.mark.parametrize(
    ("model", "passed", "once", "every", "cost", "expected"),
    [
        (
            "qwen3.8-27b-base",
            5242,
            453,
            38,
            925.80,
            {"pass_at_1": "51.70", "pass_at_20": "89.35", "observed_20_of_20": "7.50"}
            | {"cost_per_reliable_task_usd": "24.36", "cost_per_passed_attempt_usd": "0.177"},
        ),
        (
            "qwen3.8-27b-rlft",
            6163,
            446,
            107,
            855.58,
            {"pass_at_1": "60.78", "pass_at_20": "87.97", "observed_20_of_20": "21.10"}
            | {"cost_per_reliable_task_usd": "8.00", "cost_per_passed_attempt_usd": "0.139"},
        ),
    ],
)
def test_published_figures_follow_from_their_counts(
    model: str, passed: int, once: int, every: int, cost: float, expected: dict[str, str]
) -> None:
    found = published_from_counts(
        passed_attempts=passed,
        tasks_passed_at_least_once=once,
        tasks_passed_every_time=every,
        campaign_cost_usd=cost,
    )
    published = load_published()["models"][model]
    for key, text in expected.items():
        digits = len(text.partition(".")[2])
        assert f"{found[key]:.{digits}f}" == text
        assert f"{published[key]:.{digits}f}" == text


def test_a_cost_that_the_source_leaves_out_is_derived_or_absent() -> None:
    models = load_published()["models"]
    assert derived_cost_per_passed_attempt(models["gpt-5.4"]) == pytest.approx(6.80 * 128 / 6628, rel=1e-3)
    assert derived_cost_per_passed_attempt(models["gpt-5.6-sol"]) is None
