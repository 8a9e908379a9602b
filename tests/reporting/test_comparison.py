"""Runs side by side: what is compared, what is warned of, and the page."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tbexp.evaluation import TaskCounts
from tbexp.pipeline.comparing import say
from tbexp.pipeline.progress import Progress
from tbexp.reporting import comparison_figures
from tbexp.reporting.comparison import write_comparison
from tbexp.reporting.side_by_side import (
    Comparison,
    Source,
    compare_runs,
    forecast_and_outcome,
    published_figures,
    read_source,
)

HOSTILE = "<script>alert('x')</script> $x^{2"
Build = Callable[..., Path]
Read = tuple[Source, Any, dict[str, TaskCounts]]


class Page(HTMLParser):
    def __init__(self, html: str):
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, build_run: Build) -> list[Path]:
    """Two whole runs that differ in one setting, in a few of their outcomes and in their pools."""
    first = build_run(tmp_path_factory.mktemp("compare") / "first", held_out=12, n=6)
    second = first.with_name(HOSTILE.replace("/", "_"))
    shutil.copytree(first, second)
    config = yaml.safe_load((second / "config.yaml").read_text())
    config["optimizer"]["lr"] = 0.001
    (second / "config.yaml").write_text(yaml.safe_dump(config))
    rows = [json.loads(line) for line in (second / "select/tasks.jsonl").open()]
    kept = [row for row in rows if row["kept"]]
    kept[0]["kept"] = kept[1]["kept"] = False
    (second / "select/tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = json.loads((second / "evaluate/summary.json").read_text())
    passed = summary["policies"]["trained"]["passed_by_task"]
    for uid in list(passed)[:3]:
        passed[uid] = [6 - passed[uid][0]]
    (second / "evaluate/summary.json").write_text(json.dumps(summary))
    return [first, second]


def read(folder: Path, name: str | None = None, status: str = "") -> Read:
    return read_source(Source(str(folder), name or folder.name, str(folder), status), folder)


def compared(runs: list[Read], published: tuple[str, ...] = (), **more: Any) -> Comparison:
    settings: dict[str, Any] = {"baseline": None, "every_pair": False, "policy": None, "samples": 100, "seed": 7}
    named = [(Source(f"published:{name}", name, "published"), name) for name in published]
    return compare_runs(runs, named, **(settings | more))


@pytest.fixture(scope="module")
def written(folders: list[Path]) -> tuple[Comparison, Path]:
    found = compared([read(folder) for folder in folders], ("qwen3.8-27b-rlft", "gpt-5.6-sol"))
    return found, write_comparison(found, folders[0].parent / "result", title="laptop: runs compared")


def test_the_page_is_one_file_that_loads_nothing_and_interprets_no_text(written: tuple[Comparison, Path]) -> None:
    html = written[1].read_text()
    page = Page(html)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert all(address.startswith(("data:image/svg+xml;base64,", "#")) for address in page.addresses)
    assert "url(" not in html and "@import" not in html
    assert "<script>alert" in page.text  # the run's name, as text


def test_figures_and_tables_lie_beside_the_page(written: tuple[Comparison, Path]) -> None:
    folder = written[1].parent
    figures = {"results", "tests", "tasks", "overlap", "bands", "forecast", "curves", "cost"}
    assert {path.stem for path in (folder / "figures").glob("*.svg")} == figures
    assert {path.stem for path in (folder / "figures").glob("*.png")} == figures
    tables = {"runs", "results", "tests", "tasks", "pools", "pool_overlap", "training", "settings"}
    tables |= {"publication_1", "publication_2", "publication_3"}
    assert {path.stem for path in (folder / "tables").glob("*.csv")} == tables
    assert not (folder / ".new").exists()
    assert json.loads((folder / "comparison.json").read_text())["baseline"] == "A"


def test_the_pools_overlap_as_their_lists_do(written: tuple[Comparison, Path]) -> None:
    found, page = written
    first, second = (side.pool for side in found.runs)
    assert len(first - second) == 2 and not second - first
    with (page.parent / "tables/pool_overlap.csv").open(newline="") as stream:
        row = list(csv.reader(stream))[1]
    assert row[1:5] == [str(len(second)), str(len(first)), "2", "0"]
    assert float(row[5]) == pytest.approx(len(second) / len(first), abs=1e-4)


def test_runs_are_labelled_by_the_setting_that_differs(written: tuple[Comparison, Path]) -> None:
    found, _ = written
    assert found.settings == (("optimizer.lr", ("0.0003", "0.001")),)
    assert [side.label for side in found.sides[:2]] == ["A  optimizer.lr=0.0003", "B  optimizer.lr=0.001"]


def test_long_names_are_short_where_they_stand_beside_figures_and_whole_when_pointed_at(
    folders: list[Path], tmp_path: Path
) -> None:
    name = "swap_the_whole_" * 12 + "end"
    runs = [read(folders[0], f"{letter}_{name}") for letter in "xy"]
    found = compared([(source, replace(run, config={}), tallies) for source, run, tallies in runs])
    assert all(len(side.label) <= 33 and side.full == f"{side.letter}  {side.source.name}" for side in found.sides)
    page = write_comparison(found, tmp_path / "result", title="names")
    assert f'<td class="long" title="A  x_{name}">A  x_swap' in page.read_text().replace("\n", "")
    rows = list(csv.DictReader((page.parent / "tables/results.csv").open()))
    assert {row["run"] for row in rows} == {side.full for side in found.sides}


def test_labels_of_a_figure_leave_room_for_what_stands_beside_them() -> None:
    label = "A  buckets.bands.rarely.upper=0.08, optimizer.lr=1e-06  k=20  (partial)"
    lines = comparison_figures.wrapped(label).split("\n")
    assert " ".join(lines).split() == label.split() and lines[0].startswith("A") and 1 < len(lines[0].split()) < 4
    dot = comparison_figures.Dot("trained", {"pass@1": {"value": 0.5, "low": 0.4, "high": 0.6}})
    pools = [frozenset("abc"), frozenset("bcd")]
    for figure in (
        comparison_figures.results([(label, [dot]), ("B" + label[1:], [dot])], ["pass@1"]),
        comparison_figures.overlap([label, label], ["A", "B"], pools),
        comparison_figures.bands([(label, {"hard": 3}, frozenset({"hard"}))] * 2),
        comparison_figures.forecasts([(label, 0.5, None, None)] * 2),
        comparison_figures.curves([comparison_figures.Step(label, {"m": [(1, 0.5)]}, None)] * 3, [("m", "M", "m")]),
    ):
        figure.canvas.draw()
        renderer = figure.canvas.get_renderer()
        axes = figure.axes[0]
        legends = [text for legend in figure.legends for text in legend.get_texts()]
        beside, under = (
            [text.get_window_extent(renderer) for text in texts] for texts in (axes.get_yticklabels(), legends)
        )
        assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in [*beside, *under])
        assert axes.get_window_extent(renderer).width > 0.3 * figure.bbox.width
        assert all(one[1] <= other[0] for one, other in pairwise(sorted((box.y0, box.y1) for box in beside)))


def test_published_figures_are_marked_and_take_no_part_in_tests(written: tuple[Comparison, Path]) -> None:
    found, page = written
    assert [(test.first, test.second) for test in found.tests] == [(0, 1)]
    (warning,) = [text for text in found.warnings if "published" in text]
    assert warning.startswith("C, D: published figures") and "A, B attempted other tasks" in warning
    text = " ".join(Page(page.read_text()).text.split())
    assert "82 tasks, derived from the count" in text
    assert "not invoices" in text


def test_published_shares_are_the_published_ones() -> None:
    found = published_figures("qwen3.8-27b-rlft")
    assert found["pass_at_1"]["value"] == pytest.approx(0.6078)
    assert found["observed_all_k"] == {"value": pytest.approx(0.211), "tasks": 107, "derived": False}
    assert published_figures("gpt-5.6-sol")["observed_all_k"]["derived"] is True
    assert "pass_at_k" not in published_figures("gpt-5.6-sol")


def test_the_paired_test_is_of_the_trained_policies_task_by_task(folders: list[Path]) -> None:
    found = compared([read(folder) for folder in folders])
    (test,) = found.tests
    counts = [side.counts.counts for side in found.runs if side.counts]
    assert len(test.found.shared) == 12 and test.found.attempts == (6, 6)
    expected = sum(counts[1][uid][1] - counts[0][uid][1] for uid in counts[0]) / (12 * 6)
    assert test.found.pass_at_1 is not None and test.found.pass_at_1.value == pytest.approx(expected)
    assert compared([read(f) for f in folders], policy="base").tests[0].found.same_counts


def other(run: Read, **changes: Any) -> Read:
    """The run with its trained policy's counts changed."""
    source, data, tallies = run
    return source, data, {**tallies, "trained": replace(tallies["trained"], **changes)}


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("attempts", ["Attempts per task differ: 6 attempts (A), 12 attempts (B)"]),
        ("tasks", ["Evaluated task sets differ: 12 tasks (A), 11 tasks (B)"]),
        ("protocol", ["Not only policies differ: policy.sampling.temperature"]),
        ("status", ["B ended as FAILED"]),
        ("policy", ["A has no evaluated policy rows", "B has no evaluated policy rows"]),
        ("candidates", ["Pools were chosen from different candidates: 64 candidates (A), 63 candidates (B)"]),
        ("content", ["Candidates have the same uids and another content"]),
        ("search", ["B: search embedded."]),
        ("nothing", []),
    ],
)
def test_what_must_not_be_compared_is_told(folders: list[Path], case: str, words: list[str]) -> None:
    first, second = read(folders[0]), read(folders[0], name="second", status="FAILED" if case == "status" else "")
    source, data, tallies = second
    if case == "attempts":
        summary = json.loads(json.dumps(data.summary))
        summary["policies"]["trained"]["attempts"] = 12
        second = other((source, replace(data, summary=summary), tallies), attempts=12)
    if case == "tasks":
        counts = dict(list(tallies["trained"].counts.items())[1:])
        second = other(second, counts=counts)
    if case == "protocol":
        first = (
            first[0],
            replace(first[1], config={**data.config, "policy": {"sampling": {"temperature": 1.0}}}),
            first[2],
        )
        second = source, replace(data, config={**data.config, "policy": {"sampling": {"temperature": 0.5}}}), tallies
    if case == "candidates":
        second = source, replace(data, tasks=data.tasks[1:]), tallies
    if case == "content":
        changed = {**data.selection, "inputs": {**data.selection["inputs"], "content_hashes": "f" * 64}}
        second = source, replace(data, selection=changed), tallies
    if case == "search":
        second = source, replace(data, config={**data.config, "sandbox": {"search": "embedded"}}), tallies
    found = compared([first, second], policy="rows" if case == "policy" else None)
    assert len(found.warnings) == len(words)
    for warning, word in zip(found.warnings, words, strict=True):
        assert word in warning
    if case == "attempts":
        assert found.tests[0].found.every is None and "not compared" in found.tests[0].remarks[0]
    if case == "tasks":
        assert "1 task of the first alone" in found.tests[0].remarks[0]


def test_a_partial_run_is_marked_with_its_coverage_in_every_table_and_figure(tmp_path: Path, build_run: Build) -> None:
    runs = [build_run(tmp_path / name, ("evaluate",), held_out=12, n=4, missing=k) for name, k in (("a", 0), ("b", 3))]
    for run, k in zip(runs, (0, 3), strict=True):  # as the pipeline writes it
        summary = json.loads((run / "evaluate/summary.json").read_text())["policies"]
        lines = [
            {"uid": uid, "policies": {name: {"clean": 4 - (n < k and name == "trained"), "passed": passed[0]}}}
            for name in ("trained",)
            for n, (uid, passed) in enumerate(summary[name]["passed_by_task"].items())
        ]
        (run / "evaluate/tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = compared([read(run) for run in runs])
    covered = "45 of 48 attempts (93.8%), 9 of 12 tasks have all 4"
    assert [warning for warning in found.warnings if "partial" in warning] == [
        f"B is partial: some attempts of its evaluation have no verdict (trained: {covered})."
    ]
    html = write_comparison(found, tmp_path / "result", title="t").read_text()
    assert f"<small>partial: {covered}</small>" in html and f"B is partial: {covered}" in html
    made = json.loads((tmp_path / "result/comparison.json").read_text())
    assert made["tests"][0]["partial"] is True
    assert made["runs"][1]["figures"]["trained"]["partial"] is True
    assert made["runs"][1]["figures"]["trained"]["coverage"]["share"] == 0.9375
    rows = {(r["run"][0], r["policy"]): r for r in csv.DictReader((tmp_path / "result/tables/results.csv").open())}
    assert (rows["B", "trained"]["policy, partial"], rows["B", "trained"]["policy, coverage"]) == ("true", "93.75")
    assert (rows["A", "trained"]["policy, partial"], rows["A", "trained"]["policy, coverage"]) == ("", "100")
    assert "B trained (partial)" in (tmp_path / "result/tables/tasks.csv").read_text().splitlines()[0]
    for name, marks in (("results", "(partial)"), ("tests", "(partial)"), ("tasks", "of 4 *")):
        assert marks in (tmp_path / f"result/figures/{name}.svg").read_text(), name
    stream = io.StringIO()
    with Progress(stream) as progress:
        say(found, tmp_path / "result/comparison.html", progress)
    said = " ".join(stream.getvalue().split())
    assert "B − A (partial)" in said and "B b (partial)" in said and covered in said


def test_of_many_runs_each_is_tested_against_the_baseline_or_each_pair(folders: list[Path]) -> None:
    runs = [read(folders[0], name=f"run{n}") for n in range(28)]
    found = compared(runs, baseline="run3")
    assert found.sides[found.baseline].letter == "D" and found.sides[27].letter == "AB"
    assert len(found.tests) == 27 and all(test.first == 3 for test in found.tests)
    assert len(compared(runs[:5], every_pair=True).tests) == 10


def test_counts_come_from_the_tally_that_a_run_logs(tmp_path: Path, folders: list[Path]) -> None:
    run = tmp_path / "run"
    shutil.copytree(folders[0], run)
    row = {"uid": "a.py:x", "domain": "d", "content": "c", "policies": {"trained": {"clean": 5, "passed": 2}}}
    (run / "evaluate/tasks.jsonl").write_text(json.dumps(row) + "\n")
    _, _, tallies = read(run)
    assert tallies["trained"] == TaskCounts(6, {"a.py:x": (5, 2)}, {"a.py:x": "c"}, {"a.py:x": "d"})
    assert len(tallies["base"].counts) == 12  # not in the tally, so from the complete summary


def test_the_forecast_stands_beside_what_happened(folders: list[Path]) -> None:
    _, data, _ = read(folders[0])
    steps = {1: {"train/groups/generated": 8.0, "train/groups/mixed": 6.0}, 2: {"train/mixed_group_rate": 0.5}}
    forecast, early, whole = forecast_and_outcome(replace(data, steps=steps))
    assert forecast == data.selection["summary"]["forecast"]["mixed_rate"]
    assert early == (6.0, 8.0) and whole == (9.0, 14.0)  # 6 groups per update in the config
    assert forecast_and_outcome(replace(data, steps={}))[1:] == (None, None)


def test_a_run_without_evaluation_or_training_is_shown_as_far_as_it_goes(tmp_path: Path, build_run: Build) -> None:
    found = compared([read(build_run(tmp_path / name, ("select",))) for name in ("one", "two")])
    page = Page(write_comparison(found, tmp_path / "result", title="t").read_text())
    assert not found.tests
    assert "Pools" in page.text and "Paired tests" not in page.text and "No recorded setting differs" in page.text
