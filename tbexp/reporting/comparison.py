"""Runs side by side: comparison.html in one file that opens offline, with figures and tables beside it.

Decided here: which sections there are, and what the text and the tables say. Left to others: what is compared with what
and what is warned of (`side_by_side.py`), the tests (evaluation), figures (`comparison_figures.py`), looks (`page.py`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tbexp.config.schema import BANDS
from tbexp.errors import counted
from tbexp.evaluation import Change
from tbexp.evaluation.intervals import share_interval
from tbexp.reporting import comparison_figures as figures
from tbexp.reporting import publication, tables
from tbexp.reporting.figures import band_label, series, style
from tbexp.reporting.page import Section, picture, render
from tbexp.reporting.partial import is_partial
from tbexp.reporting.run_data import Json, RunData, _at
from tbexp.reporting.side_by_side import Comparison, Side, Tested, forecast_and_outcome, shortened
from tbexp.reporting.table_csv import write_csv
from tbexp.reporting.tables import DASH, Cell, Metric, Table

MOST_TASKS = 80  # lines of the figure of tasks
MOST_RUNS = 12  # columns of it
REWARD, MIXED = "train/reward_mean", "train/mixed_group_rate"


def write_comparison(found: Comparison, folder: Path, *, title: str) -> Path:
    """Writes comparison.html, comparison.json, figures/ and tables/ in `folder`; gives the HTML file's path.

    What else lies in `folder` stays.
    """
    fresh = folder / ".new"
    shutil.rmtree(fresh, ignore_errors=True)
    for part in ("figures", "tables"):
        (fresh / part).mkdir(parents=True)
    with style():
        made = [make(found, fresh) for make in (_results, _published, _tests, _tasks, _pools, _training, _settings)]
    sections = [_runs(found), *(section for section in made if section)]
    for section in sections:
        for table in [*section.tables, *section.folded]:
            write_csv(table, fresh / "tables")
    against = found.sides[found.baseline]
    html = render(
        name=title,
        run=folder.name,
        facts=[
            ("runs", str(len(found.runs))),
            ("published models", str(len(found.sides) - len(found.runs))),
            ("baseline", against.label if against.run else DASH),
        ],
        notes=found.warnings,
        faults=[f"{side.letter}: {fault}" for side in found.runs if side.run for fault in side.run.faults],
        sections=sections,
    )
    (fresh / "comparison.html").write_text(html, encoding="utf-8")
    (fresh / "comparison.json").write_text(json.dumps(as_json(found), indent=2) + "\n", encoding="utf-8")
    for made_now in sorted(fresh.iterdir()):
        place = folder / made_now.name
        if place.is_dir():
            shutil.rmtree(place)
        made_now.replace(place)
    fresh.rmdir()
    return folder / "comparison.html"


def as_json(found: Comparison) -> dict[str, Any]:
    """The figures of a comparison as plain values."""
    return {
        "runs": [
            {
                "letter": side.letter,
                "label": side.label,
                **asdict(side.source),
                "published": side.run is None,
                "policy": side.policy,
                "attempts": side.attempts,
                "pool": len(side.pool),
                "figures": {
                    name: {key: _at(values, key) for key in ("pass_at_1", "observed_all_k", "coverage")}
                    | {"partial": is_partial(values)}
                    for name, values in side.figures.items()
                },
            }
            for side in found.sides
        ],
        "baseline": found.sides[found.baseline].letter,
        "tests": [
            {
                "first": found.sides[test.first].letter,
                "second": found.sides[test.second].letter,
                **asdict(test.found),
                "adjusted_p": test.adjusted,
                "partial": bool(found.sides[test.first].partial or found.sides[test.second].partial),
                "remarks": test.remarks,
            }
            for test in found.tests
        ],
        "pool_overlap": [
            {"first": a.letter, "second": b.letter, "both": len(a.pool & b.pool), "either": len(a.pool | b.pool)}
            for i, a in enumerate(found.runs)
            for b in found.runs[i + 1 :]
            if a.pool or b.pool
        ],
        "warnings": list(found.warnings),
    }


def versus(found: Comparison, test: Tested) -> str:
    return f"{found.sides[test.second].letter} − {found.sides[test.first].letter}"


def _runs(found: Comparison) -> Section:
    rows = []
    for number, side in enumerate(found.sides):
        name = side.source.name + (" (baseline)" if number == found.baseline and found.tests else "")
        commit = _at(side.run.manifest, "commit") if side.run else None
        seed = _at(side.run.config, "seed") if side.run else None
        cells = (side.letter, name, side.source.where, str(commit or DASH)[:10], DASH if seed is None else str(seed))
        rows.append(tuple(Cell(cell) for cell in cells))
    table = Table("runs", "What is compared", ("id", "run", "where", "commit", "seed"), tuple(rows))
    return Section("runs", "Runs", tables=[table])


def _results(found: Comparison, out: Path) -> Section | None:
    rows = [(side, name, figures_) for side in found.sides for name, figures_ in side.figures.items()]
    if not rows:
        return None
    sizes = [k for _, _, f in rows if isinstance(k := f.get("attempts"), int)]
    common, unequal = min(sizes, default=0), len(set(sizes)) > 1
    metrics = [
        Metric("pass_at_1", "pass@1"),
        Metric("pass_at_k", f"pass@{common}", str(common)),
        Metric("observed_all_k", "k of k" if unequal else f"{common} of {common}"),
    ]
    costs = [_at(f, "cost", "per_reliable_task_usd") for _, _, f in rows]
    with_cost = any(isinstance(cost, int | float) and cost > 0 for cost in costs)
    lines = []
    same = _same_base(found)
    for (side, name, values), cost in zip(rows, costs, strict=True):
        if name == "base" and side.letter in same[1:]:
            continue
        cells = [Cell(side.label, full=side.full if side.full != side.label else "")]
        cells.append(tables.policy_cell(name, values, bold=name == side.policy and len(side.figures) > 1))
        cells.append(Cell(f"{values.get('tasks', DASH)} × {values.get('attempts', DASH)}"))
        for metric in metrics:
            value = metric.of(values)
            note = tables.interval(value)
            if metric.key == "observed_all_k" and isinstance(value.get("tasks"), int | float):
                note = ", ".join(filter(None, [counted(value["tasks"], "task"), note]))
                note += ", derived from the count" if value.get("derived") else ""
                note += f", k = {values.get('attempts')}" if unequal else ""
            shown, more = value.get("value"), tables.bounds(value, tasks=True)
            more += (("derived", True),) if value.get("derived") else ()
            cells.append(Cell(tables.percent(shown), note=note, value=tables.hundred(shown), more=more))
        if with_cost:
            known = isinstance(cost, int | float)
            dollars = tables.dollars(cost) if known else "∞" if cost == "inf" else DASH
            cells.append(Cell(dollars, value=cost if known else None))
        lines.append(tuple(cells))
    text = []
    if len(same) > 1:
        letters = ", ".join(same)
        text.append(f"The base policy's counts are the same in {letters}: probably the same attempts, shown once.")
    names = ("run", "policy", "tasks × attempts", *(m.label for m in metrics))
    section = Section("results", "Results", text, tables_first=True)
    caption = "Rates in percent; 95% intervals for other tasks of the same kind. The policy in bold stands for its run."
    section.tables.append(
        Table("results", caption, (*names, *(["US$ per reliable task"] if with_cost else [])), tuple(lines))
    )
    if with_cost:
        cautions = [_at(values, "cost", "caution") for _, _, values in rows]
        section.text += dict.fromkeys(str(caution) for caution in cautions if caution)
    shown = [
        (
            side.label
            + (f"  k={side.attempts}" if unequal and side.attempts else "")
            + ("  (partial)" if any(is_partial(values) for values in side.figures.values()) else ""),
            [
                figures.Dot(name, {m.label: m.of(values) for m in metrics}, published=side.run is None)
                for name, values in side.figures.items()
            ],
        )
        for side in found.sides
        if side.figures
    ]
    caption = (
        "Share of attempts that pass (pass@1), of tasks that pass at least once in k attempts (pass@k), and of tasks "
        "that pass every time (k of k). Bars are 95% intervals for other tasks of the same kind; two bars that overlap "
        "may still differ, since the tasks are the same: the paired tests decide."
    )
    if len(found.sides) > len(found.runs):
        caption += " Open diamonds are published, of other runs and without intervals."
    labels = [metric.label for metric in metrics]
    section.pictures.append(picture(out, "results", caption, lambda: figures.results(shown, labels)))
    return section


def _published(found: Comparison, out: Path) -> Section | None:
    """With published models among the runs: the publication's tables for all of them."""
    if len(found.runs) == len(found.sides):
        return None
    return publication.section_of(
        {f"{shortened(side.label)} {name}": f for side in found.runs for name, f in side.figures.items()}, out
    )


def _same_base(found: Comparison) -> list[str]:
    """Letters of the runs whose base policy, standing beside another one, has the counts of the first such run."""
    counts = {
        side.letter: side.tallies["base"].counts
        for side in found.runs
        if "base" in side.tallies and side.policy != "base"
    }
    first = next(iter(counts.values()), None)
    return [letter for letter, mine in counts.items() if mine == first]


def _tests(found: Comparison, out: Path) -> Section | None:
    if not found.tests:
        return None
    section = Section("tests", "Paired tests")
    section.text.append(
        "Each row compares two runs at the tasks that both attempted: the same uid and, where recorded, the same "
        "content. The difference in pass@1 has a 95% bootstrap interval over these tasks, that in k of k Tango's score "
        "interval; k of k is tested by McNemar's exact test on the tasks that only one of the two passed every time."
    )
    if len(found.tests) > 1:
        section.text.append(
            f"{len(found.tests)} tests are made, so some intervals may miss 0 by chance; adjusted p-values (Holm) "
            "allow for the number of tests."
        )
    sizes = {k for test in found.tests for k in test.found.attempts}
    every = f"{max(sizes)} of {max(sizes)}" if len(sizes) == 1 else "k of k"
    rows, drawn = [], []
    for test in found.tests:
        pair = test.found
        counts = None if pair.every is None else (len(pair.gained), len(pair.lost))
        cells = [Cell(versus(found, test)), Cell(str(len(pair.shared)))]
        cells += [_change(pair.pass_at_1, len(pair.shared)), _change(pair.every, len(pair.shared))]
        cells += [Cell(DASH if counts is None else str(count)) for count in counts or (0, 0)]
        cells += [Cell(_p(pair.p)), Cell(_p(test.adjusted)), Cell("; ".join(test.remarks))]
        rows.append(tuple(cells))
        label = f"{versus(found, test)}   {counted(len(pair.shared), 'task')}"
        partial = found.sides[test.first].partial or found.sides[test.second].partial
        label += " (partial)" if partial else ""
        label += " *" if test.remarks else ""
        drawn.append((label, _as_figure(pair.pass_at_1), _as_figure(pair.every), counts))
    columns = (
        "pair",
        "shared tasks",
        "pass@1, points",
        "k of k, points",
        "gained",
        "lost",
        "p",
        "adjusted p",
        "remarks",
    )
    section.tables.append(
        Table("tests", "Differences in points, second run minus first, with 95% intervals", columns, tuple(rows))
    )
    caption = (
        "Filled: the interval leaves out 0. Right: tasks that only the second run passed every time, and (hatched) "
        "only the first."
    )
    if any(test.remarks for test in found.tests):
        caption += " * See the remarks in the table."
    section.pictures.append(picture(out, "tests", caption, lambda: figures.paired(drawn, every)))
    return section


def _tasks(found: Comparison, out: Path) -> Section | None:
    sides = [side for side in found.runs if side.counts is not None]
    if not sides:
        return None
    known: dict[str, list[tuple[int, int] | None]] = {}
    for side in sides:
        for uid in side.counts.counts if side.counts else ():
            known.setdefault(uid, [])
    for uid, mine in known.items():
        mine += [side.counts.counts.get(uid) if side.counts else None for side in sides]
    marks: dict[str, list[str]] = {uid: [""] * len(sides) for uid in known}
    column = {side.letter: place for place, side in enumerate(sides)}
    for test in found.tests:
        if test.first == found.baseline:
            place = column[found.sides[test.second].letter]
            for uids, mark in ((test.found.gained, "+"), (test.found.lost, "−")):
                for uid in uids:
                    marks[uid][place] = mark
    order = sorted(known, key=lambda uid: (-_mean(known[uid]), uid))
    section = Section("tasks", "Tasks gained and lost")
    against = found.sides[found.baseline].letter
    if found.tests:
        gained = {uid for uid in known if "+" in marks[uid]}
        lost = {uid for uid in known if "−" in marks[uid]}
        section.text.append(
            f"Against {against}, {counted(len(gained), 'task')} gained k of k in some run, "
            f"{counted(len(lost), 'task')} lost it in some run, {len(gained & lost)} of them both."
        )
    shown = [uid for uid in order if any(marks[uid])] if len(order) > MOST_TASKS else order
    if 0 < len(shown) <= MOST_TASKS and len(sides) <= MOST_RUNS:
        caption = f"Passed attempts of each task. + gained k of k against {against}, − lost it."
        if len(shown) < len(order):
            caption += f" Shown: {len(shown)} of {counted(len(order), 'task')}, which some run gained or lost."
        columns = [f"{side.letter}\nof {side.attempts}{' *' if side.partial else ''}" for side in sides]
        caption += " * Of a partial evaluation." if any(side.partial for side in sides) else ""
        shares = {uid: known[uid] for uid in shown}
        section.pictures.append(picture(out, "tasks", caption, lambda: figures.tasks(columns, shown, shares, marks)))
    domains = {uid: d for side in sides if side.counts for uid, d in side.counts.domains.items()}
    rows = []
    for uid in order:
        texts = [DASH if cell is None else f"{cell[1]}/{cell[0]}" for cell in known[uid]]
        cells = [Cell(f"{text} {mark}".strip(), bool(mark)) for text, mark in zip(texts, marks[uid], strict=True)]
        rows.append((Cell(uid), Cell(domains.get(uid, "").replace("_", " ")), *cells))
    names = ("task", "topic", *(f"{side.letter} {side.policy}{' (partial)' if side.partial else ''}" for side in sides))
    section.folded.append(Table("tasks", "Passed of attempts that have a verdict", names, tuple(rows)))
    return section


def _pools(found: Comparison, out: Path) -> Section | None:
    sides = [side for side in found.runs if side.run and side.run.tasks]
    if not sides:
        return None
    section = Section("pools", "Pools")
    rows, bars = [], []
    for side in sides:
        assert side.run is not None
        counts = {band: sum(row.get("band") == band for row in side.run.tasks) for band in BANDS}
        forecast, _, _ = forecast_and_outcome(side.run)
        split = [_at(side.run.selection, "summary", part) for part in ("train", "validation")]
        cells = [
            side.letter,
            str(len(side.run.tasks)),
            str(len(side.pool)),
            *(DASH if n is None else str(n) for n in split),
        ]
        cells += [*(str(counts[band]) for band in BANDS), tables.percent(forecast)]
        rows.append(tuple(Cell(cell) for cell in cells))
        bars.append((side.label, counts, side.run.kept_bands))
    names = (
        "run",
        "candidates",
        "pool",
        "train",
        "validation",
        *(band_label(band) for band in BANDS),
        "mixed groups, %",
    )
    section.tables.append(
        Table("pools", "Tasks by band, and the forecast share of groups with passes and failures", names, tuple(rows))
    )
    if len(sides) > 1:
        pools, labels, letters = [s.pool for s in sides], [s.label for s in sides], [s.letter for s in sides]
        caption = (
            "Overlap of pools: the Jaccard index (tasks in both / tasks in either; 1.00: the same pool) and its "
            "counts. On the diagonal: tasks in the pool."
        )
        section.pictures.append(picture(out, "overlap", caption, lambda: figures.overlap(labels, letters, pools)))
        section.folded.append(_overlap_table(sides))
    caption = "Candidates by the band that holds most of their posterior; hatched bands are dropped in that run."
    section.pictures.append(picture(out, "bands", caption, lambda: figures.bands(bars)))
    return section


def _overlap_table(sides: Sequence[Side]) -> Table:
    rows = []
    for i, first in enumerate(sides):
        for second in sides[i + 1 :]:
            both, either = len(first.pool & second.pool), len(first.pool | second.pool)
            cells = (
                f"{first.letter}, {second.letter}",
                *(str(n) for n in (both, either, len(first.pool - second.pool), len(second.pool - first.pool))),
                f"{both / either:.4f}" if either else DASH,
            )
            rows.append(tuple(Cell(cell) for cell in cells))
    names = ("pair", "in both", "in either", "only in the first", "only in the second", "Jaccard")
    return Table("pool_overlap", "Overlap of pools, in tasks", names, tuple(rows))


def _training(found: Comparison, out: Path) -> Section | None:
    sides = [side for side in found.runs if side.run and (side.run.steps or side.run.tasks)]
    trained = [side for side in sides if side.run and series(side.run.steps, MIXED)]
    if not trained:
        return None
    section = Section("training", "Training")
    rows, outcomes, lines = [], [], []
    for side in sides:
        run = side.run
        assert run is not None
        forecast, early, whole = forecast_and_outcome(run)
        if early is None and forecast is None:
            continue
        outcomes.append((side.label, forecast, _share(early), _share(whole)))
        reward = series(run.steps, REWARD)
        edge = max(1, len(reward) // 5)
        first, last = (_average(part) for part in (reward[:edge], reward[-edge:]))
        replaced = sum(v for _, v in series(run.steps, "train/refilled/zero_variance"))
        cells = [Cell(side.letter), Cell(str(len(reward) or DASH)), Cell(_chosen(run))]
        cells += [Cell(DASH if first is None else f"{first:.2f}"), Cell(DASH if last is None else f"{last:.2f}")]
        cells += [Cell(tables.percent(forecast)), _cell(_share(early)), _cell(_share(whole))]
        cells.append(Cell(f"{replaced:,.0f}" if reward else DASH))
        rows.append(tuple(cells))
        if reward:
            points = {name: series(run.steps, name) for name in (REWARD, MIXED)}
            lines.append(figures.Step(side.label, points, run.chosen_step))
    names = ("run", "updates", "chosen update", "reward at first", "reward at last", "mixed forecast, %",
             "mixed at first, %", "mixed in all, %", "groups replaced")  # fmt: skip
    caption = "At first and at last: the first and the last fifth of the updates. Replaced: groups of equal rewards"
    section.tables.append(Table("training", caption, names, tuple(rows)))
    section.text.append(
        "The forecast is made from the probe, for the policy before training; training changes the policy, so the "
        "first updates are its fair test, and the share over all updates shows how the signal lasts."
    )
    caption = "Groups that hold passes and failures: forecast from the probe, and what happened, with 95% intervals."
    section.pictures.append(picture(out, "forecast", caption, lambda: figures.forecasts(outcomes)))
    caption = "Running means over updates; a star marks the checkpoint that was chosen."
    panels = ((REWARD, "Mean reward", "share passed"), (MIXED, "Groups that carry signal", "share of groups"))
    if lines:
        section.pictures.append(picture(out, "curves", caption, lambda: figures.curves(lines, panels)))
    return section


def _settings(found: Comparison, out: Path) -> Section | None:
    if len(found.runs) < 2:
        return None
    section = Section("settings", "Settings that differ")
    if not found.settings:
        section.text.append("No recorded setting differs.")
        return section
    rows = []
    for key, values in found.settings:
        cells = [Cell(value) if len(value) <= 60 else Cell(value[:59] + "…", full=value) for value in values]
        rows.append((Cell(key), *cells))
    names = ("setting", *(side.letter for side in found.runs))
    section.tables.append(Table("settings", "Names of options, places and trackers are left out", names, tuple(rows)))
    return section


def _change(change: Change | None, shared: int) -> Cell:
    if change is None:
        return Cell(DASH)
    note = tables.interval({"low": change.low, "high": change.high}, signed=True)
    note = note or ("all tasks alike" if change.value else "no task changed")
    note += "" if change.tasks == shared else f", {counted(change.tasks, 'task')}"
    more = (*tables.bounds(_as_figure(change)), ("tasks", change.tasks))
    return Cell(tables.points(change.value), note=note, value=100 * change.value, more=more)


def _as_figure(change: Change | None) -> Json:
    return {} if change is None else {"value": change.value, "low": change.low, "high": change.high}


def _share(groups: tuple[float, float] | None) -> Json | None:
    if groups is None:
        return None
    low, high = share_interval(*groups)
    return {"value": groups[0] / groups[1], "low": low, "high": high}


def _cell(found: Json | None) -> Cell:
    if found is None:
        return Cell(DASH)
    value = found["value"]
    return Cell(
        tables.percent(value), note=tables.interval(found), value=tables.hundred(value), more=tables.bounds(found)
    )


def _p(p: float | None) -> str:
    return DASH if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _chosen(run: RunData) -> str:
    return DASH if run.chosen_step is None else str(run.chosen_step)


def _average(points: Sequence[tuple[int, float]]) -> float | None:
    return sum(value for _, value in points) / len(points) if points else None


def _mean(cells: Sequence[tuple[int, int] | None]) -> float:
    rates = [cell[1] / cell[0] for cell in cells if cell is not None and cell[0]]
    return sum(rates) / len(rates) if rates else 0.0


__all__ = ["as_json", "versus", "write_comparison"]
