"""The report's section of costs, of summaries as the evaluation makes them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tbexp.attempts import AttemptRow
from tbexp.config.schema import Evaluation, ModelPrice
from tbexp.evaluation import summarise
from tbexp.evaluation.cost import CAUTION, TOTAL_CAUTION, Spending
from tbexp.reporting import write_report
from tbexp.reporting.costs import section_of
from tbexp.reporting.run_data import read_run

ROWS = [
    AttemptRow("a:x", n, n < 2, float(n < 2), prompt_tokens=1_000_000, user_prompt_tokens=500_000, domain="a")
    for n in range(4)
]
PAID = Spending(policy=ModelPrice(prompt=2.0))
CONFIG: dict[str, Any] = {
    "prices": {"dated": "2025-01-31", "models": {"m": {"prompt": 2.0}, "told": {"prompt": 1.0}}},
    "user": {"endpoint": {"model": "u"}},
    "judge": {"endpoint": {"model": "told"}},
}
BOTH = {"probing": 3.0, "training": 10.0}


def folder(place: Path, rows: list[AttemptRow] = ROWS, **spending: Spending | None) -> Path:
    """A run folder with the figures of `rows` for each policy, priced so; None: it has no price."""
    (place / "evaluate").mkdir()
    (place / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    made = summarise(
        dict.fromkeys(spending, rows),
        attempts=4,
        tasks={"a:x": "a"},
        settings=Evaluation(name="t", bootstrap=100),
        spending={name: each for name, each in spending.items() if each is not None},
    )
    (place / "evaluate/summary.json").write_text(json.dumps(made))
    return place


@pytest.mark.parametrize(
    ("spending", "cells", "says"),
    [
        (PAID, {"campaign": "8", "per passed attempt": "4", "per reliable task": "inf"}, []),
        (
            Spending(policy=PAID.policy, user=ModelPrice(prompt=4.0)),
            {"policy": "base", "campaign": "16", "for the policy": "8", "for the user": "8", "per passed attempt": "8"},
            [],
        ),
        (
            Spending(policy=PAID.policy, unpriced=("user",)),
            {"campaign": None, "campaign, at least": "8", "per passed attempt": "", "per reliable task": ""},
            ["What base's attempts cost is not known in full: the user has no price (prices.models has no u)."],
        ),
        (
            Spending(policy=PAID.policy, unpriced=("policy", "judge"), untold={"policy": (1, 4)}),
            {"campaign, at least": "8"},
            ["1 of 4 clean attempts do not tell all tokens of the policy; no attempt tells the tokens of the judge."],
        ),
        (
            Spending(policy=PAID.policy, besides=BOTH),
            {"campaign": "8", "probing": "3", "training": "10", "with both": "21"},
            [TOTAL_CAUTION],
        ),
        (
            Spending(policy=PAID.policy, besides=BOTH, besides_unknown=("training: the user has no price",)),
            {"campaign": "8", "probing": "3", "with both": None, "with both, at least": "21"},
            ["What base cost in all is not known in full: training: the user has no price.", TOTAL_CAUTION],
        ),
        (Spending(gpu_hours=2.0, gpu_hour_usd=3.0), {"campaign": "6", "per passed attempt": "3"}, []),
    ],
)
def test_costs_stand_in_the_report_with_what_is_not_known_of_them(
    spending: Spending, cells: dict[str, str | None], says: list[str], tmp_path: Path
) -> None:
    page = write_report(folder(tmp_path, base=spending))
    (row,) = csv.DictReader((page.parent / "tables/cost.csv").open())
    assert {name: row.get(name) for name in cells} == cells
    assert ("with both" in row or "with both, at least" in row) == (spending.besides is not None)
    text = page.read_text()
    assert text.count(CAUTION) == 1 and "by prices of 2025-01-31" in text
    assert all(each.replace("'", "&#39;") in text for each in says)
    assert ("not known in full" in text) == bool(spending.unpriced or spending.besides_unknown)
    assert (TOTAL_CAUTION in text) == (spending.besides is not None)


def test_a_policy_without_a_price_is_named_beside_one_that_has_one(tmp_path: Path) -> None:
    section = section_of(read_run(folder(tmp_path, base=None, trained=PAID)), tmp_path)
    assert section is not None and section.text[0] == "Without a price of its own, so without a cost: base."
    assert [row[0].text for row in section.tables[0].rows] == ["trained"]


def test_without_any_price_there_is_no_section_of_costs(tmp_path: Path) -> None:
    assert section_of(read_run(folder(tmp_path, base=None)), tmp_path) is None
