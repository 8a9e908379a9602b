"""The report of one run: report/report.html in one file that opens offline, with figures and tables beside it.

Decided here: which sections there are, in which order, and what the text says. What exists in the run folder is shown,
what does not is named. A fall is told as plainly as a rise. Left to others: reading (`run_data.py`), figures, tables,
and the looks (`report.html.j2`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from tbexp.config.deciding import deciding_values
from tbexp.config.schema import BANDS
from tbexp.errors import counted
from tbexp.reporting import costs, endings, figures, forecast, tables
from tbexp.reporting.page import Section, picture, render
from tbexp.reporting.partial import covered, covered_share, is_partial, percent_of
from tbexp.reporting.run_data import Json, RunData, _at, read_run
from tbexp.reporting.table_csv import write_csv
from tbexp.reporting.task_pages import made_of, write_task_pages

MADE_OF = "made_of.sha256"


def is_current(run_dir: Path) -> bool:
    """Whether the report in `run_dir` shows what is there now."""
    made_of, page = run_dir / "report" / MADE_OF, run_dir / "report" / "report.html"
    return page.exists() and made_of.exists() and made_of.read_text(encoding="utf-8") == digest(read_run(run_dir))


def write_report(run_dir: Path) -> Path:
    """Writes report/ in `run_dir` from what is there, and gives the HTML file's path."""
    run = read_run(run_dir)
    folder = run_dir / "report"
    fresh = run_dir / ".report.new"
    shutil.rmtree(fresh, ignore_errors=True)
    for part in ("figures", "tables"):
        (fresh / part).mkdir(parents=True)
    with figures.style():
        sections = [
            make(run, fresh)
            for make in (
                _results,
                costs.section_of,
                _topics,
                _tasks,
                _published,
                _pool,
                _probe,
                _training,
                forecast.section_of,
                endings.section_of,
                endings.time_section_of,
            )
        ]
    for section in sections:
        for table in [*section.tables, *section.folded] if section else []:
            write_csv(table, fresh / "tables")
    pages = write_task_pages(run, fresh)
    html = _render(run, [section for section in sections if section], [("tasks.html", "Every task")] if pages else [])
    (fresh / "report.html").write_text(html, encoding="utf-8")
    (fresh / MADE_OF).write_text(digest(run), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    return folder / "report.html"


def digest(run: RunData) -> str:
    """Hash of all that a report shows but the stages' seconds, which grow whenever a finished run is started again,
    settings that decide no result, and the place of the folder; of what is in the manifest whether the run has ended
    since or not.
    """

    def plain(value: Any) -> Any:
        return {f.name: getattr(value, f.name) for f in fields(value)} if is_dataclass(value) else str(value)

    shown = plain(run) | {
        "folder": [run.folder.parent.name, run.folder.name],
        "config": deciding_values(run.config),
        "config_text": bool(run.config_text),
        "manifest": {key: value for key, value in run.manifest.items() if key not in ("stages", "finished")},
        "pages": made_of(run),
    }
    return hashlib.sha256(json.dumps(shown, sort_keys=True, default=plain).encode()).hexdigest()


def _results(run: RunData, out: Path) -> Section | None:
    table = tables.headline(run)
    if table is None:
        return None
    section = Section("results", "Before and after" if _both(run) else "Results", tables_first=True)
    policies = tables.summary_policies(run)
    wanted = tables.metrics(run)
    rows = [(m.label, {name: m.of(p) for name, p in policies.items()}) for m in wanted]
    section.text += [*_sentences(run), *_paired(run), *_overlap(run)]
    more = (tables.certainty_table(run), tables.claims_table(run), tables.verdict_table(run))
    section.tables += [table, *(t for t in more if t)]
    caption = (
        "Share of attempts that pass (pass@1), of tasks that pass at least once, and of tasks that pass every time. "
        "Bars are 95% intervals."
    )
    labels = tables.labels(run)
    section.pictures.append(picture(out, "before_after", caption, lambda: figures.before_after(rows, labels)))
    curves = {name: found for name, p in policies.items() if len(found := _curves(p)[0]) > 2}
    if curves:
        lines = {name: _curves(policies[name]) for name in curves}
        caption = (
            "Solid: share of tasks that pass at least once in k attempts (pass@k). Dashed: share that pass k of k. "
            "The wider the gap, the less a single pass says. 95% intervals for other tasks of the same kind; shaded: "
            "by bootstrap over tasks; bars: Jeffreys' of a count of tasks, where each task's figure is 0 or 1. From "
            "shade to bar the method changes, not the policy."
        )
        section.pictures.append(picture(out, "pass_at_k", caption, lambda: figures.repeats(lines, labels)))
    return section


def _topics(run: RunData, out: Path) -> Section | None:
    table = tables.topic_table(run)
    if table is None:
        return None
    section = Section("topics", "By topic", tables=[table])
    heat = tables.by_topic(run)
    if heat:
        names, blocks = heat
        labels, sides = [name.replace("_", " ") for name in names], tables.labels(run)
        falls = [
            f"{label} ({title} {tables.points(line[2])} points)"
            for title, lines in blocks
            for label, line in zip(labels, lines, strict=True)
            if line[2] is not None and line[2] < 0
        ]
        section.text.append("Falls: " + "; ".join(falls) + "." if falls else "No topic falls in any of the metrics.")
        caption = "Rates in percent, changes in points. Blue: higher; brown: lower."
        section.pictures.append(picture(out, "topics", caption, lambda: figures.topics(labels, blocks, sides)))
        section.folded, section.tables = section.tables, []
    section.folded = [*section.folded, *tables.group_tables(run)]
    return section


def _tasks(run: RunData, out: Path) -> Section | None:
    if not _both(run):
        return _strips(run, out)
    before, after = run.policies["base"], run.policies["trained"]
    found = tables.changes(before, after, tables.size(run))
    size = found.size
    text = (
        f"Tasks that pass {size} of {size}: {len(found.gained)} gained, {len(found.lost)} lost. Tasks that pass at "
        f"least once: {len(found.reached)} gained, {len(found.dropped)} lost. Compared: "
        f"{counted(found.compared, 'task')} with all {size} attempts on both sides."
    )
    order = sorted({*before.outcomes, *after.outcomes}, key=lambda u: (-after.passed(u), -before.passed(u), u))
    marks = dict.fromkeys(found.gained, "gained") | dict.fromkeys(found.lost, "lost")
    caption = (
        "Each line is a task, sorted by passes after training, then before. "
        f"+ marks a task that now passes {size} of {size}, − one that no longer does."
    )
    section = Section("tasks", "Tasks gained and lost", [text])
    section.pictures.append(
        picture(
            out,
            "strips",
            caption,
            lambda: figures.strips({"base": before, "trained": after}, order, marks, size, tables.labels(run)),
        )
    )
    table = tables.change_table(found, before, after)
    if table.rows:
        (section.tables if len(table.rows) <= 16 else section.folded).append(table)
    return section


def _strips(run: RunData, out: Path) -> Section | None:
    """Of one policy, or of several that are not before and after."""
    if not run.policies:
        return None
    size = max(tables.size(run), *(attempts.size for attempts in run.policies.values()))
    uids = {uid for attempts in run.policies.values() for uid in attempts.outcomes}
    order = sorted(uids, key=lambda uid: (*(-attempts.passed(uid) for attempts in run.policies.values()), uid))
    caption = "Each line is a task, sorted by passes."
    section = Section("tasks", "Task by task")
    section.pictures.append(
        picture(out, "strips", caption, lambda: figures.strips(run.policies, order, {}, size, tables.labels(run)))
    )
    return section


def _published(run: RunData, out: Path) -> Section | None:
    from tbexp.reporting import publication

    return publication.section_of(tables.summary_policies(run), out)


def _pool(run: RunData, out: Path) -> Section | None:
    if not run.tasks:
        return None
    section = Section("pool", "The pool")
    kept = sum(bool(row.get("kept")) for row in run.tasks)
    clean = sum(int(row.get("clean") or 0) for row in run.tasks)
    section.text.append(
        f"{counted(len(run.tasks), 'task')} with {clean:,} probe attempts that have a verdict; {kept} in the "
        "pool. A task's posterior is Jeffreys' Beta(passes + ½, failures + ½); the band that holds most of it decides."
    )
    section.text += _probing(run)
    expected = _forecast(run)
    if expected is not None:
        section.text.append(
            f"By these posteriors {100 * expected:.0f}% of the pool's groups are expected to hold passes and failures."
        )
    if any(row.get("clean") for row in run.tasks):
        caption = (
            "Left: how many tasks passed how often; hatched bands are dropped. Right: the posterior of each number of "
            "passes that occurs, thicker where more tasks have it."
        )
        section.pictures.append(
            picture(out, "bands", caption, lambda: figures.bands(run.tasks, run.edges, run.kept_bands))
        )
    section.tables += [t for t in (tables.band_table(run), tables.reason_table(run)) if t]
    return section


def _probe(run: RunData, out: Path) -> Section | None:
    """Of a probe that nothing was selected from."""
    if run.probe is None or run.tasks:
        return None
    probe = run.probe
    counts = [{"clean": clean, "passed": probe.passed(uid)} for uid in probe.outcomes if (clean := probe.clean(uid))]
    clean, passed = (sum(row[name] for row in counts) for name in ("clean", "passed"))
    section = Section("probe", "The probe")
    section.text.append(
        f"{counted(len(probe.outcomes), 'task')} with {counted(clean, 'attempt')} with a verdict"
        + (f"; {100 * passed / clean:.1f}% of them passed." if clean else ".")
    )
    if counts:
        caption = (
            "Left: how many tasks passed how often. Right: the posterior of each number of passes that occurs, thicker "
            "where more tasks have it, over the bands."
        )
        section.pictures.append(
            picture(out, "bands", caption, lambda: figures.bands(counts, run.edges, frozenset(BANDS)))
        )
    return section


def _probing(run: RunData) -> list[str]:
    """What an adaptive probe saved, and what the reference's screen did."""
    found, facts = [], run.manifest.get("facts")
    probe, reference = _at(facts, "probe"), _at(facts, "reference")
    if _at(probe, "kind") == "adaptive":
        found.append(
            f"Adaptive probing took {counted(probe['attempts'], 'attempt')} and saved "
            f"{100 * probe['attempts_saved_share']:.0f}% of the full probe: "
            f"{counted(probe['stopped_early'], 'task')} stopped early"
            + (f", {probe['extended']} got more attempts than that." if probe["extended"] else ".")
        )
    if reference:
        found.append(
            f"The reference {reference['model']} solves {reference['solvable']} of {reference['tasks']} candidates "
            f"({counted(reference['attempts'], 'attempt')}, {100 * reference['pass_rate']:.0f}% passed); the others "
            "were never probed."
        )
    return found


def _training(run: RunData, out: Path) -> Section | None:
    if not run.steps:
        return None
    section = Section("training", "Training")
    reward = figures.series(run.steps, "train/reward_mean")
    mixed = figures.series(run.steps, "train/mixed_group_rate")
    text = counted(len(reward or run.steps), "update")
    if reward:
        edge = max(1, len(reward) // 5)
        first, last = (sum(v for _, v in part) / len(part) for part in (reward[:edge], reward[-edge:]))
        text += f"; the mean reward goes from {first:.2f} (first {edge}) to {last:.2f} (last {edge})"
    if mixed:
        share = sum(v for _, v in mixed) / len(mixed)
        text += f"; in the mean update {100 * share:.0f}% of the groups held passes and failures"
    section.text.append(text + ".")
    refilled = [
        f"{counted(round(sum(v for _, v in found)), 'group')} for {reason}"
        for name, reason in (("zero_variance", "equal rewards"), ("system_error_groups", "system errors"))
        if (found := figures.series(run.steps, f"train/refilled/{name}"))
    ]
    if refilled:
        section.text.append("Replaced: " + ", ".join(refilled) + ".")
    if run.chosen_step is None:
        section.text.append("Which checkpoint was chosen is not recorded.")
    else:
        which = f"The checkpoint of update {run.chosen_step}" if run.chosen_step else "The untrained policy"
        section.text.append(f"{which} was chosen on the validation tasks.")
    caption = "Dots are single updates; the reward is the mean over the attempts of an update."
    section.pictures.append(
        picture(out, "training", caption, lambda: figures.training(run.steps, run.chosen_step, _forecast(run)))
    )
    return section


def _sentences(run: RunData) -> list[str]:
    """One sentence per metric: where it went, by how much, how sure."""
    policies = tables.summary_policies(run)
    if not {"base", "trained"} <= policies.keys():
        return []
    difference = run.summary.get("difference") or {}
    sentences = []
    for metric in tables.metrics(run):
        before, after = (metric.of(policies[name]).get("value") for name in ("base", "trained"))
        if before is None or after is None:
            continue
        found = metric.of(difference)
        low, high = found.get("low"), found.get("high")
        change = after - before
        verb = "rises" if change > 0 else "falls" if change < 0 else "stays"
        way = f"from {100 * before:.1f}% to {100 * after:.1f}%" if change else f"at {100 * after:.1f}%"
        sentence = f"{metric.subject} {verb} {way} ({tables.points(change)} points"
        if tables.is_still(found):
            sentence += "; no task changed)"
        elif low is not None and high is not None:
            paired = found.get("value")
            if paired is not None and tables.points(paired) != tables.points(change):  # of the tasks that both have
                sentence += f"; paired {tables.points(paired)}"
            sentence += f", 95% interval of the paired difference {tables.interval(found, signed=True)}"
            sentence += ", which includes 0)" if low <= 0 <= high else ")"
        else:
            sentence += ")"
        if metric.key == "pass_at_k" and change < 0:
            sentence += ": fewer tasks are solved at least once than before"
        sentences.append(sentence + ".")
    return sentences


def _paired(run: RunData) -> list[str]:
    """Tasks that only one policy passes every time, and how surely that is no chance."""
    found = run.summary.get("difference")
    gained, lost = (_at(found, name) for name in ("gained", "lost"))
    tests = _at(found, "mcnemar")
    if not isinstance(gained, list) or not isinstance(lost, list) or not tests:
        return []
    each = [tests] if isinstance(tests, Mapping) else list(tests)
    of = ", one for each seed" if len(each) > 1 else ""
    p = ", ".join("unknown" if p is None else "< 0.001" if p < 0.001 else f"= {p:.3f}" for p in (t["p"] for t in each))
    after, before = _at(found, "of") or ("trained", "base")
    compared, tasks = _at(found, "compared"), _at(run.summary, "policies", after, "tasks")
    some = isinstance(compared, int) and isinstance(tasks, int) and compared < tasks
    which = f"the {compared} of {tasks} tasks that have all attempts on both sides" if some else "the same tasks"
    return [
        f"Tasks passed every time: {len(gained)} gained by {after}, {len(lost)} lost against {before} "
        f"(exact McNemar test on {which}{of}: p {p})."
    ]


def _curves(policy: Json) -> tuple[list[tuple[int, Json]], list[tuple[int, Json]]]:
    """pass@k and its counterpart, k of k, by rising k."""

    def points(key: str) -> list[tuple[int, Json]]:
        found = policy.get(key)
        values = found.items() if isinstance(found, Mapping) else []
        return sorted((int(k), v) for k, v in values if str(k).isdigit() and isinstance(_at(v, "value"), int | float))

    return points("pass_at_k"), points("pass_power_k")


def _partial(run: RunData) -> list[str]:
    return [
        f"Partial: {name} has a verdict for {percent_of(share)} of its attempts only. Covered: {covered(figures_)}."
        for name, figures_ in tables.summary_policies(run).items()
        if (share := covered_share(figures_)) is not None and is_partial(figures_)
    ]


def _forecast(run: RunData) -> float | None:
    """The pool's expected share of mixed groups: as selection wrote it, else the mean over the pool."""
    for path in (("summary", "forecast", "mixed_rate"), ("forecast", "mixed_rate")):
        value = _at(run.selection, *path)
        if isinstance(value, int | float):
            return float(value)
    values = [v for row in run.tasks if row.get("kept") and isinstance(v := row.get("mixed_probability"), int | float)]
    return sum(values) / len(values) if values else None


def _both(run: RunData) -> bool:
    return {"base", "trained"} <= run.policies.keys()


def _missing(run: RunData) -> list[str]:
    there = {
        "probe": run.probe is not None,
        "select": bool(run.tasks),
        "train": bool(run.steps),
        "evaluate": bool(tables.summary_policies(run)),
    }
    missing = [name for name, exists in there.items() if not exists]
    begun = "evaluate (attempts are there, its summary is not)"
    return [begun if name == "evaluate" and run.policies else name for name in missing]


def _overlap(run: RunData) -> list[str]:
    """What pool and held-out tasks share, and which held-out queries are near-equal to one of the pool."""
    found = run.manifest.get("overlap")
    if not isinstance(found, Mapping) or not isinstance(found.get("text"), str):
        return []
    pairs = [f"{one} ~ {other} ({score:.2f})" for one, other, score in found.get("near") or ()]
    named = f" The nearest: {', '.join(pairs[:5])}." if pairs else ""
    return [f"Overlap of pool and held-out tasks: {found['text']}.{named}"]


def _marks(run: RunData) -> list[str]:
    """What makes the figures incomparable with others."""
    searches = [p.get("search") for p in tables.summary_policies(run).values()]
    if "embedded" in searches or _at(run.config, "sandbox", "search") == "embedded":
        return ["Search: embedded. The servers' knowledge search was tbexp's own; no figure here is comparable with "
                "published ones."]  # fmt: skip
    return []


def _facts(run: RunData) -> list[tuple[str, str]]:
    """The settings that a reader asks for first, of what was done."""
    rows = _at(run.config, "probe", "rows")
    chat = _at(run.config, "policy", "kind") == "chat"
    wanted: list[tuple[str, tuple[str, ...]]] = []
    if not rows:
        wanted.append(("policy", ("policy", "endpoint", "model")) if chat else ("model", ("model", "name")))
    wanted.append(("tasks", ("tasks", "root") if _at(run.config, "tasks", "root") else ("tasks", "name")))
    if not rows:
        wanted.append(("probe attempts", ("probe", "attempts")))
    if run.steps:
        wanted += [
            ("group size", ("group", "size")),
            ("groups per update", ("group", "groups_per_update")),
            ("updates", ("training", "steps")),
            ("learning rate", ("optimizer", "lr")),
        ]
    if run.summary:
        wanted.append(("evaluation attempts", ("evaluation", "attempts")))
    wanted.append(("seed", ("seed",)))
    found = [(label, _at(run.config, *path)) for label, path in wanted]
    facts = [(label, str(value)) for label, value in found if value is not None]
    if rows:
        facts.insert(0, ("rows", ", ".join(Path(str(file)).name for file in rows)))
    commit = run.manifest.get("commit")
    if isinstance(commit, str):  # a + behind it: the checkout had been changed
        facts.append(("commit", commit[:10] + ("+" if commit.endswith("+") else "")))
    return facts


def _render(run: RunData, sections: list[Section], links: list[tuple[str, str]]) -> str:
    versions: Any = run.manifest.get("versions")
    return render(
        name=str(run.config.get("name") or run.folder.parent.name),
        run=run.folder.name,
        facts=_facts(run),
        notes=[*run.changed, *_partial(run), *run.notes, *_marks(run)],
        faults=run.faults,
        missing=_missing(run),
        sections=sections,
        versions=sorted(versions.items()) if isinstance(versions, dict) else [],
        config=run.config_text,
        links=links,
    )
