from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tbexp.reporting import write_report
from tbexp.reporting.publication import (
    EVERY,
    PER_RELIABLE,
    RATE,
    cost_figure,
    frontier,
    published_entries,
    run_entry,
    table_of,
)
from tbexp.tasks import benchmark_uids


def policy(rate: float, tasks: int = 507, attempts: int = 20, reliable: int = 100, **more: object) -> dict[str, object]:
    return {
        "tasks": tasks,
        "attempts": attempts,
        "passed_attempts": round(rate * tasks * attempts),
        "pass_at_1": {"value": rate},
        "observed_all_k": {"value": reliable / tasks, "tasks": reliable},
        "passed_by_task": {uid: [0] for uid in benchmark_uids()},
        "cost": {
            "campaign_usd": 500.0,
            "per_passed_attempt_usd": 500.0 / (rate * tasks * attempts),
            "per_reliable_task_usd": 500.0 / reliable if reliable else "inf",
        },
        **more,
    }


def cell(name: str, entries: list, column) -> tuple[bool, bool, str, str]:
    table = table_of("t", "", entries, (column,))
    (found,) = [row[1] for row in table.rows if row[0].text == name]
    return found.bold, found.underlined, found.text, found.note


def test_the_leader_is_bold_the_second_underlined_and_a_tie_shares_its_place() -> None:
    entries = published_entries()
    assert cell("claude-opus-5.5", entries, RATE)[:3] == (True, False, "67.16")
    assert cell("claude-opus-5", entries, RATE) == (False, True, "66.50", "derived")
    assert [name for e in entries if cell(name := e.name, entries, EVERY)[0]] == ["claude-opus-5.5", "claude-opus-5"]
    assert cell("gpt-6-astra", entries, EVERY)[1]
    assert [name for e in entries if e.figures.get(PER_RELIABLE.key) and cell(name := e.name, entries, PER_RELIABLE)[0]
            ] == ["gpt-5.4"]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "comparable"),
    [
        ({}, True),
        ({"tasks": 48}, False),
        ({"attempts": 8}, False),
        ({"search": "embedded"}, False),
        ({"partial": True}, False),
        ({"passed_by_task": {"rental.py:test": [1]}}, False),
    ],
)
def test_only_a_run_of_the_published_protocol_competes_with_published_models(more: dict, comparable: bool) -> None:
    entries = [run_entry("mine", policy(0.9, **more)), *published_entries()]
    assert entries[0].comparable is comparable
    assert cell("mine", entries, RATE)[0] is comparable
    assert cell("claude-opus-5.5", entries, RATE)[0] is not comparable


def test_a_cost_without_a_reliable_task_is_infinite_and_never_leads() -> None:
    entries = [run_entry("a", policy(0.5, tasks=9, reliable=0)), run_entry("b", policy(0.4, tasks=9, reliable=0))]
    assert cell("a", entries, PER_RELIABLE)[:3] == (False, False, "∞")


def test_the_frontier_holds_what_nothing_else_beats() -> None:
    assert frontier([(3, 60), (1, 50), (2, 50), (2, 55), (4, 58), (1, 40)]) == [(1, 50), (2, 55), (3, 60)]


def test_the_report_has_the_tables_and_the_figure(tmp_path: Path, build_run: Callable[..., Path]) -> None:
    run = build_run(tmp_path / "run", ("evaluate",), held_out=6, n=4)
    html = write_report(run).read_text()
    assert "not of the published protocol" in html and (run / "report/figures/cost.png").stat().st_size > 10_000
    rows = list(csv.reader((run / "report/tables/publication_3.csv").open()))
    summary = json.loads((run / "evaluate/summary.json").read_text())["policies"]
    assert {tuple(row[:2]) for row in rows[-2:]} == {("base", "not comparable"), ("trained", "not comparable")}
    (trained,) = [row for row in rows if row[0].startswith("trained")]
    assert float(trained[2]) == pytest.approx(100 * summary["trained"]["pass_at_1"]["value"])
    opus = dict(zip(rows[0], rows[1], strict=True))
    assert (opus["observed k of k, derived"], opus["tasks passed every time"]) == ("true", "241")
    assert len(rows) == 1 + 2 + 9


def test_no_name_in_the_cost_figure_covers_another_and_no_point_is_cut() -> None:
    costs = {"campaign_usd": 5.0, "per_passed_attempt_usd": 0.0001, "per_reliable_task_usd": 1.0}
    entries = [run_entry(f"a policy of some name {n}", policy(0.5, tasks=9, cost=costs)) for n in range(4)]
    figure = cost_figure([*entries, *published_entries()])
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) >= 9 and not [1 for n, box in enumerate(boxes) for other in boxes[:n] if box.overlaps(other)]
    assert all(not line.get_clip_on() for line in axes.lines if line.get_marker() in ("o", "D"))


def test_costs_below_a_cent_can_be_told_apart() -> None:
    entries = [run_entry(name, policy(0.5, tasks=9, cost={"campaign_usd": 1.0, "per_reliable_task_usd": value}))
               for name, value in (("a", 0.0042), ("b", 0.00421), ("c", 24.36))]  # fmt: skip
    assert [cell(e.name, entries, PER_RELIABLE)[2] for e in entries] == ["0.00420", "0.00421", "24.36"]
