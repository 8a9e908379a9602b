"""The report's section of costs: what evaluating each policy cost, and what a trained one had cost before.

Decided here: how a cost that is not wholly known is told. What is known and what is not is decided where it is made
(evaluation, and the prices of the pipeline).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tbexp.reporting.page import Section
from tbexp.reporting.run_data import Json, RunData, _at
from tbexp.reporting.tables import DASH, Cell, Table, dollars, summary_policies

PARTS = {f"{part}_usd": f"for {who}" for part, who in (
    ("policy", "the policy"), ("gpu", "devices"), ("user", "the user"), ("judge", "the judge")
)}  # fmt: skip
BESIDES = ("probing", "training")


def section_of(run: RunData, out: Path) -> Section | None:
    """None where nothing has a price."""
    policies = summary_policies(run)
    costs = {name: cost for name, p in policies.items() if isinstance(cost := p.get("cost"), Mapping)}
    if not costs:
        return None
    section = Section("cost", "Cost", tables=[_table(run, costs)])
    lacking = [name for name in policies if name not in costs]
    if lacking:
        section.text.append(f"Without a price of its own, so without a cost: {', '.join(lacking)}.")
    for name, cost in costs.items():
        if cost.get("campaign_usd") is None and (reasons := unknown_of(run, cost)):
            section.text.append(f"What {name}'s attempts cost is not known in full: {'; '.join(reasons)}.")
        if reasons := [str(each) for each in cost.get("besides_unknown") or ()]:
            section.text.append(f"What {name} cost in all is not known in full: {'; '.join(reasons)}.")
    cautions = [
        str(text) for cost in costs.values() for key in ("caution", "caution_of_total") if (text := cost.get(key))
    ]
    section.text += dict.fromkeys(cautions)
    return section


def _table(run: RunData, costs: Mapping[str, Json]) -> Table:
    parts = {key: label for key, label in PARTS.items() if any(cost.get(key) for cost in costs.values())}
    if len(parts) == 1:
        parts = {}  # it is the campaign's cost once more
    with_total = any(isinstance(cost.get("besides_usd"), Mapping) for cost in costs.values())
    columns = ["policy", "campaign", "per passed attempt", "per reliable task", *parts.values()]
    columns += [*BESIDES, "with both"] if with_total else []
    rows = []
    for name, cost in costs.items():
        known = cost.get("at_least_usd")
        cells = [Cell(name), _cell(cost.get("campaign_usd"), known)]
        cells += [_cell(cost.get(f"per_{what}_usd")) for what in ("passed_attempt", "reliable_task")]
        cells += [_cell(cost.get(key)) for key in parts]
        if with_total:
            besides = cost.get("besides_usd")
            cells += [_cell(_at(besides, each)) for each in BESIDES]
            least = known + sum(besides.values()) if isinstance(besides, Mapping) and known is not None else None
            cells.append(_cell(cost.get("total_usd"), least))
        rows.append(tuple(cells))
    dated = _at(run.config, "prices", "dated")
    caption = "US dollars" + (f", by prices of {dated}" if dated else "")
    caption += "; a reliable task passed every time; at least: the part that is known"
    return Table("cost", caption, tuple(columns), tuple(rows))


def _cell(usd: Any, at_least: Any = None) -> Cell:
    """at_least: what is known of it, where `usd` is None."""
    if isinstance(usd, int | float):
        return Cell(dollars(usd), value=usd)
    if usd == "inf":
        return Cell("∞")
    if isinstance(at_least, int | float):
        return Cell(DASH, note=f"at least {dollars(at_least)}", more=(("at least", at_least),))
    return Cell(DASH)


def unknown_of(run: RunData, cost: Json) -> list[str]:
    """Why a campaign's cost is not known, a reason for each role."""
    found = []
    for role in cost.get("unpriced") or ():
        n, of = (_at(cost, "untold", role) or (0, 0))[:2]
        model = _at(run.config, role, "endpoint", "model")
        if n:
            found.append(f"{n:,} of {of:,} clean attempts do not tell all tokens of the {role}")
        elif role == "policy" or _at(run.config, "prices", "models", str(model)) is not None:
            found.append(f"no attempt tells the tokens of the {role}")
        else:
            found.append(f"the {role} has no price" + (f" (prices.models has no {model})" if model else ""))
    return found
