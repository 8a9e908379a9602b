"""The publication's three tables and its figure of cost against pass rate, for runs beside the published models.

Decided here: what is comparable. Only a run of the published protocol (as many tasks and attempts, the external search)
competes with published models; every other run competes with its like, and the text says so. The leader of a column is
bold, the second underlined; a figure that the source does not give but that follows from others is marked as derived.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tbexp.evaluation import load_published
from tbexp.evaluation.published import derived_cost_per_passed_attempt
from tbexp.reporting.figures import BASE, GREY, INK, TRAINED, _new
from tbexp.reporting.page import Section, picture
from tbexp.reporting.partial import covered
from tbexp.reporting.run_data import Json, _at
from tbexp.reporting.tables import DASH, Cell, Table
from tbexp.tasks import benchmark_uids

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DERIVED = "derived"


@dataclass(frozen=True, slots=True)
class Entry:
    """One policy's line. figures: {column: value}, shares in percent. derived: columns that the source leaves out."""

    name: str
    figures: Mapping[str, float]
    derived: frozenset[str]
    published: bool
    comparable: bool  # with published models
    partial: str = ""  # what a partial evaluation covers


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    label: str
    digits: int
    more_is_better: bool | None = True  # None: nobody leads

    def shown(self, value: float) -> str:
        """A cost of less than a dollar has three significant digits at least, or cheap ones would look alike."""
        cheap = "US$" in self.label and 0 < value < 1
        digits = max(self.digits, 2 - math.floor(math.log10(value))) if cheap else self.digits
        return f"{value:,.{digits}f}"


PASSED = Column("passed_attempts", "passed attempts", 0)
RATE = Column("pass_at_1", "pass@1", 2)
ONCE = Column("tasks_passed_at_least_once", "tasks passed at least once", 0)
AT_K = Column("pass_at_k", "pass@k", 2)
EVERY = Column("tasks_passed_every_time", "tasks passed every time", 0)
ALL_K = Column("observed_all_k", "observed k of k", 2)
CAMPAIGN = Column("campaign_cost_usd", "campaign, US$", 2, None)
PER_PASSED = Column("cost_per_passed_attempt_usd", "US$ per passed attempt", 3, False)
PER_RELIABLE = Column("cost_per_reliable_task_usd", "US$ per reliable task", 2, False)


def published_entries() -> list[Entry]:
    found = load_published()
    protocol = found["protocol"]
    return [_published(name, model, protocol) for name, model in found["models"].items()]


def _published(name: str, model: Json, protocol: Json) -> Entry:
    names = {"pass_at_20": "pass_at_k", "observed_20_of_20": "observed_all_k"}
    figures = {names.get(key, key): float(value) for key, value in model.items() if isinstance(value, int | float)}
    derived = set()

    def derive(key: str, value: float | None) -> None:
        if key not in figures and value is not None:
            figures[key] = value
            derived.add(key)

    every = figures.get("tasks_passed_every_time")
    derive("passed_attempts", round(figures["pass_at_1"] / 100 * protocol["attempts"]))
    derive("observed_all_k", None if every is None else 100 * every / protocol["tasks"])
    at_k = figures.get("pass_at_k")
    derive("tasks_passed_at_least_once", None if at_k is None else round(at_k / 100 * protocol["tasks"]))
    derive("cost_per_passed_attempt_usd", derived_cost_per_passed_attempt(dict(model)))
    per_task = figures.get("cost_per_reliable_task_usd")
    derive("campaign_cost_usd", per_task * every if per_task is not None and every is not None else None)
    if name == "claude-opus-5":  # the source says how far it is below another model
        derived.add("pass_at_1")
    return Entry(name, figures, frozenset(derived), published=True, comparable=True)


def run_entry(name: str, policy: Json) -> Entry:
    """Of a policy in the form of summary.json; shares become percent, a cost that is infinite stays so."""
    k = policy.get("attempts")
    found = {
        "passed_attempts": policy.get("passed_attempts"),
        "pass_at_1": _percent(_at(policy, "pass_at_1", "value")),
        "tasks_passed_at_least_once": _at(policy, "passed_at_least_once", "tasks"),
        "pass_at_k": _percent(_at(policy, "pass_at_k", str(k), "value")),
        "tasks_passed_every_time": _at(policy, "observed_all_k", "tasks"),
        "observed_all_k": _percent(_at(policy, "observed_all_k", "value")),
    }
    if (_at(policy, "cost", "campaign_usd") or 0) > 0:
        for ours, theirs in (
            ("campaign_cost_usd", "campaign_usd"),
            ("cost_per_passed_attempt_usd", "per_passed_attempt_usd"),
            ("cost_per_reliable_task_usd", "per_reliable_task_usd"),
        ):
            value = _at(policy, "cost", theirs)
            found[ours] = float("inf") if value == "inf" else value
    protocol = load_published()["protocol"]
    comparable = (
        policy.get("tasks") == protocol["tasks"]
        and k == protocol["attempts_per_task"]
        and set(policy.get("passed_by_task") or ()) == benchmark_uids()
        and policy.get("search") != "embedded"
        and not policy.get("partial")
    )
    figures = {key: float(value) for key, value in found.items() if isinstance(value, int | float)}
    return Entry(name, figures, frozenset(), published=False, comparable=comparable, partial=covered(policy))


def _percent(value: Any) -> float | None:
    return 100 * value if isinstance(value, int | float) else None


def section_of(policies: Mapping[str, Json], out: Path) -> Section | None:
    """policies: {shown name: figures as in summary.json}."""
    if not policies:
        return None
    runs = [run_entry(name, policy) for name, policy in policies.items()]
    entries = [*runs, *published_entries()]
    section = Section("publication", "Beside the published models")
    apart = [entry.name for entry in runs if not entry.comparable]
    if apart:
        protocol = load_published()["protocol"]
        section.text.append(
            f"{', '.join(apart)}: not of the published protocol (the {protocol['tasks']} tasks of the benchmark, "
            f"{protocol['attempts_per_task']} attempts each, all with a verdict, external search), so not comparable "
            "with the published models: each kind has its own leader."
        )
    section.text.append(
        "Bold: the leader of its column; underlined: the second. "
        "Derived: the source does not give the figure, it follows from others that it gives. k: attempts per task, 20 "
        "of the published models."
    )
    if any(RATE.key in entry.figures and PER_PASSED.key in entry.figures for entry in entries):
        caption = (
            "pass@1 against US dollars per passed attempt. The line is the Pareto frontier of what is comparable with "
            "the published models: nothing is both cheaper and better than a point on it. Hollow: derived cost. "
            f"{load_published()['caution']}"
        )
        section.pictures.append(picture(out, "cost", caption, lambda: cost_figure(entries)))
    pair = [entry for entry in entries if not entry.published or entry.name.startswith("qwen")]
    made = [
        table_of("publication_1", "1. How often, and how reliably", pair, (PASSED, RATE, ONCE, AT_K, EVERY, ALL_K)),
        table_of("publication_2", "2. What it costs", pair, (CAMPAIGN, PER_PASSED, PER_RELIABLE)),
        table_of(
            "publication_3", "3. All models", entries, (RATE, AT_K, EVERY, ALL_K, PER_PASSED, PER_RELIABLE), by=RATE
        ),
    ]
    section.tables = [table for table in made if table.rows]
    return section


def table_of(
    name: str, caption: str, entries: Sequence[Entry], columns: Sequence[Column], *, by: Column | None = None
) -> Table:
    """Lines that have none of the columns are left out. by: lines sorted by this column, the best first,
    what is not comparable with published models behind the others.
    """
    lines = [entry for entry in entries if any(column.key in entry.figures for column in columns)]
    if by is not None:
        lines = sorted(lines, key=lambda entry: (not entry.comparable, -entry.figures.get(by.key, -1.0)))
    ranks = {column.key: _ranks(lines, column) for column in columns}
    rows = []
    for entry in lines:
        note = "published" if entry.published else "" if entry.comparable else "not comparable"
        note += f"; partial: {entry.partial}" if entry.partial else ""
        cells = [Cell(entry.name, note=note)]
        for column in columns:
            value = entry.figures.get(column.key)
            text = DASH if value is None else "∞" if value == float("inf") else column.shown(value)
            rank = ranks[column.key].get(entry.name)
            note = DERIVED if column.key in entry.derived else ""
            more = ((DERIVED, True),) if note else ()
            cells.append(Cell(text, bold=rank == 1, note=note, underlined=rank == 2, value=value, more=more))
        rows.append(tuple(cells))
    return Table(name, caption, ("model", *(column.label for column in columns)), tuple(rows))


def _ranks(entries: Sequence[Entry], column: Column) -> dict[str, int]:
    """1 for the leader and 2 for the second of those that are comparable with each other; ties share their place."""
    ranks: dict[str, int] = {}
    if column.more_is_better is None:
        return ranks
    for comparable in (True, False):
        known = [e for e in entries if e.comparable == comparable and column.key in e.figures]
        values = sorted({e.figures[column.key] for e in known}, reverse=column.more_is_better)
        if len(values) < 2:
            continue
        for entry in known:
            place = values.index(entry.figures[column.key]) + 1
            if place <= 2 and entry.figures[column.key] != float("inf"):
                ranks[entry.name] = place
    return ranks


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points (cost, rate) that no other one beats: none is cheaper and at least as good, or as cheap and better."""
    best: list[tuple[float, float]] = []
    for cost, rate in sorted(set(points), key=lambda point: (point[0], -point[1])):
        if not best or rate > best[-1][1]:
            best.append((cost, rate))
    return best


def cost_figure(entries: Sequence[Entry]) -> Figure:
    figure, axes = _new(9.6, 4.6)
    shown = [
        entry
        for entry in entries
        if RATE.key in entry.figures and 0 < entry.figures.get(PER_PASSED.key, float("inf")) < float("inf")
    ]
    edge = frontier([_place(entry) for entry in shown if entry.comparable])
    if edge:
        axes.plot(*zip(*edge, strict=True), color=GREY, linewidth=1.6, drawstyle="steps-post", zorder=1)
    right = max(_place(entry)[0] for entry in shown)
    for entry in shown:
        x, y = _place(entry)
        shade = INK if entry.published else BASE if entry.name.endswith("base") else TRAINED
        hollow = PER_PASSED.key in entry.derived
        marker = "o" if entry.published else "D"
        axes.plot([x], [y], marker=marker, markersize=9, color=shade, markerfacecolor="white" if hollow else shade,
                  linestyle="none", markeredgewidth=1.6, zorder=3, clip_on=False)  # fmt: skip
    axes.set(xlabel="US$ per passed attempt", ylabel="pass@1, percent", title="What a passed attempt costs")
    axes.set_xlim(left=0, right=right * 1.08)
    axes.margins(y=0.15)
    axes.grid(color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    why = {
        entry.name: " (partial)" if entry.partial else "" if entry.comparable else " (other tasks)" for entry in shown
    }
    _label(figure, axes, [(entry.name + why[entry.name], _place(entry)) for entry in shown])
    return figure


def _label(figure: Figure, axes: Axes, points: Sequence[tuple[str, tuple[float, float]]]) -> None:
    """A name beside each point, where it covers neither a name nor a point: right of it, left of it, further away."""
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    renderer = figure._get_renderer()  # type: ignore[attr-defined]
    scale = figure.dpi / 72
    taken = []
    for _, point in points:
        x, y = axes.transData.transform(point)
        taken.append(Bbox.from_extents(x - 7 * scale, y - 7 * scale, x + 7 * scale, y + 7 * scale))
    for text, point in sorted(points, key=lambda each: each[1]):
        label = axes.annotate(text, point, (9, 0), textcoords="offset points", fontsize=9, va="center", zorder=2)
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6})  # over lines
        label.set_in_layout(False)
        places = [(side, height) for height in (0, 11, -11, 22, -22, 33, -33, 44, -44) for side in (1, -1)]
        boxes: list[tuple[Any, ...]] = []
        for side, height in places:
            label.set_position((9 * side, height))
            label.set_horizontalalignment("left" if side > 0 else "right")
            box = label.get_window_extent(renderer)
            inside = axes.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and axes.bbox.y0 <= box.y0
            boxes.append(
                (sum(box.overlaps(other) for other in taken) + 10 * (not inside), len(boxes), side, height, box)
            )
        _, _, side, height, box = min(boxes, key=lambda each: each[:2])
        label.set_position((9 * side, height))
        label.set_horizontalalignment("left" if side > 0 else "right")
        taken.append(box)


def _place(entry: Entry) -> tuple[float, float]:
    return entry.figures[PER_PASSED.key], entry.figures[RATE.key]


__all__ = ["Entry", "cost_figure", "frontier", "published_entries", "run_entry", "section_of", "table_of"]
