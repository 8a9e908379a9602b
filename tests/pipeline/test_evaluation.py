"""The evaluate stage on rows that were made elsewhere, of the sample domain's held-out tasks."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tbexp.app import main
from tbexp.evaluation import tb_agg
from tbexp.samples import data_root
from tbexp.tasks import load_tasks

HELD_OUT = yaml.safe_load((data_root() / "releases/held_out.yaml").read_text())
DOMAIN = {task.uid: task.domain for task in load_tasks(data_root(), "agent", HELD_OUT)}
Row = dict[str, Any]
Evaluate = Callable[..., tuple[int, str, Mapping[str, Any]]]


def rows_of(n: int, uids: list[str] = HELD_OUT, **more: Any) -> list[Row]:
    """n attempts each, of which two in three pass."""
    return [
        {"uid": uid, "attempt": a, "passed": (a + i) % 3 > 0, "reward": float((a + i) % 3 > 0), "system_error": None}
        | {"finish_reason": "done", **more}
        for i, uid in enumerate(uids)
        for a in range(n)
    ]


@pytest.fixture
def evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Evaluate:
    """Exit code, everything said, and summary.json of `stages=[evaluate]` on rows."""
    monkeypatch.chdir(tmp_path)

    def go(rows: list[Row], *more: str, attempts: int = 4) -> tuple[int, str, Mapping[str, Any]]:
        shutil.rmtree("run", ignore_errors=True)  # of a finished run nothing that decides its results may change
        Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        words = ["evaluation.rows=[rows.jsonl]", f"evaluation.attempts={attempts}", "evaluation.bootstrap=200"]
        stages = [] if any(word.startswith("stages=") for word in more) else ["stages=[evaluate]"]
        code = main([*stages, *words, "tracking=none", "hydra.run.dir=run", *more])
        said = capsys.readouterr()
        file = Path("run/evaluate/summary.json")
        return code, said.out + said.err, json.loads(file.read_text()) if file.exists() else {}

    return go


def test_partial_figures_are_told_as_such_also_where_a_domain_has_no_complete_task(evaluate: Evaluate) -> None:
    short = [row for row in rows_of(4) if DOMAIN[row["uid"]] != "swap" or row["attempt"] < 3]
    code, said, _ = evaluate(short)
    assert code == 3 and "coverage is incomplete" in said
    code, said, summary = evaluate(short, "evaluation.allow_partial=true", "stages=[evaluate,report]")
    assert code == 0, said
    assert "PARTIAL: 183 of 192 attempts (95.3%) have a verdict, 0 are system errors, 9 are missing" in said
    assert "39 of 48 tasks have all 4" in said
    rows = summary["policies"]["rows"]
    assert rows["partial"] is True and rows["by_domain"]["swap"]["observed_all_k"]["value"] is None
    assert "Partial: rows has a verdict for 95.3% of its attempts only." in Path("run/report/report.html").read_text()
    assert "claimed, not done" in said and "rows (partial) 33.3%" in said
    with Path("run/evaluate/groups.csv").open() as file:
        lines = {line["group"]: line for line in csv.DictReader(file)}
    assert (lines["swap"]["partial"], float(lines["swap"]["coverage"])) == ("true", 0.75)
    assert (lines["deposit"]["partial"], float(lines["deposit"]["coverage"])) == ("false", 1.0)
    assert (lines["rental_desk"]["partial"], float(lines["rental_desk"]["coverage"])) == ("true", 183 / 192)
    tags = [json.loads(line) for line in Path("run/tracking/tags.jsonl").read_text().splitlines()]
    assert tags == [
        {"name": "tbexp.partial", "value": "rows: 183 of 192 attempts (95.3%), 39 of 48 tasks have all 4"},
    ]
    metrics = {
        row["name"]: row["value"]
        for row in map(json.loads, Path("run/tracking/metrics.jsonl").read_text().splitlines())
    }
    assert (metrics["eval/partial"], metrics["eval/complete_tasks"]) == (1.0, 39)


def test_complete_figures_are_told_to_a_tracker_as_such_also_after_partial_ones(evaluate: Evaluate) -> None:
    partial = rows_of(4)[1:]
    assert evaluate(partial, "evaluation.allow_partial=true", "prices.models={tiny:{attempt:1.0}}")[0] == 0
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of(4)))
    assert main(["stages=[evaluate]", "evaluation.rows=[rows.jsonl]", "hydra.run.dir=run", "force=[evaluate]"]) == 0
    last = json.loads(Path("run/tracking/tags.jsonl").read_text().splitlines()[-1])
    assert last == {"name": "tbexp.partial", "value": "no"}


def test_more_attempts_asked_for_than_any_task_has_leave_the_figures_of_all_attempts_unknown(
    evaluate: Evaluate,
) -> None:
    code, said, summary = evaluate(rows_of(3), "evaluation.allow_partial=true")
    assert code == 0, said
    assert "pass@4 unknown, observed 4/4 unknown; PARTIAL: 144 of 192 attempts (75.0%)" in said
    assert summary["policies"]["rows"]["pass_at_1"]["value"] == pytest.approx(2 / 3)


def test_the_cost_of_a_user_without_a_price_is_not_claimed_and_the_warning_names_the_model_and_the_key(
    evaluate: Evaluate,
) -> None:
    rows = rows_of(4, prompt_tokens=1000, user_prompt_tokens=10)
    prices = "prices.models={tiny:{prompt:1.0}}"
    code, said, summary = evaluate(rows, prices)
    assert code == 0 and summary["policies"]["rows"]["cost"]["campaign_usd"] is None
    assert (
        said.count("for the user of the rows has no price") == 1
        and "at least US$ 0.19, which is without the user" in said
    )
    known = ["user=chat", "user.endpoint.base_url=http://localhost/v1", "user.endpoint.model=someone"]
    code, said, summary = evaluate(rows, "prices.models={tiny:{prompt:1.0},someone:{prompt:2.0}}", *known)
    assert code == 0 and "no price" not in said and "not invoices" in said
    assert summary["policies"]["rows"]["cost"]["campaign_usd"] == pytest.approx(192 * 1020 / 1e6)
    code, said, summary = evaluate(rows_of(4), "prices.models={tiny:{prompt:1.0},someone:{prompt:2.0}}", *known)
    assert summary["policies"]["rows"]["cost"]["campaign_usd"] is None
    assert "192 of 192 clean attempts do not tell all tokens of the policy, whose model is tiny" in said
    assert "no row holds tokens of the user, whose model is someone" in said
    code, said, summary = evaluate(rows[:96] + rows_of(4)[96:], "prices.models={tiny:{prompt:1.0}}")
    assert summary["policies"]["rows"]["cost"]["untold"] == {"policy": [96, 192]}
    assert "96 of 192 clean attempts do not tell all tokens of the policy" in said and "at least US$ 0.10" in said
    code, said, summary = evaluate(rows, "prices.models={tinny:{prompt:1.0}}")
    assert code == 0 and "prices.models names no model of this run (policy tiny); it has tinny" in said


@pytest.mark.parametrize("beyond", [{}, {"prompt_tokens": 5, "user_prompt_tokens": 7}])
def test_rows_beyond_the_attempts_asked_for_are_in_no_cost(evaluate: Evaluate, beyond: Row) -> None:
    more = [row | beyond for row in rows_of(6) if row["attempt"] >= 4]
    code, said, summary = evaluate([*rows_of(4, prompt_tokens=1000), *more], "prices.models={tiny:{prompt:1.0}}")
    cost = summary["policies"]["rows"]["cost"]
    assert code == 0 and "the cost is not told" not in said and "96 rows of attempts beyond" in said
    assert cost["campaign_usd"] == pytest.approx(192 * 1000 / 1e6) and not cost["unpriced"]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("prices.dated=lately", "'lately' is no date"),
        ("evaluation.bootstrap=99", "evaluation.bootstrap: 99"),
        ("prices.models={tiny: {}}", "holds no price"),
        ("prices.models={tiny: {reasoning: null}}", "holds no price"),
    ],
)
def test_a_price_table_needs_a_date_and_prices_and_intervals_need_samples(
    evaluate: Evaluate, word: str, says: str
) -> None:
    code, said, _ = evaluate(rows_of(4), word)
    assert code == 2 and says in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"attempt": 10**30}, "attempt: 1000"),
        ({"seconds": 10**400}, "seconds: 1000"),
        ({"reward": 10**400}, "reward: 1000"),
        ({"prompt_tokens": 10**400}, "prompt_tokens: 1000"),
        ({"search": ["embedded"]}, "search: ['embedded'] is no text"),
    ],
)
def test_a_row_that_cannot_be_is_the_users_to_mend(row: Row, told: str, evaluate: Evaluate) -> None:
    code, said, _ = evaluate([*rows_of(4)[1:], {**rows_of(4)[0], **row}])
    assert code == 2 and f"rows.jsonl:192: {told}" in said and "Traceback" not in said


def test_figures_stand_for_every_domain_scenario_and_tag(evaluate: Evaluate) -> None:
    code, said, summary = evaluate(rows_of(4))
    assert code == 0, said
    figures = summary["policies"]["rows"]
    assert figures["by_scenario"]["rental_desk"]["tasks"] == 48 and figures["by_tag"] == {}
    with Path("run/evaluate/groups.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["group"] for line in lines] == [*sorted(set(DOMAIN.values())), "rental_desk"]
    assert float(lines[-1]["pass_at_1"]) == figures["pass_at_1"]["value"]
    assert figures["claimed_success"]["failed"] == 192 - figures["passed_attempts"]
    assert "claimed, not done" in said


def test_the_references_own_aggregation_stands_beside_on_request(evaluate: Evaluate) -> None:
    rows = [
        {"uid": row["uid"], "test_result": {"result": row["passed"]}, "metadata": {"repetition": row["attempt"]}}
        for row in rows_of(6)  # all rows count there, also those beyond evaluation.attempts
    ]
    code, said, summary = evaluate(rows, "evaluation.tb_agg=true")
    assert code == 0, said
    assert "96 rows of attempts beyond evaluation.attempts=4 are left out" in said
    assert summary["policies"]["rows"]["tb_agg"] == tb_agg(rows)["metrics"]
    assert "48 tests, 288 runs: mean 66.67%" in said
    assert json.loads(Path("run/evaluate/tb_agg-rows.json").read_text()) == tb_agg(rows)
    assert Path("run/evaluate/tb_agg-rows.csv").read_text().count("\n") == 49


def test_rows_that_cannot_be_true_are_all_told_in_one_message_with_file_and_line(evaluate: Evaluate) -> None:
    rows = rows_of(4)
    wrong: list[tuple[Row, str]] = [
        ({"prompt_tokens": -5}, "prompt_tokens: -5 is no whole number from 0 on"),
        ({"completion_tokens": 1.5}, "completion_tokens: 1.5 is no whole number"),
        ({"cached_tokens": 9, "prompt_tokens": 8}, "cached_tokens: 9 are more than prompt_tokens, 8"),
        ({"attempt": -1}, "attempt: -1 is no number of an attempt"),
        ({"attempt": "7"}, "attempt: '7' is no number of an attempt"),
        ({"reward": float("nan")}, "reward: nan is no number"),
        ({"reward": "much"}, "reward: 'much' is no number"),
        ({"metadata": {"execution_time": "long"}}, "metadata.execution_time: 'long' is no number"),
        (
            {"usage": [{"input_tokens": 1, "input_tokens_details": {"cached_tokens": 2}}]},
            "usage.0.input_tokens_details",
        ),
        ({"usage": 5}, "usage: 5 is no list"),
    ]
    for row, (change, _) in zip(rows, wrong, strict=False):
        row.update(change)
    code, said, _ = evaluate(rows)
    assert code == 2 and "10 problems" in said and "Traceback" not in said
    for number, (_, text) in enumerate(wrong, 1):
        assert f"rows.jsonl:{number}: {text}" in said


def test_an_attempt_that_was_made_good_after_a_system_error_counts_as_retried(evaluate: Evaluate) -> None:
    rows = rows_of(4)
    fault = {"passed": None, "reward": 0.0, "system_error": {"kind": "tool_timeout", "message": ""}}
    code, said, summary = evaluate([rows[0] | fault, *rows])
    assert code == 0, said
    found = summary["policies"]["rows"]
    assert (found["first_try"]["attempts"], found["retried"]["attempts"]) == (191, 1)


def test_of_an_evaluation_that_does_not_end_no_earlier_figures_are_left(
    evaluate: Evaluate, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, summary = evaluate(rows_of(4), "stages=[evaluate,report]", "evaluation.tb_agg=true")
    assert code == 0 and summary["policies"]["rows"]["observed_all_k"]["value"] is not None
    more = ["evaluation.rows=[rows.jsonl]", "evaluation.attempts=6", "tracking=none", "hydra.run.dir=run"]
    assert main(["stages=[evaluate]", *more]) == 3
    assert not [path.name for path in Path("run/evaluate").iterdir() if path.is_file()]
    assert main(["stages=[report]", *more]) == 0
    report = Path("run/report/report.html").read_text()
    assert "evaluate (attempts are there, its summary is not)" in report and "4 of 4" not in report
    assert not Path("run/report/tables/headline.csv").exists()
