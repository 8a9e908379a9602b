"""The forecast against what happened, as a figure and as tables.

Decided here: what is put beside what. The expectations are `selection.happened`'s, prices `evaluation.cost`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tbexp.config.schema import ModelPrice
from tbexp.reporting.figures import GREY, PALE, _new, _running_mean, _trend, _whole_numbers, duration
from tbexp.reporting.page import Section, picture
from tbexp.reporting.run_data import RunData, _at
from tbexp.reporting.tables import DASH, Cell, Table, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tbexp.selection.happened import Summary, Update

OBSERVED, AT_REWARD = "#009E73", "#CC79A7"


def section_of(run: RunData, out: Path) -> Section | None:
    """None where the run has no selection or no training, or does not say how an update was made."""
    from tbexp.selection.happened import summary

    updates = updates_of(run)
    whole = summary(updates) if updates else None
    if whole is None or whole.mixed_rate is None:
        return None
    section = Section("forecast", "The forecast against what happened")
    text = (
        f"Of the groups that were generated, {100 * whole.mixed_rate:.0f}% held passes and failures. The probe had "
        f"forecast {100 * whole.mixed_rate_untrained:.0f}% for the untrained policy"
    )
    if whole.mixed_rate_at_reward is not None:
        text += (
            f"; for a policy that passes as often as the updates' attempts did, the same posteriors give "
            f"{100 * whole.mixed_rate_at_reward:.0f}%"
        )
    section.text.append(text + ".")
    caption = (
        "Dots are single updates. Dashed: for the policy that was probed. Purple: the same posteriors, moved so "
        "that their mean is the update's mean reward; what then differs is not explained by the policy being better."
    )
    section.pictures.append(picture(out, "forecast", caption, lambda: figure_of(updates)))
    section.tables += [comparison(updates), *([spent] if (spent := thrown_away(run)) else [])]
    if not spent:
        section.text.append("What the thrown-away attempts took in tokens and seconds is not recorded.")
    return section


def updates_of(run: RunData) -> list[Update]:
    """The training's updates with what was expected of them."""
    from tbexp.selection.happened import Pool, compare

    wanted = set(run.train)
    rows = [row for row in run.tasks if row.get("uid") in wanted] or [row for row in run.tasks if row.get("kept")]
    size, groups = _at(run.config, "group", "size"), _at(run.config, "group", "groups_per_update")
    rounds = _at(run.config, "training", "refill_rounds")
    numbers = [row for row in rows if isinstance(row.get("alpha"), float) and isinstance(row.get("beta"), float)]
    if not numbers or not isinstance(size, int) or not isinstance(groups, int):
        return []
    pool = Pool.of(
        [row["alpha"] for row in numbers],
        [row["beta"] for row in numbers],
        group_size=size,
        groups_per_update=groups,
        refill_rounds=rounds if isinstance(rounds, int) else 4,
    )
    return compare(pool, run.steps)


def figure_of(updates: Sequence[Update]) -> Figure:
    """Above: share of mixed groups; below: attempts thrown away. Over the updates."""
    figure, (upper, lower) = _new(9.6, 5.4, rows=2, sharex=True)
    steps = [update.step for update in updates]
    panels: tuple[tuple[Any, list[float | None], float, list[float | None]], ...] = (
        (
            upper,
            [u.mixed_rate for u in updates],
            updates[0].untrained.mixed_rate,
            [u.at_reward.mixed_rate if u.at_reward else None for u in updates],
        ),
        (
            lower,
            [u.thrown_away for u in updates],
            updates[0].untrained.thrown_away,
            [u.at_reward.thrown_away if u.at_reward else None for u in updates],
        ),
    )
    for axes, seen, untrained, moved in panels:
        points = [(step, value) for step, value in zip(steps, seen, strict=True) if value is not None]
        if points:
            _trend(axes, points, OBSERVED, "observed")
        axes.axhline(untrained, color=GREY, linestyle=(0, (4, 3)), label="forecast, untrained policy")
        line = [(step, value) for step, value in zip(steps, moved, strict=True) if value is not None]
        if line:
            _, smooth = _running_mean(np.array([value for _, value in line]))
            axes.plot([x for x, _ in line], smooth, color=AT_REWARD, linewidth=2, label="forecast at the reward then")
        axes.grid(axis="y", color=PALE, linewidth=0.7)
    upper.set(ylabel="share of groups", ylim=(0, 1.03), title="Groups that carry signal")
    lower.set(ylabel="attempts", xlabel="update", title="Attempts thrown away per update")
    lower.set_ylim(bottom=0)
    lower.set_xlim(left=-0.6)
    _whole_numbers(lower, axis="x")
    figure.legend(*upper.get_legend_handles_labels(), loc="outside upper right", ncols=3, fontsize=9)
    return figure


def comparison(updates: Sequence[Update]) -> Table:
    """The first and the last fifth of the updates, and all of them."""
    from tbexp.selection.happened import summary

    edge = max(1, len(updates) // 5)
    parts = [("all updates", updates)]
    if len(updates) > edge:
        parts = [(f"first {edge}", updates[:edge]), (f"last {edge}", updates[-edge:]), *parts]
    rows = [_line(name, summary(part)) for name, part in parts]
    columns = (
        *("updates", "mixed groups %", "forecast, untrained %", "forecast at reward %"),
        *("thrown away", "forecast, untrained", "forecast at reward"),
    )
    caption = "Shares of all groups of these updates that have a verdict; attempts thrown away, mean per update"
    return Table("forecast", caption, columns, tuple(rows))


def _line(name: str, found: Summary) -> tuple[Cell, ...]:
    shares = (found.mixed_rate, found.mixed_rate_untrained, found.mixed_rate_at_reward)
    counts = (found.thrown_away, found.thrown_away_untrained, found.thrown_away_at_reward)
    return (
        Cell(name),
        *(Cell(percent(value), bold=i == 0) for i, value in enumerate(shares)),
        *(Cell(DASH if value is None else f"{value:.1f}", bold=i == 0) for i, value in enumerate(counts)),
    )


def thrown_away(run: RunData) -> Table | None:
    """What was paid for attempts that were not trained on. None where the training did not record it."""
    rows = [row for row in run.steps.values() if "train/thrown_away/tokens" in row]
    if not rows:
        return None

    def total(name: str) -> float:
        return sum(row.get(f"train/thrown_away/{name}", 0.0) for row in rows)

    produced = sum(row.get("train/produced_tokens", 0.0) for row in rows)
    usd = [found for row in rows if (found := usd_of(run, row)) is not None]
    cells = {
        "attempts": f"{total('attempts'):,.0f}",
        "failed tries": f"{total('failed_tries'):,.0f}",
        "tokens produced": f"{total('tokens'):,.0f}",
        "of all produced": f"{100 * total('tokens') / produced:.0f}%" if produced else DASH,
        "prompt tokens": f"{total('prompt_tokens'):,.0f}",
        "attempts' seconds": duration(total("attempt_seconds")),
        "generation time": duration(total("seconds")),
        "US$": f"{sum(usd):,.4g}" if usd else DASH,
    }
    caption = (
        "Thrown away: attempts of groups that were replaced, and tries that ended as system errors; each was paid for "
        "in full. Attempts' seconds are one by one, generation time is their share of the wall time of generation."
    )
    return Table("thrown_away", caption, tuple(cells), (tuple(Cell(text) for text in cells.values()),))


def usd_of(run: RunData, row: Mapping[str, float]) -> float | None:
    """An update's thrown-away attempts in US dollars, by the run's own prices; None without any."""
    from tbexp.evaluation.cost import thrown_away_usd
    from tbexp.training.rows import devices_of_update

    rate = _at(run.config, "prices", "gpu_hour_usd")
    listed = _at(run.config, "prices", "models", str(_at(run.config, "model", "name")))
    nodes, gpus = _at(run.config, "topology", "nodes"), _at(run.config, "topology", "gpus_per_node")
    return thrown_away_usd(
        row,
        gpu_hour_usd=float(rate or 0.0),
        devices=devices_of_update(row) or int(nodes or 1) * int(gpus or 1),
        price=ModelPrice.model_validate(listed) if isinstance(listed, Mapping) else None,
    )
