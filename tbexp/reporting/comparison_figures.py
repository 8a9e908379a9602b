"""The figures of a comparison of runs.

Decided here: what is drawn and how. Colours and style are the report's (`figures.py`): Okabe and Ito's colours, with
marks, dashes and letters that also tell runs apart in grey print.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tbexp.config.schema import BANDS
from tbexp.reporting.figures import (
    BASE,
    GREY,
    INK,
    PALE,
    SHIELD,
    TRAINED,
    _band_style,
    _ink_on,
    _new,
    _patch_style,
    _percent,
    _rectangle,
    _whole_numbers,
    band_label,
    colour,
    short_uid,
)
from tbexp.reporting.run_data import Json
from tbexp.reporting.side_by_side import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FALL = "#D55E00"
LINES = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
WIDTH = 9.6
LETTER = 0.08  # inches, of a label's mean letter
LINE = 36  # letters of a label
NO_BREAK = "\u00a0\u00a0"


@dataclass(frozen=True, slots=True)
class Dot:
    """A figure {value, low, high} of one policy. published: no interval, of other tasks."""

    policy: str
    figures: Mapping[str, Json]  # by metric
    published: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One run's training. points: {metric: [(update, value)]}."""

    label: str
    points: Mapping[str, Sequence[tuple[int, float]]]
    chosen: int | None


def results(rows: Sequence[tuple[str, Sequence[Dot]]], metrics: Sequence[str]) -> Figure:
    """A panel per metric, a line per run, a dot with its interval per policy."""
    most = max(len(dots) for _, dots in rows)
    labels = [wrapped(label) for label, _ in rows]
    each = _row(labels, 0.24 + 0.17 * most)
    figure, axes = _new(WIDTH, 1.1 + len(rows) * each, columns=len(metrics), sharey=True, squeeze=False)
    for axis, metric in zip(axes[0], metrics, strict=True):
        for y, (_, dots) in enumerate(rows):
            for n, dot in enumerate(dots):
                place = y + (n - (len(dots) - 1) / 2) * 0.34
                _interval(axis, place, dot.figures.get(metric) or {}, *_look(dot))
        axis.set(title=metric, xlim=(0, 1), ylim=(len(rows) - 0.4, -0.6))
        axis.xaxis.set_major_formatter(_percent())
        axis.set_xticks([0, 0.5, 1])
        axis.grid(axis="x", color=PALE, linewidth=0.7)
        axis.set_axisbelow(True)
        axis.tick_params(axis="y", length=0)
    axes[0][0].set_yticks(range(len(rows)), labels)
    from matplotlib.lines import Line2D

    looks = {dot.policy: _look(dot) for _, dots in rows for dot in dots}
    handles = [
        Line2D([], [], color=shade, marker=marker, markerfacecolor=face, linewidth=0 if policy == "published" else 2,
               markersize=7, label=policy)
        for policy, (shade, marker, face) in looks.items()
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    return figure


def paired(rows: Sequence[tuple[str, Json, Json, tuple[int, int] | None]], every: str) -> Figure:
    """(label, difference in pass@1, in `every` (such as 20 of 20), (gained, lost)): two panels of intervals and one of
    counts.
    """
    figure, (first, second, third) = _new(WIDTH, 1.0 + 0.4 * len(rows), columns=3, sharey=True)
    for axis, place, title in ((first, 1, "pass@1"), (second, 2, every)):
        edge = 0.02
        for y, row in enumerate(rows):
            found: Any = row[place]
            if found.get("value") is None:
                axis.text(0, y, "not compared", ha="center", va="center", fontsize=8.5, color=GREY)
                continue
            low, high = found.get("low"), found.get("high")
            sure = low is not None and high is not None and not low <= 0 <= high
            shade = (TRAINED if found["value"] > 0 else FALL) if sure else GREY
            if low is not None and high is not None:
                axis.plot([low, high], [y, y], color=shade, linewidth=3.2, alpha=0.6, solid_capstyle="butt")
            face = shade if sure else "white"
            axis.plot([found["value"]], [y], marker="o", color=shade, markerfacecolor=face, markersize=7.5)
            above: dict[str, Any] = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center", "fontsize": 8.5}
            axis.annotate(f"{100 * found['value']:+.1f}".replace("+0.0", "0.0"), (found["value"], y), **above)
            edge = max([edge, abs(found["value"]), *(abs(side) for side in (low, high) if side is not None)])
        axis.axvline(0, color=INK, linewidth=0.9, zorder=0)
        axis.set(title=f"Change in {title}, points", xlim=(-1.15 * edge, 1.15 * edge))
        axis.xaxis.set_major_formatter(lambda value, _: f"{100 * value:+.0f}".replace("+0", "0"))
        axis.grid(axis="x", color=PALE, linewidth=0.7)
        axis.set_axisbelow(True)
        axis.tick_params(axis="y", length=0)
    most = max([1, *(n for *_, counts in rows if counts for n in counts)])
    for y, (*_, counts) in enumerate(rows):
        if counts is None:
            third.text(0, y, "not compared", ha="center", va="center", fontsize=8.5, color=GREY)
            continue
        gained, lost = counts
        third.barh(y, gained, color=TRAINED, height=0.5)
        third.barh(y, -lost, color="white", edgecolor=FALL, hatch="////", height=0.5)
        third.annotate(f"+{gained}", (gained, y), (4, 0), textcoords="offset points", va="center", fontsize=8.5)
        third.annotate(f"−{lost}", (-lost, y), (-4, 0), textcoords="offset points", va="center", ha="right",
                       fontsize=8.5)  # fmt: skip
    third.axvline(0, color=INK, linewidth=0.9)
    third.set(title=f"Tasks {every}: lost, gained", xlim=(-1.35 * most, 1.35 * most))
    third.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    _whole_numbers(third, axis="x")
    third.tick_params(axis="y", length=0)
    first.set(ylim=(len(rows) - 0.5, -0.7))
    first.set_yticks(range(len(rows)), [row[0] for row in rows])
    return figure


def overlap(labels: Sequence[str], letters: Sequence[str], pools: Sequence[frozenset[str]]) -> Figure:
    """A matrix: Jaccard index of each two pools, with tasks in both of tasks in either; sizes on the diagonal."""
    from matplotlib.colors import LinearSegmentedColormap

    size = len(pools)
    cell = min(0.95, max(0.34, 6.0 / size))
    named = [wrapped(label) if cell > 0.6 else shortened(label) for label in labels]
    width = 0.5 + LETTER * max(_length(label) for label in named) + cell * size
    figure, axis = _new(min(WIDTH, width), 0.7 + (0.72 if cell > 0.6 else 0.8) * cell * size)
    shades = LinearSegmentedColormap.from_list("overlap", ["#ffffff", "#9ecbe6", "#0072B2"])
    for y, mine in enumerate(pools):
        for x, other in enumerate(pools):
            both, either = len(mine & other), len(mine | other)
            index = both / either if either else None
            shade: Any = "#efefef" if x == y or index is None else shades(0.92 * index)
            axis.add_patch(_rectangle(x, y, shade))
            if x == y:
                text = f"{len(mine)}" + ("\ntasks" if cell > 0.6 else "")
            else:
                text = (
                    "–"
                    if index is None
                    else f"{index:.2f}"
                    + (f"\n{both} of {either}" if cell > 0.6 else f"\n{both}/{either}" if cell > 0.42 else "")
                )
            axis.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=_ink_on(shade),
                      fontsize=9 if cell > 0.6 else 6.5)  # fmt: skip
    axis.set(xlim=(0, size), ylim=(size, 0))
    axis.set_xticks([i + 0.5 for i in range(size)], letters)
    axis.set_yticks([i + 0.5 for i in range(size)], named)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return figure


def bands(rows: Sequence[tuple[str, Mapping[str, int], frozenset[str]]]) -> Figure:
    """(label, tasks by band, bands that are kept): one stacked bar per run, dropped bands hatched."""
    from matplotlib.patches import Patch

    labels = [wrapped(label) for label, _, _ in rows]
    figure, axis = _new(WIDTH, 1.25 + _row(labels, 0.42) * len(rows))
    total = max(sum(counts.values()) for _, counts, _ in rows)
    for y, (_, counts, kept) in enumerate(rows):
        left = 0
        for band in BANDS:
            count = counts.get(band, 0)
            if not count:
                continue
            look = _band_style(band, kept)
            axis.barh(y, count, left=left, height=0.66, **look)
            if count >= 0.025 * total:
                box = {"facecolor": look["facecolor"], "edgecolor": "none", "pad": 0.8}
                axis.text(left + count / 2, y, str(count), ha="center", va="center", fontsize=8.5,
                          color=_ink_on(look["facecolor"]), bbox=box)  # fmt: skip
            left += count
    axis.set(ylim=(len(rows) - 0.4, -0.6), xlim=(0, total), xlabel="tasks")
    axis.set_yticks(range(len(rows)), labels)
    axis.tick_params(axis="y", length=0)
    handles = [Patch(label=band_label(band), **_patch_style(band, frozenset(BANDS))) for band in BANDS]
    handles.append(Patch(label="dropped", facecolor="white", edgecolor=GREY, hatch="////"))
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=9)
    return figure


def forecasts(rows: Sequence[tuple[str, float | None, Json | None, Json | None]]) -> Figure:
    """(label, forecast, share at first, share in all): shares of groups that hold passes and failures."""
    labels = [wrapped(row[0]) for row in rows]
    figure, axis = _new(WIDTH, 1.15 + _row(labels, 0.42) * len(rows))
    for y, (_, forecast, early, whole) in enumerate(rows):
        known = [v for v in (forecast, (early or {}).get("value"), (whole or {}).get("value")) if v is not None]
        if len(known) > 1:
            axis.plot([min(known), max(known)], [y, y], color=PALE, linewidth=1.2, zorder=0)
        for found, shade, marker, shift in ((early, BASE, "s", -0.15), (whole, TRAINED, "o", 0.15)):
            if found:
                axis.plot([found["low"], found["high"]], [y + shift] * 2, color=shade, linewidth=3, alpha=0.55,
                          solid_capstyle="butt")  # fmt: skip
                axis.plot([found["value"]], [y + shift], marker=marker, color=shade, markeredgecolor="white",
                          markersize=8)  # fmt: skip
        if forecast is not None:
            axis.plot([forecast], [y], marker="|", color=INK, markersize=20, markeredgewidth=2.2)
    axis.set(xlim=(0, 1), ylim=(len(rows) - 0.4, -0.6), xlabel="share of groups with passes and failures")
    axis.xaxis.set_major_formatter(_percent())
    axis.grid(axis="x", color=PALE, linewidth=0.7)
    axis.set_axisbelow(True)
    axis.set_yticks(range(len(rows)), labels)
    axis.tick_params(axis="y", length=0)
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=INK, marker="|", markersize=12, markeredgewidth=2.2, linewidth=0, label="forecast"),
        Line2D([], [], color=BASE, marker="s", linewidth=2, label="first fifth of the updates"),
        Line2D([], [], color=TRAINED, marker="o", linewidth=2, label="all updates"),
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=3)
    return figure


def curves(steps: Sequence[Step], panels: Sequence[tuple[str, str, str]]) -> Figure:
    """panels: (metric, title, label of its axis). Running means; single updates as faint dots while runs are few."""
    heights = [1.3] + [1.0] * (len(panels) - 1)
    figure, axes = _new(WIDTH, 1.0 + 2.3 * len(panels) + 0.16 * len(steps), rows=len(panels), sharex=True,
                        height_ratios=heights, squeeze=False)  # fmt: skip
    for axis, (metric, title, name) in zip([row[0] for row in axes], panels, strict=True):
        ends = [
            _line(axis, points, n, run, few=len(steps) <= 4)
            for n, run in enumerate(steps)
            if (points := run.points.get(metric))
        ]
        _letters(axis, ends)
        axis.set(title=title, ylabel=name, ylim=(0, 1.04))
        axis.yaxis.set_major_formatter(_percent())
        axis.grid(axis="y", color=PALE, linewidth=0.7)
        axis.set_axisbelow(True)
    axes[-1][0].set(xlabel="update")
    _whole_numbers(axes[-1][0], axis="x")
    handles, texts = axes[0][0].get_legend_handles_labels()
    labels = [wrapped(text) for text in texts]
    beside = min(3, int(WIDTH / (0.6 + LETTER * max(map(_length, labels)))))
    figure.legend(handles, labels, loc="outside lower center", ncols=beside, fontsize=9, **SHIELD)
    return figure


def tasks(labels: Sequence[str], order: Sequence[str], cells: Mapping[str, Sequence[tuple[int, int] | None]],
          marks: Mapping[str, Sequence[str]]) -> Figure:  # fmt: skip
    """Share of passed attempts, a line per task and a column per run. cells: {uid: (clean, passed) of each run};
    marks: {uid: + gained, − lost or nothing, of each run}.
    """
    from matplotlib.colors import LinearSegmentedColormap

    shades = LinearSegmentedColormap.from_list("rates", ["#ffffff", "#9ecbe6", "#0072B2"])
    figure, axis = _new(min(WIDTH, 3.4 + 0.75 * len(labels)), 1.0 + 0.17 * len(order))
    for y, uid in enumerate(order):
        for x, cell in enumerate(cells[uid]):
            known = cell is not None and cell[0] > 0
            shade: Any = shades(0.92 * cell[1] / cell[0]) if cell is not None and known else "#efefef"
            axis.add_patch(_rectangle(x, y, shade))
            text = f"{cell[1]}" if cell is not None and known else "–"
            mark = marks.get(uid, [""] * len(labels))[x]
            axis.text(x + 0.5, y + 0.52, f"{text} {mark}".strip(), ha="center", va="center", fontsize=7,
                      color=_ink_on(shade), fontweight="bold" if mark else "normal")  # fmt: skip
    axis.set(xlim=(0, len(labels)), ylim=(len(order), 0))
    axis.set_xticks([i + 0.5 for i in range(len(labels))], labels)
    axis.set_yticks([i + 0.5 for i in range(len(order))], [short_uid(uid) for uid in order], fontsize=7)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return figure


def wrapped(label: str) -> str:
    """On lines that leave room for what stands beside them; the letter stays with what it stands for."""
    return "\n".join(textwrap.wrap(label.replace("  ", NO_BREAK, 1), LINE, break_on_hyphens=False))


def _length(label: str) -> int:
    return max(map(len, label.split("\n")), default=0)


def _row(labels: Sequence[str], least: float) -> float:
    """Inches from label to label."""
    return max([least, *(0.1 + 0.17 * (label.count("\n") + 1) for label in labels)])


def _look(dot: Dot) -> tuple[str, str, str]:
    """Colour, mark and the mark's filling."""
    if dot.published:
        return INK, "D", "white"
    shade = colour(dot.policy)
    return shade, {"base": "o", "trained": "D"}.get(dot.policy, "s"), shade


def _interval(axis: Axes, y: float, found: Json, shade: str, marker: str, face: str) -> None:
    value, low, high = (found.get(key) for key in ("value", "low", "high"))
    if value is None:
        return
    if low is not None and high is not None:
        axis.plot([low, high], [y, y], color=shade, linewidth=2.8, alpha=0.5, solid_capstyle="butt")
    edge = "white" if face == shade else shade
    axis.plot([value], [y], marker=marker, color=shade, markerfacecolor=face, markersize=7, markeredgecolor=edge)
    right = max(value, value if high is None else high)
    left = min(value, value if low is None else low)
    place: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8.5}
    if right < 0.82:
        axis.annotate(f"{100 * value:.1f}", (right, y), (6, 0), **place)
    else:
        axis.annotate(f"{100 * value:.1f}", (left, y), (-6, 0), ha="right", **place)


def _line(
    axis: Axes, points: Sequence[tuple[int, float]], number: int, run: Step, *, few: bool
) -> tuple[float, float, str, str]:
    """Draws the running mean; gives its end, the run's letter and colour."""
    shade, dash = LINES[number % len(LINES)], DASHES[number % len(DASHES)]
    x = np.array([step for step, _ in points], dtype=float)
    y = np.array([value for _, value in points])
    width = max(1, min(5, len(y) // 4))
    kernel = np.ones(width)
    smooth = np.convolve(y, kernel, "same") / np.convolve(np.ones_like(y), kernel, "same")
    if few and width > 1:
        axis.plot(x, y, color=shade, marker=".", markersize=3, linewidth=0, alpha=0.5)
    axis.plot(x, smooth, color=shade, linestyle=dash, linewidth=2, label=run.label)
    if run.chosen is not None and x[0] <= run.chosen <= x[-1]:
        axis.plot([run.chosen], [np.interp(run.chosen, x, smooth)], marker="*", color=shade, markersize=13,
                  markeredgecolor="white", linestyle="none", zorder=5)  # fmt: skip
    return float(x[-1]), float(smooth[-1]), run.label.split(" ", 1)[0], shade


def _letters(axis: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Writes letters at the ends of lines; lines that end together share one text."""
    groups: list[list[tuple[float, float, str, str]]] = []
    for end in sorted(ends, key=lambda end: end[1]):
        if groups and end[1] - groups[-1][0][1] < 0.06:
            groups[-1].append(end)
        else:
            groups.append([end])
    for group in groups:
        x, y = max(end[0] for end in group), sum(end[1] for end in group) / len(group)
        shade = group[0][3] if len(group) == 1 else INK
        axis.annotate(" ".join(sorted(end[2] for end in group)), (x, y), (8, 0), textcoords="offset points",
                      va="center", color=shade, fontweight="bold", fontsize=9)  # fmt: skip
