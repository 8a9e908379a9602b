from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib.collections import LineCollection

from tbexp.reporting import write_report
from tbexp.reporting.figures import outcome_cells, repeats, with_others
from tbexp.reporting.forecast import section_of, thrown_away
from tbexp.reporting.page import Section, render
from tbexp.reporting.run_data import read_run
from tbexp.reporting.tables import Cell, Table, changes, group_tables, headline, percent, points

Build = Callable[..., Path]


class Page(HTMLParser):
    """Every address that the page would load or follow, its tags, and its text outside of styles."""

    def __init__(self, html: str):
        super().__init__()
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self._style = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._style = tag == "style"
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]

    def handle_data(self, data: str) -> None:
        self.text += " " * (data.strip() == "") if self._style else data


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory, build_run: Build) -> Path:
    run = build_run(tmp_path_factory.mktemp("report") / "run")
    write_report(run)
    return run


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def write_lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_report_is_one_file_that_loads_nothing(full: Path) -> None:
    html = (full / "report/report.html").read_text()
    page = Page(html)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    page.addresses.remove("tasks.html")  # a link to be followed
    assert all(address.startswith(("data:image/svg+xml;base64,", "#")) for address in page.addresses)
    assert page.tags.count("img") == 11
    assert "url(" not in html
    assert "@import" not in html


def test_every_figure_and_table_also_lies_beside_the_report(full: Path) -> None:
    names = {
        "before_after",
        "pass_at_k",
        "topics",
        "strips",
        "cost",
        "bands",
        "training",
        "forecast",
        "endings",
        "time_stages",
        "time_training",
    }
    assert {path.stem for path in (full / "report/figures").glob("*.svg")} == names
    assert {path.stem for path in (full / "report/figures").glob("*.png")} == names
    tables = {path.stem for path in (full / "report/tables").glob("*.csv")}
    assert tables == {
        "headline",
        "cost",
        "certainty",
        "claims",
        "verdicts",
        "topics",
        "tasks_gained_and_lost",
        "bands",
        "reasons",
        "system_errors",
        "time",
        "forecast",
        "thrown_away",
        "publication_1",
        "publication_2",
        "publication_3",
    }
    with (full / "report/tables/bands.csv").open(newline="") as stream:
        assert [row[0] for row in csv.reader(stream)][1:6] == ["rarely", "hard", "medium", "often", "nearly always"]


def test_the_report_says_what_the_held_out_tasks_share(full: Path) -> None:
    assert "share the candidates' rules" in Page((full / "report/report.html").read_text()).text


def test_a_complete_run_misses_nothing_and_names_the_chosen_checkpoint(full: Path) -> None:
    text = Page((full / "report/report.html").read_text()).text
    assert "Not in this run" not in text
    assert "The checkpoint of update 30 was chosen" in text
    assert "The probe had forecast" in text and "for the untrained policy" in text


def test_the_forecast_stands_beside_what_happened_and_thrown_away_attempts_beside_their_price(full: Path) -> None:
    with (full / "report/tables/forecast.csv").open() as file:
        first, last, whole = csv.DictReader(file)
    assert (first["updates"], last["updates"], whole["updates"]) == ("first 8", "last 8", "all updates")
    rows = rows_of(full / "train/metrics.jsonl")[1:]
    groups = sum(row["train/groups/generated"] for row in rows)
    assert whole["mixed groups %"] == f"{100 * 6 * 40 / groups:.1f}"
    assert whole["thrown away"] == f"{(groups - 6 * 40) * 8 / 40:.1f}"
    assert float(last["forecast at reward %"]) != float(first["forecast at reward %"])
    assert first["forecast, untrained %"] == last["forecast, untrained %"]
    with (full / "report/tables/thrown_away.csv").open() as file:
        (spent,) = csv.DictReader(file)
    seconds = sum(row["train/thrown_away/seconds"] for row in rows)
    assert spent["US$"] == f"{seconds / 3600 * 2 * 3:.4g}"
    assert spent["tokens produced"] == f"{(groups - 240) * 800:.0f}"


@pytest.mark.parametrize(
    ("prices", "usd"),
    [({}, "–"), ({"gpu_hour_usd": 0.0, "models": {"tiny": {"completion": 10.0, "prompt": 1.0}}}, None)],
)
def test_without_a_rate_tokens_are_priced_and_without_a_price_nothing_is(
    full: Path, prices: dict[str, Any], usd: str | None
) -> None:
    run = read_run(full)
    table = thrown_away(replace(run, config={**run.config, "prices": prices}))
    assert table is not None
    groups = sum(row["train/groups/generated"] for row in run.steps.values() if "train/groups/generated" in row)
    expected = usd or f"{(groups - 240) * 8 * (100 * 10 + 900 * 1) / 1e6:,.4g}"
    assert table.rows[0][-1].text == expected


def test_of_a_training_that_did_not_count_its_groups_there_is_no_comparison(full: Path, tmp_path: Path) -> None:
    run = read_run(full)
    old = {step: {"train/mixed_group_rate": 0.5, "train/reward_mean": 0.5} for step in run.steps}
    assert section_of(replace(run, steps=old), tmp_path) is None
    assert section_of(replace(run, tasks=[]), tmp_path) is None


@pytest.mark.parametrize(
    ("parts", "missing", "titles"),
    [
        ((), "probe, select, train, evaluate", ["How it was made"]),
        (
            ("probe",),
            "select, train, evaluate",
            ["The probe", "How attempts end", "Where the time went", "How it was made"],
        ),
        (("select",), "probe, train, evaluate", ["The pool", "Where the time went", "How it was made"]),
        (("train",), "probe, select, evaluate", ["Training", "Where the time went", "How it was made"]),
    ],
)
def test_the_report_shows_what_exists_and_names_what_does_not(
    tmp_path: Path, build_run: Build, parts: tuple[str, ...], missing: str, titles: list[str]
) -> None:
    html = write_report(build_run(tmp_path / "run", parts)).read_text()
    assert f"Not in this run: {missing}." in html
    assert [part.split("</h2>")[0] for part in html.split("<h2>")[1:]] == titles


def test_an_empty_folder_has_a_report_too(tmp_path: Path) -> None:
    assert "The run folder holds no results yet." in write_report(tmp_path).read_text()


def test_broken_files_are_named_and_the_rest_is_shown(tmp_path: Path, build_run: Build) -> None:
    run = build_run(tmp_path / "run", ("select",))
    with (run / "select/tasks.jsonl").open("a") as stream:
        stream.write('not json\n{"uid": "torn')
    (run / "config.yaml").write_text("a: [")
    (run / "evaluate").mkdir()
    (run / "evaluate/summary.json").write_text("{")
    text = Page(write_report(run).read_text()).text
    assert "select/tasks.jsonl: 1 line left out, no JSON" in text
    assert "config.yaml can't be read" in text
    assert "evaluate/summary.json can't be read" in text
    assert "64 tasks with 512 probe attempts" in text


def test_the_same_run_gives_the_same_report(tmp_path: Path, build_run: Build) -> None:
    run = build_run(tmp_path / "run", ("select",))
    assert write_report(run).read_bytes() == write_report(run).read_bytes()


def test_text_from_models_and_tasks_is_shown_and_never_interpreted(tmp_path: Path) -> None:
    hostile = "<script>alert('x')</script> $x^{2 \\frac"
    base = [
        {"uid": hostile, "attempt": n, "passed": n > 0, "finish_reason": hostile, "domain": hostile} for n in (0, 1)
    ]
    error = {"kind": hostile, "message": hostile}
    trained = [{"uid": hostile, "attempt": n, "passed": True, "finish_reason": "stop", "domain": "x"} for n in (0, 1)]
    trained.append({"uid": hostile, "attempt": 1, "passed": None, "system_error": error})
    write_lines(tmp_path / "evaluate/base/attempts.jsonl", base)
    write_lines(tmp_path / "evaluate/trained/attempts.jsonl", trained)
    (tmp_path / "manifest.json").write_text(json.dumps({"notes": [hostile]}))
    (tmp_path / "config.yaml").write_text(json.dumps({"name": hostile}))
    page = Page(write_report(tmp_path).read_text())
    assert "script" not in page.tags
    assert page.text.count("<script>alert('x')</script>") >= 5
    assert "evaluate (attempts are there, its summary is not)" in page.text


def summary(before: tuple[float, float, float], after: tuple[float, float, float], n: int = 4) -> dict[str, Any]:
    def policy(values: tuple[float, float, float]) -> dict[str, Any]:
        keys = ("pass_at_1", "observed_all_k")
        figures: dict[str, Any] = {key: {"value": v} for key, v in zip(keys, (values[0], values[2]), strict=True)}
        return figures | {
            "pass_at_k": {str(n): {"value": values[1]}},
            "tasks": 8,
            "attempts": n,
            "coverage": {"share": 1.0},
        }

    change = {"value": after[0] - before[0], "low": -0.2, "high": 0.05}
    return {"policies": {"base": policy(before), "trained": policy(after)}, "difference": {"pass_at_1": change}}


def test_a_fall_is_told_as_plainly_as_a_rise(tmp_path: Path) -> None:
    (tmp_path / "evaluate").mkdir()
    (tmp_path / "evaluate/summary.json").write_text(json.dumps(summary((0.5, 0.9, 0.1), (0.44, 0.8, 0.2))))
    text = " ".join(Page(write_report(tmp_path).read_text()).text.split())
    assert "pass@1 falls from 50.0% to 44.0% (-6.0 points" in text
    assert "which includes 0" in text
    assert "pass@4 falls from 90.0% to 80.0% (-10.0 points): fewer tasks are solved at least once" in text
    assert "The share of tasks that pass 4 of 4 rises from 10.0% to 20.0% (+10.0 points)." in text


def test_a_partial_evaluation_is_called_partial(tmp_path: Path) -> None:
    (tmp_path / "evaluate").mkdir()
    partial = summary((0.5, 0.9, 0.1), (0.44, 0.8, 0.2))
    partial["policies"]["trained"]["coverage"]["share"] = 0.75
    (tmp_path / "evaluate/summary.json").write_text(json.dumps(partial))
    assert "Partial: trained has a verdict for 75.0% of its attempts only." in write_report(tmp_path).read_text()


PARTIAL_TABLES = ("headline", "certainty", "claims", "verdicts")


def test_a_partial_evaluation_is_marked_with_its_coverage_wherever_its_figures_stand(
    tmp_path: Path, build_run: Build
) -> None:
    run = build_run(tmp_path / "run", ("evaluate",), held_out=12, n=4, missing=3)
    html = write_report(run).read_text()
    covered = "45 of 48 attempts (93.8%), 9 of 12 tasks have all 4"
    assert f"Partial: trained has a verdict for 93.8% of its attempts only. Covered: {covered}." in html
    assert html.count(f"<small>partial: {covered}</small>") == 5  # the headline, its three tables beside it, certainty
    for name in PARTIAL_TABLES:
        lines = list(csv.DictReader((run / f"report/tables/{name}.csv").open()))
        whole, part = (next(line for line in lines if line["policy"] == who) for who in ("base", "trained"))
        assert (float(whole["policy, coverage"]), whole["policy, partial"]) == (100.0, "")
        assert (float(part["policy, coverage"]), part["policy, partial"]) == (93.75, "true")
        assert part["policy, complete tasks"] == "9"
    last = list(csv.DictReader((run / "report/tables/headline.csv").open()))[-1]
    assert (last["policy"], last["policy, partial"]) == ("trained − base", "true")
    assert "pass@1 trained (partial)" in (run / "report/tables/topics.csv").read_text().splitlines()[0]
    for line in csv.DictReader((run / "report/tables/publication_1.csv").open()):
        assert ("partial: " + covered in line["model, note"]) == (line["model"] == "trained")
    for name in ("before_after", "pass_at_k", "topics", "strips", "cost", "endings"):
        drawn = (run / f"report/figures/{name}.svg").read_text()
        assert drawn.count("partial)") >= 1, name
    assert "4 of 4" in html
    found = json.loads((run / "evaluate/summary.json").read_text())
    each = [found["policies"][name]["pass_at_k"]["4"]["value"] for name in ("base", "trained")]
    paired = found["difference"]["pass_at_k"]["4"]["value"]  # of the tasks that have all attempts on both sides
    if points(each[1] - each[0]) != points(paired):
        assert f"({points(each[1] - each[0])} points; paired {points(paired)}, 95% interval" in html


def test_a_complete_evaluation_is_nowhere_called_partial(full: Path) -> None:
    assert "artial" not in Page((full / "report/report.html").read_text()).text
    for file in [*(full / "report/tables").iterdir(), *(full / "report/figures").glob("*.svg")]:
        assert "artial" not in file.read_text(), file.name


def test_where_no_task_has_all_attempts_none_is_said_to_pass_every_time(tmp_path: Path, build_run: Build) -> None:
    run = build_run(tmp_path / "run", ("evaluate",), held_out=6, n=4, missing=6)
    for policy in ("base", "trained"):  # nor is there a row that would tell how many were wanted
        file = run / f"evaluate/{policy}/attempts.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        write_lines(file, [row for row in rows if row["attempt"] < 3])
    text = " ".join(Page(write_report(run).read_text()).text.split())
    assert "Tasks that pass 4 of 4: 0 gained, 0 lost" in text and "3 of 3" not in text


def test_figures_made_with_the_embedded_search_are_marked(tmp_path: Path) -> None:
    policy = {"base": {"tasks": 1, "attempts": 1, "pass_at_1": {"value": 1.0}, "search": "embedded"}}
    (tmp_path / "evaluate").mkdir()
    (tmp_path / "evaluate" / "summary.json").write_text(json.dumps({"policies": policy}))
    assert "Search: embedded." in write_report(tmp_path).read_text()
    policy["base"]["search"] = "external"
    (tmp_path / "evaluate" / "summary.json").write_text(json.dumps({"policies": policy}))
    assert "Search: embedded." not in write_report(tmp_path).read_text()


def test_the_leader_of_each_column_is_bold_and_nobody_else(tmp_path: Path) -> None:
    (tmp_path / "evaluate").mkdir()
    (tmp_path / "evaluate/summary.json").write_text(json.dumps(summary((0.5, 0.9, 0.1), (0.6, 0.8, 0.1))))
    table = headline(read_run(tmp_path))
    assert isinstance(table, Table)
    bold = [[cell.bold for cell in row[3:6]] for row in table.rows]
    assert bold == [[False, True, True], [True, False, True], [False, False, False]]


def test_each_interval_says_which_question_it_answers_and_the_pairs_are_tested(full: Path) -> None:
    found = json.loads((full / "evaluate/summary.json").read_text())
    text = " ".join(Page((full / "report/report.html").read_text()).text.split())
    lines = list(csv.DictReader((full / "report/tables/certainty.csv").open()))
    table = {(row["policy"], row["figure"]): row for row in lines}
    claims = {row["policy"]: row for row in csv.DictReader((full / "report/tables/claims.csv").open())}
    for name, policy in found["policies"].items():
        for figure, row in (
            (policy["pass_at_1"], table[name, "pass@1"]),
            (policy["observed_all_k"], table[name, "20 of 20"]),
        ):
            for part, key in (("other tasks of the same kind", ""), ("the same tasks again", "fixed_")):
                sides = [100 * figure[f"{key}{side}"] for side in ("low", "high")]
                assert [float(row[f"with {part}, {side}"]) for side in ("low", "high")] == pytest.approx(sides)
                assert f"{sides[0]:.1f} to {sides[1]:.1f}" in text
        assert f"{100 * policy['observed_all_k']['task_rate_lower_bound']:.1f}" in text
        for column, key in (("of all attempts, %", "share"), ("of the claims, %", "share_of_claims")):
            wanted = [100 * policy["claimed_success"][f"{key}{side}"] for side in ("", "_low", "_high")]
            row = claims[name]
            assert [float(row[f"{column}{side}"]) for side in ("", ", low", ", high")] == pytest.approx(wanted)
            assert f"{wanted[1]:.1f} to {wanted[2]:.1f}" in text
        assert f"{100 * policy['retried']['pass_rate']:.1f}{policy['retried']['attempts']} attempts" in text
    gained, lost = (len(found["difference"][name]) for name in ("gained", "lost"))
    p = found["difference"]["mcnemar"]["p"]
    assert (
        f"{gained} gained by trained, {lost} lost against base (exact McNemar test on the same tasks: p = {p:.3f})"
        in text
    )


def test_an_infinite_cost_is_shown_and_a_difference_without_a_change_has_no_interval(tmp_path: Path) -> None:
    (tmp_path / "evaluate").mkdir()
    made = summary((0.5, 0.9, 0.1), (0.5, 0.9, 0.1))
    made["difference"]["pass_at_1"] = {"value": 0.0, "low": 0.0, "high": 0.0}
    for policy in made["policies"].values():
        policy["cost"] = {"campaign_usd": 0.5, "per_passed_attempt_usd": 0.031, "per_reliable_task_usd": "inf"}
    (tmp_path / "evaluate/summary.json").write_text(json.dumps(made))
    html = write_report(tmp_path).read_text()
    assert "no task changed" in html and "+0.0" not in html
    rows = list(csv.DictReader((tmp_path / "report/tables/headline.csv").open()))
    assert [row["US$ per reliable task"] for row in rows] == ["inf", "inf", ""] and html.count(">∞<") >= 2


def test_csv_holds_numbers_with_intervals_in_columns_of_their_own(full: Path) -> None:
    rows = list(csv.DictReader((full / "report/tables/headline.csv").open()))
    figures = json.loads((full / "evaluate/summary.json").read_text())["policies"]["trained"]["pass_at_1"]
    for name, key in (("pass@1", "value"), ("pass@1, low", "low"), ("pass@1, high", "high")):
        assert float(rows[1][name]) == pytest.approx(100 * figures[key])
    for row in rows:
        assert all(value == "" or float(value) is not None for name, value in row.items() if name != "policy")
    published = {row["model"]: row for row in csv.DictReader((full / "report/tables/publication_1.csv").open())}
    assert published["qwen3.8-27b-base"]["passed attempts"] == "5242"


def test_rows_made_elsewhere_are_shown_attempt_by_attempt(tmp_path: Path) -> None:
    made = [
        {"uid": f"t{n}", "finish_reason": "done", "test_result": {"result": k < n}} for n in range(3) for k in range(2)
    ]
    write_lines(tmp_path / "rows.jsonl", made)
    config = {"evaluation": {"attempts": 2, "rows": [str(tmp_path / "rows.jsonl")]}}
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text(json.dumps(config))
    html = write_report(tmp_path / "run").read_text()
    assert "Every task" in html and "How attempts end" in html
    assert {"strips.png", "endings.png"} <= {file.name for file in (tmp_path / "run/report/figures").iterdir()}
    (tmp_path / "rows.jsonl").unlink()
    assert "evaluation.rows can&#39;t be read again" in write_report(tmp_path / "run").read_text()


def test_of_many_kinds_of_endings_the_rarest_are_one_with_their_number() -> None:
    rows = {"base": {f"r{n:02}": 100 - n for n in range(60)}, "trained": {"r59": 1000, "r00": 1}}
    found, names = with_others(rows)
    assert names[:2] == ["r59", "r00"] and names[-1] == "other (53 kinds)" and len(names) == 8
    for policy, counts in rows.items():
        assert sum(found[policy].values()) == sum(counts.values())
    assert found["trained"]["other (53 kinds)"] == 0
    few = {"base": {f"r{n}": 1 for n in range(8)}}
    assert with_others(few) == (few, list(few["base"]))


def test_system_errors_are_told_in_tries_and_in_attempts(full: Path) -> None:
    table = {row["kind"]: row for row in csv.DictReader((full / "report/tables/system_errors.csv").open())}
    rows = [json.loads(line) for line in (full / "evaluate/base/attempts.jsonl").open()]
    assert table["all tries"]["base"] == str(len(rows))
    assert table["attempts left without a verdict"]["base"] == "0" != table["tool_timeout"]["base"]
    assert "in tries: an attempt may have been tried several times" in (full / "report/report.html").read_text()


def test_controls_of_direction_are_shown_and_do_nothing(tmp_path: Path) -> None:
    turned = "pass\u202e\u2066 liaf"
    row = {"uid": turned, "attempt": 0, "passed": False, "finish_reason": turned, "domain": turned}
    write_lines(tmp_path / "evaluate/base/attempts.jsonl", [row])
    report = write_report(tmp_path).parent
    pages = [report / "report.html", report / "tasks.html", *(report / "tasks").iterdir()]
    text = "".join(page.read_text() for page in pages)
    assert "pass[U+202E][U+2066] liaf" in text and "\u202e" not in text and "\u2066" not in text


@pytest.mark.parametrize(
    "row",
    [
        {"step": 3, "train/reward_mean": 0.5},
        {"step": 3, "data": {"train/reward_mean": 0.5}},
        {"step": 3, "metrics": {"train/reward_mean": 0.5}},
        {"step": 3, "name": "train/reward_mean", "value": 0.5},
    ],
)
def test_training_metrics_are_read_in_every_form_that_is_written(tmp_path: Path, row: dict[str, Any]) -> None:
    write_lines(tmp_path / "train/metrics.jsonl", [row])
    assert read_run(tmp_path).steps == {3: {"train/reward_mean": 0.5}}


def test_what_a_longer_run_left_in_the_shared_store_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{training: {steps: 2}, probe: {attempts: 1}}")
    write_lines(tmp_path / "train/metrics.jsonl", [{"step": n, "train/reward_mean": 0.5} for n in (1, 2, 3)])
    write_lines(tmp_path / "probe/attempts.jsonl", [{"uid": "a", "attempt": n, "passed": True} for n in (0, 1)])
    run = read_run(tmp_path)
    assert list(run.steps) == [1, 2]
    assert run.probe is not None
    assert run.probe.total == 1


def test_policies_are_told_apart_by_folder_or_by_field(tmp_path: Path) -> None:
    row = {"uid": "a", "attempt": 0, "passed": True, "domain": "d"}
    write_lines(tmp_path / "one/evaluate/attempts.jsonl", [row | {"policy": "trained"}, row | {"policy": "base"}])
    write_lines(tmp_path / "two/evaluate/base/attempts.jsonl", [row])
    write_lines(tmp_path / "two/evaluate/trained/attempts.jsonl", [row])
    assert list(read_run(tmp_path / "one").policies) == list(read_run(tmp_path / "two").policies) == ["base", "trained"]


def test_a_retried_attempt_counts_once_and_its_system_error_is_still_told(tmp_path: Path) -> None:
    error = {"kind": "tool_timeout", "message": "m"}
    rows: list[dict[str, Any]] = [
        {"uid": "a", "attempt": 0, "passed": None, "system_error": error},
        {"uid": "a", "attempt": 0, "passed": True, "system_error": None, "finish_reason": "stop"},
        {"uid": "a", "attempt": 1, "passed": False, "system_error": None, "finish_reason": "stop"},
        {"uid": "a", "attempt": 2, "passed": None, "system_error": error},
    ]
    write_lines(tmp_path / "probe/attempts.jsonl", rows)
    probe = read_run(tmp_path).probe
    assert probe is not None
    assert (probe.passed("a"), probe.clean("a"), probe.total, probe.errors["tool_timeout"]) == (1, 2, 3, 2)
    assert outcome_cells(probe, "a", 4) == [2, 1, 0, 0]


def test_gained_and_lost_tasks_are_those_with_all_attempts_on_both_sides(tmp_path: Path) -> None:
    def rows(passes: dict[str, int], n: int = 3) -> list[dict[str, Any]]:
        return [{"uid": u, "attempt": i, "passed": i < k} for u, k in passes.items() for i in range(n)]

    write_lines(tmp_path / "evaluate/base/attempts.jsonl", rows({"up": 1, "down": 3, "same": 3, "new": 0, "gone": 2}))
    after = rows({"up": 3, "down": 2, "same": 3, "new": 1, "gone": 0, "extra": 3})
    write_lines(tmp_path / "evaluate/trained/attempts.jsonl", after)
    run = read_run(tmp_path)
    found = changes(run.policies["base"], run.policies["trained"])
    assert (found.gained, found.lost, found.reached, found.dropped) == (("up",), ("down",), ("new",), ("gone",))
    assert (found.size, found.compared) == (3, 5)


def test_a_zero_has_no_sign() -> None:
    assert [points(v) for v in (0.0, -0.0001, 0.0001, 0.012, -0.5, None)] == ["0.0", "0.0", "0.0", "+1.2", "-50.0", "–"]


def test_importing_the_room_imports_no_matplotlib() -> None:
    code = "import sys, tbexp.reporting; assert not {'matplotlib', 'jinja2', 'yaml'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_intervals_of_one_method_are_a_band_and_those_of_counts_are_bars() -> None:
    def curve(*counts: int) -> list[tuple[int, dict[str, Any]]]:
        figure = {"value": 0.5, "low": 0.4, "high": 0.6}
        return [(k, figure | ({"interval": "count"} if k in counts else {})) for k in range(1, 6)]

    figure = repeats({"base": (curve(5), curve(4, 5)), "trained": (curve(), [])}, {})
    bands, bars = [], []
    for drawn in figure.axes[0].collections:
        if isinstance(drawn, LineCollection):
            bars.append([float(line[0][0]) for line in drawn.get_segments()])
        else:
            x = drawn.get_paths()[0].vertices[:, 0]
            bands.append((float(x.min()), float(x.max())))
    assert sorted(bands) == [(1.0, 3.0), (1.0, 4.0), (1.0, 5.0)] and sorted(bars) == [[4.0, 5.0], [5.0]]


def test_a_folded_table_of_one_row_has_no_plural() -> None:
    tables_ = [Table("t", "c", ("a",), ((Cell("x"),),) * n) for n in (1, 2)]
    html = render(name="n", run="r", sections=[Section("s", "S", folded=tables_)])
    assert "<summary>Table, 1 row</summary>" in html and "<summary>Table, 2 rows</summary>" in html


def test_scenarios_and_tags_have_tables_where_tasks_have_several(full: Path) -> None:
    run = read_run(full)
    part = next(iter(run.summary["policies"].values()))
    more = {**part, "by_scenario": {"one": part}, "by_tag": {"slow": part, "category:refunds": part}}
    (table,) = group_tables(replace(run, summary={"policies": {"base": more}}))
    assert (table.name, table.columns[0]) == ("tags", "tag")
    assert [row[0].text for row in table.rows] == ["category:refunds", "slow"]
    assert table.rows[0][1].text == percent(part["pass_at_1"]["value"])
