"""The report's figures.

Decided here: what is drawn and how it looks. Colours are Okabe and Ito's, which colour-blind readers tell apart, and
light and dark enough to be told apart in grey print; what is dropped is hatched besides. matplotlib is imported on
first use.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from tbexp.config.schema import BANDS
from tbexp.errors import counted
from tbexp.reporting.run_data import Attempts, Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, PALE = "#222222", "#8a8a8a", "#d9d9d9"
BASE, TRAINED = "#E69F00", "#0072B2"
OTHERS = ("#009E73", "#CC79A7", "#56B4E9", "#D55E00")
BAND_COLOURS = {
    "rarely": "#D55E00",
    "hard": "#E69F00",
    "medium": "#009E73",
    "often": "#56B4E9",
    "nearly_always": "#0072B2",
}
SHIELD: dict[str, Any] = {"frameon": True, "framealpha": 0.9, "edgecolor": "none"}  # a legend over lines
STYLE: dict[Any, Any] = {
    "figure.facecolor": "white",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "hatch.linewidth": 0.8,
    "text.parse_math": False,  # names of tasks may hold a $
    # The same data gives the same bytes.
    "svg.hashsalt": "tbexp",
}


@contextmanager
def style() -> Iterator[None]:
    """Draw and save inside: matplotlib asks for some of these settings only when it saves."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        yield


def colour(policy: str, number: int = 0) -> str:
    return {"base": BASE, "trained": TRAINED}.get(policy, OTHERS[number % len(OTHERS)])


def band_label(band: str) -> str:
    return band.replace("_", " ")


def bands(tasks: Sequence[Json], edges: Mapping[str, float], kept: frozenset[str]) -> Figure:
    """Left: tasks by passes of n, coloured by band. Right: the posterior of each pass count, over the bands."""
    from matplotlib.patches import Patch

    figure, (left, right) = _new(9.6, 3.9, columns=2, width_ratios=[1, 1.15])
    known = [(int(t["clean"]), int(t["passed"]), str(t.get("band"))) for t in tasks if t.get("clean")]
    size = Counter(n for n, _, _ in known).most_common(1)[0][0]
    bars: dict[str, Counter[int]] = {band: Counter() for band in BANDS}
    for n, k, band in known:
        bars.setdefault(band, Counter())[round(k / n * size)] += 1
    bottom = np.zeros(size + 1)
    for band, counts in bars.items():
        heights = np.array([counts[k] for k in range(size + 1)], dtype=float)
        there = np.flatnonzero(heights)  # a bar of no height would still draw its edge
        left.bar(there, heights[there], bottom=bottom[there], width=0.82, **_band_style(band, kept))
        bottom += heights
    for k, height in enumerate(bottom):
        if height and size <= 24:
            left.annotate(f"{height:.0f}", (k, height), (0, 2), textcoords="offset points", ha="center", fontsize=8.5)
    mixed = len({n for n, _, _ in known}) > 1
    left.set(xlabel=f"passes of {counted(size, 'attempt')}" + (", rescaled where a task has fewer" if mixed else ""))
    left.set(ylabel="tasks", title="Tasks by number of passes", ylim=(0, max(bottom) * 1.12))
    left.set_xticks(range(0, size + 1, max(1, size // 10)))
    _whole_numbers(left)

    grid = np.linspace(0.002, 0.998, 400)
    band_of = {(k, n): band for n, k, band in known}
    often = Counter((k, n) for n, k, _ in known)
    top = 0.0
    for (k, n), count in sorted(often.items()):
        density = beta_density(grid, k + 0.5, n - k + 0.5)
        style = BAND_COLOURS.get(band_of[k, n], GREY)
        right.plot(grid, density, color=style, linewidth=0.9 + 2.2 * count / max(often.values()))
        top = max(top, float(density[(grid > 0.02) & (grid < 0.98)].max()))
    lower = 0.0
    top = min(top, 9.0) * 1.16
    for band in BANDS:
        upper = edges.get(band, 1.0)
        right.axvspan(lower, upper, color=BAND_COLOURS[band], alpha=0.10, linewidth=0)
        if upper < 1:
            right.axvline(upper, color=GREY, linewidth=0.7, linestyle=(0, (4, 3)))
        lower = upper
    right.set(xlim=(0, 1), ylim=(0, top), xlabel="pass rate of the task", ylabel="posterior density")
    right.set_title("What the passes say about the rate")
    right.set_xticks([0, *sorted(edges.values()), 1])
    right.set_xticklabels([f"{x:g}" for x in [0, *sorted(edges.values()), 1]])
    handles = [Patch(label=band_label(b) + ("" if b in kept else " (dropped)"), **_patch_style(b, kept)) for b in BANDS]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=9)
    return figure


def training(steps: Mapping[int, Mapping[str, float]], chosen: int | None, forecast: float | None) -> Figure:
    """Reward and mixed-group rate over steps, validation, and the checkpoint that was chosen."""
    figure, (upper, lower) = _new(9.6, 5.2, rows=2, sharex=True, height_ratios=[1.45, 1])
    reward, mixed, validation = (
        series(steps, name) for name in ("train/reward_mean", "train/mixed_group_rate", "train/validation_pass_rate")
    )
    if reward:
        _trend(upper, reward, TRAINED, "mean reward")
    if validation:
        upper.plot(*zip(*validation, strict=True), color=INK, marker="s", markersize=5, linewidth=1.0,
                   linestyle=(0, (4, 2)), label="validation pass rate")  # fmt: skip
    if chosen is not None:
        for axes in (upper, lower):
            axes.axvline(chosen, color="#D55E00", linewidth=1.2, zorder=0)
        value = dict(validation).get(chosen)
        if value is not None:
            upper.plot([chosen], [value], marker="*", markersize=15, color="#D55E00", linestyle="none", zorder=5,
                       markeredgecolor="white", label=f"chosen checkpoint, step {chosen}")  # fmt: skip
        else:
            upper.plot([], [], color="#D55E00", label=f"chosen checkpoint, step {chosen}")
    upper.set(ylabel="share passed", ylim=(0, 1.02), title="Reward")
    if mixed:
        _trend(lower, mixed, "#009E73", "groups with passes and failures")
    if forecast is not None:
        lower.axhline(forecast, color=GREY, linewidth=1.2, linestyle=(0, (2, 2)), label="forecast from the probe")
    lower.set_xlim(left=-0.6)
    lower.set(ylabel="share of groups", ylim=(0, 1.05), xlabel="update", title="Groups that carry signal")
    # Beside the panels: inside, it would lie over the last updates of a training that comes near 1.
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    _whole_numbers(lower, axis="x")
    return figure


def before_after(metrics: Sequence[tuple[str, Mapping[str, Json]]], labels: Mapping[str, str]) -> Figure:
    """metrics: (label, {policy: {value, low, high}}). One row per metric, one dot with its interval per policy. labels:
    of policies, where they are not their names.
    """
    policies = list(dict.fromkeys(policy for _, values in metrics for policy in values))
    figure, axes = _new(9.6, 0.75 + 0.34 * len(metrics) * (len(policies) + 0.6))
    place = 0.0
    centres = []
    for _, values in metrics:
        start = place
        for number, policy in enumerate(policies):
            found = values.get(policy)
            if found and found.get("value") is not None:
                _dot(axes, place, found, colour(policy, number), ("o", "D", "s", "^")[number % 4])
            place += 1
        centres.append((start + place - 1) / 2)
        place += 0.7
    axes.set_yticks(centres, [label for label, _ in metrics], fontweight="bold")
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, 1), ylim=(place - 1.1, -0.6))
    axes.xaxis.set_major_formatter(_percent())
    axes.grid(axis="x", color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour(p, i), marker=("o", "D", "s", "^")[i % 4], linewidth=2, label=labels.get(p, p))
        for i, p in enumerate(policies)
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(policies))
    return figure


Curve = Sequence[tuple[int, Json]]


def repeats(policies: Mapping[str, tuple[Curve, Curve]], labels: Mapping[str, str]) -> Figure:
    """Over the number of attempts k: tasks passed at least once (solid) and every time (dashed). Intervals of one
    method that stand side by side are a band; those of counts, which are made otherwise, are bars.
    """
    figure, axes = _new(9.6, 3.9)
    for number, (policy, (once, every)) in enumerate(policies.items()):
        shade = colour(policy, number)
        for points, dashes, marker in ((once, "-", "o"), (every, (0, (4, 2)), "D")):
            if not points:
                continue
            k = [size for size, _ in points]
            label = f"{labels.get(policy, policy)}, {'at least once' if marker == 'o' else 'every time'}"
            values = [v["value"] for _, v in points]
            axes.plot(k, values, color=shade, linestyle=dashes, linewidth=2, marker=marker, markersize=3.5, label=label)
            known = [(size, v) for size, v in points if None not in (v.get("low"), v.get("high"))]
            for of_counts, part in groupby(known, lambda point: point[1].get("interval") == "count"):
                sizes, found = zip(*part, strict=True)
                low, high = ([v[side] for v in found] for side in ("low", "high"))
                if of_counts or len(sizes) == 1:
                    beside = [size + 0.12 * number for size in sizes]  # so that no policy's bar hides another's
                    axes.vlines(beside, low, high, color=shade, alpha=0.6, linewidth=2)
                else:
                    axes.fill_between(sizes, low, high, color=shade, alpha=0.13, linewidth=0)
    axes.set(xlabel="attempts per task, k", ylabel="share of tasks", ylim=(0, 1), title="Once, and every time")
    axes.yaxis.set_major_formatter(_percent())
    axes.set_xlim(left=0.6)
    _whole_numbers(axes, axis="x")
    axes.grid(axis="y", color=PALE, linewidth=0.7)
    figure.legend(loc="outside right center", fontsize=9)
    return figure


def topics(
    rows: Sequence[str],
    blocks: Sequence[tuple[str, Sequence[Sequence[float | None]]]],
    labels: Mapping[str, str],
) -> Figure:
    """A heat map: for each metric the columns base, trained and change, one line per topic."""
    figure, axes = _new(9.6, 1.15 + 0.36 * len(rows), columns=len(blocks), sharey=True, squeeze=False)
    from matplotlib.colors import LinearSegmentedColormap

    level = LinearSegmentedColormap.from_list("level", ["#ffffff", "#9ecbe6", "#0072B2"])
    change = LinearSegmentedColormap.from_list("change", ["#B35806", "#FDBF6F", "#ffffff", "#9ecbe6", "#0072B2"])
    for axis, (title, values) in zip(axes[0], blocks, strict=True):
        for y, line in enumerate(values):
            for x, value in enumerate(line):
                is_change = x == 2
                shade: Any
                if value is None:
                    shade, text = "#f3f3f3", "–"
                elif is_change:
                    shade, text = (
                        change(0.5 + value / 1.4),
                        f"{100 * value:+.1f}".replace("+0.0", "0.0").replace("-0.0", "0.0"),
                    )
                else:
                    shade, text = level(value * 0.92), f"{100 * value:.1f}"
                axis.add_patch(_rectangle(x + (0.12 if is_change else 0), y, shade))
                axis.text(x + 0.5 + (0.12 if is_change else 0), y + 0.5, text, ha="center", va="center",
                          color=_ink_on(shade), fontsize=9, fontweight="bold" if is_change else "normal")  # fmt: skip
        axis.set(xlim=(0, 3.25), ylim=(len(values), 0), title=title)
        sides = [labels.get(name, name).replace(" (", "\n(") for name in ("base", "trained")]
        axis.set_xticks([0.5, 1.5, 2.62], [*sides, "change"])
        axis.set_yticks([i + 0.5 for i in range(len(rows))], rows)
        axis.xaxis.tick_top()
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        axis.title.set_position((0, 1.0))
    return figure


def strips(
    policies: Mapping[str, Attempts],
    order: Sequence[str],
    marks: Mapping[str, str],
    size: int,
    labels: Mapping[str, str],
) -> Figure:
    """Every task a line, its attempts by policy: passed, failed, no verdict. marks: {uid: gained or lost}, beside the
    last policy.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    named = len(order) <= 70
    height = 1.1 + (0.155 * len(order) if named else min(9.0, 0.02 * len(order) + 2))
    figure, grid = _new(9.6, height, columns=len(policies), sharey=True, squeeze=False)
    axes = grid[0]
    palette = ListedColormap(["#9a9a9a", "#f6dfb4", "#0072B2"])
    for axis, (title, attempts) in zip(axes, policies.items(), strict=True):
        cells = np.array([outcome_cells(attempts, uid, size) for uid in order])
        axis.pcolormesh(cells, cmap=palette, vmin=0, vmax=2, edgecolor="white" if named else "none",
                        linewidth=0.6 if named else 0, rasterized=not named)  # fmt: skip
        axis.set(title=labels.get(title, title), xlim=(0, size), ylim=(len(order), 0))
        axis.set(xlabel=f"{counted(size, 'attempt')}, passed ones first")
        axis.set_xticks([0, size / 2, size], ["0", f"{size / 2:g}", str(size)])
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
    if named:
        axes[0].set_yticks([i + 0.5 for i in range(len(order))], [short_uid(uid) for uid in order], fontsize=7)
    else:
        axes[0].set(ylabel=counted(len(order), "task"))
        axes[0].set_yticks([])
    for line, uid in enumerate(order):
        if mark := marks.get(uid):
            text, ink = ("+", TRAINED) if mark == "gained" else ("−", "#D55E00")
            axes[-1].text(size + 0.25, line + 0.5, text, color=ink, va="center", fontweight="bold", fontsize=9)
    handles = [
        Patch(color="#0072B2", label="passed"),
        Patch(color="#f6dfb4", label="failed"),
        Patch(color="#9a9a9a", label="no verdict"),
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=3)
    return figure


def shares(rows: Mapping[str, Mapping[str, int]], title: str) -> Figure:
    """Stacked shares, one bar per policy: {policy: {reason: count}}. The rarest of many reasons are one."""
    rows, names = with_others(rows)
    figure, axes = _new(9.6, 1.35 + 0.42 * len(rows))
    palette = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")
    hatches = ("", "", "//", "", "..", "\\\\", "", "")
    left = np.zeros(len(rows))
    for number, name in enumerate(names):
        values = np.array([c.get(name, 0) / max(1, sum(c.values())) for c in rows.values()])
        shade = palette[number % len(palette)]
        axes.barh(list(rows), values, left=left, color=shade, edgecolor="white", linewidth=0.8, height=0.68,
                  hatch=hatches[number % len(hatches)], label=name.replace("_", " "))  # fmt: skip
        for y, (start, value) in enumerate(zip(left, values, strict=True)):
            if value >= 0.05:
                box = {"facecolor": shade, "edgecolor": "none", "pad": 0.8}
                axes.text(start + value / 2, y, f"{100 * value:.0f}%", ha="center", va="center", fontsize=8.5,
                          color=_ink_on(shade), bbox=box)  # fmt: skip
        left += values
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), title=title)
    axes.xaxis.set_major_formatter(_percent())
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside lower center", ncols=min(5, len(names)), fontsize=9)
    return figure


MOST_KINDS = 8  # that colours and hatches tell apart


def with_others(rows: Mapping[str, Mapping[str, int]]) -> tuple[dict[str, Counter[str]], list[str]]:
    """The counts with all but the most frequent reasons as `other (n kinds)`, and the reasons, the most frequent first
    and the others last.
    """
    names = [name for name, _ in sum((Counter(c) for c in rows.values()), Counter()).most_common()]
    if len(names) <= MOST_KINDS:
        return {policy: Counter(c) for policy, c in rows.items()}, names
    kept, tail = names[: MOST_KINDS - 1], names[MOST_KINDS - 1 :]
    other = f"other ({len(tail)} kinds)"
    told = {
        p: Counter({**{n: c.get(n, 0) for n in kept}, other: sum(c.get(n, 0) for n in tail)}) for p, c in rows.items()
    }
    return told, [*kept, other]


def times(rows: Sequence[tuple[str, float]], title: str) -> Figure:
    """Bars of seconds, written as minutes or hours where they are long."""
    figure, axes = _new(9.6, 0.75 + 0.3 * len(rows))
    seconds = [value for _, value in rows]
    bars = axes.barh([name for name, _ in rows], seconds, color=TRAINED, height=0.66)
    axes.bar_label(bars, [duration(value) for value in seconds], padding=4, fontsize=9)
    axes.invert_yaxis()
    axes.set(title=title, xlim=(0, max([*seconds, 1e-9]) * 1.14))
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


def series(steps: Mapping[int, Mapping[str, float]], name: str) -> list[tuple[int, float]]:
    return [(step, row[name]) for step, row in steps.items() if name in row and math.isfinite(row[name])]


def outcome_cells(attempts: Attempts, uid: str, size: int) -> list[int]:
    """2 for passed, 1 for failed, 0 for no verdict or no attempt; passed ones first."""
    passed, clean = attempts.passed(uid), attempts.clean(uid)
    return ([2] * passed + [1] * (clean - passed) + [0] * size)[:size]


def beta_density(x: np.ndarray, a: float, b: float) -> np.ndarray:
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return np.asarray(np.exp(scale + (a - 1) * np.log(x) + (b - 1) * np.log1p(-x)))


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def short_uid(uid: str) -> str:
    """The task's own name: what stands behind the file."""
    name = uid.rsplit(":", 1)[-1]
    return name if len(name) <= 34 else name[:33] + "…"


def _new(
    width: float, height: float, *, rows: int = 1, columns: int = 1, squeeze: bool = True, **settings: Any
) -> tuple[Figure, Any]:
    # Without pyplot: no backend to choose, no state that outlives the figure.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=squeeze, **settings)


def _band_style(band: str, kept: frozenset[str]) -> dict[str, Any]:
    return {**_patch_style(band, kept), "linewidth": 0.8}


def _patch_style(band: str, kept: frozenset[str]) -> dict[str, Any]:
    if band not in BAND_COLOURS:  # of a probe that nothing was selected from
        return {"facecolor": PALE, "edgecolor": "white", "hatch": ""}
    shade = BAND_COLOURS[band]
    if band in kept:
        # In grey print `often` would look like `hard`.
        return {"facecolor": shade, "edgecolor": "white", "hatch": ".." if band == "often" else ""}
    return {"facecolor": "white", "edgecolor": shade, "hatch": "////"}


def _trend(axes: Axes, points: Sequence[tuple[int, float]], shade: str, label: str) -> None:
    """The values as thin dots, their running mean as a line."""
    x = np.array([step for step, _ in points], dtype=float)
    y = np.array([value for _, value in points])
    width, smooth = _running_mean(y)
    axes.plot(x, y, color=shade, marker="o", markersize=3, linewidth=0.6, alpha=0.45)
    suffix = f" (line: over {width} updates)" if width > 1 else ""
    axes.plot(x, smooth, color=shade, linewidth=2.2, label=label + suffix)


def _running_mean(y: np.ndarray) -> tuple[int, np.ndarray]:
    """How many neighbours are averaged, and their means."""
    width = max(1, min(5, len(y) // 4))
    kernel = np.ones(width)
    return width, np.convolve(y, kernel, "same") / np.convolve(np.ones_like(y), kernel, "same")


def _dot(axes: Axes, y: float, found: Json, shade: str, marker: str) -> None:
    value, low, high = (found.get(key) for key in ("value", "low", "high"))
    assert value is not None
    if low is not None and high is not None:
        axes.plot([low, high], [y, y], color=shade, linewidth=3.2, alpha=0.55, solid_capstyle="butt")
    axes.plot([value], [y], marker=marker, color=shade, markersize=8, markeredgecolor="white", clip_on=False)
    edge = max(value, high if high is not None else value)
    text = f"{100 * value:.1f}%"
    if edge < 0.9:
        axes.annotate(text, (edge, y), (7, 0), textcoords="offset points", va="center", fontsize=9)
    else:
        start = min(value, low if low is not None else value)
        if start > 0.12:
            axes.annotate(text, (start, y), (-7, 0), textcoords="offset points", va="center", ha="right", fontsize=9)
        else:  # left of it the metric's name stands
            axes.annotate(text, (value, y), (0, 6), textcoords="offset points", va="bottom", ha="center", fontsize=9)


def _rectangle(x: float, y: float, shade: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x + 0.02, y + 0.03), 0.96, 0.94, facecolor=shade, edgecolor="#cccccc", linewidth=0.5)


def _ink_on(shade: Any) -> str:
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(shade)
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else INK


def _percent() -> Any:
    from matplotlib.ticker import PercentFormatter

    return PercentFormatter(1.0, decimals=0)


def _whole_numbers(axes: Axes, axis: str = "y") -> None:
    from matplotlib.ticker import MaxNLocator

    (axes.yaxis if axis == "y" else axes.xaxis).set_major_locator(MaxNLocator(integer=True))
