"""How attempts ended, and where the run's time went: two sections of the report."""

from __future__ import annotations

from pathlib import Path

from tbexp.config.schema import STAGES
from tbexp.errors import counted
from tbexp.reporting import figures, tables
from tbexp.reporting.page import Section, picture
from tbexp.reporting.run_data import Attempts, RunData


def section_of(run: RunData, out: Path) -> Section | None:
    sources = {tables.labels(run).get(name, name): attempts for name, attempts in _sources(run).items()}
    if not sources:
        return None
    section = Section("endings", "How attempts end")
    finish = {
        name: dict(attempts.finish) for name, attempts in sources.items() if set(attempts.finish) - {"not recorded"}
    }
    if finish:
        caption = "Attempts that have a verdict, by why the conversation ended."
        section.pictures.append(picture(out, "endings", caption, lambda: figures.shares(finish, "Finish reasons")))
    table = tables.error_table(sources)
    if table:
        section.tables.append(table)
    else:
        section.text.append("No try of any attempt ended in a system error.")
    return section


def time_section_of(run: RunData, out: Path) -> Section | None:
    stages = sorted(run.stage_seconds.items(), key=lambda item: (*STAGES, item[0]).index(item[0]))
    parts: dict[str, float] = {}
    for row in run.steps.values():
        for name, value in row.items():
            if name.startswith("train/seconds/") and name != "train/seconds/step":
                part = name.removeprefix("train/seconds/").replace("_", " ")
                parts[part] = parts.get(part, 0.0) + value
    sources = _sources(run)
    if not stages and not parts and not sources:
        return None
    section = Section("time", "Where the time went")
    if stages:
        caption = f"Wall time, {figures.duration(sum(s for _, s in stages))} in all."
        section.pictures.append(picture(out, "time_stages", caption, lambda: figures.times(stages, "Stages")))
        section.folded.append(tables.time_table(stages))
    else:
        section.text.append("The stages' wall times are not recorded.")
    if parts:
        caption = "Sums over all updates."
        longest_first = sorted(parts.items(), key=lambda item: -item[1])
        section.pictures.append(
            picture(out, "time_training", caption, lambda: figures.times(longest_first, "Inside training"))
        )
    for name, attempts in sources.items():
        section.text.append(
            f"{name}: {counted(attempts.total, 'attempt')} took {figures.duration(attempts.seconds)} one by one "
            f"({figures.duration(attempts.seconds / max(1, attempts.total))} each, many at a time) and "
            f"{attempts.tokens:,} tokens of the policy."
        )
    return section


def _sources(run: RunData) -> dict[str, Attempts]:
    first = {"reference": run.reference, "probe": run.probe}
    return {name: attempts for name, attempts in first.items() if attempts} | run.policies
