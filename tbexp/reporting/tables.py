"""The report's tables: their form, and what stands in them.

Decided here: which comparison is put beside which, and that the best figure of a column is bold. Intervals are taken
from summary.json, never made here; what is only counted (tasks gained and lost) is counted from the attempts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tbexp.config.schema import BANDS
from tbexp.errors import counted
from tbexp.reporting.figures import band_label, duration
from tbexp.reporting.partial import covered, covered_share, is_partial, marked, whole_tasks
from tbexp.reporting.run_data import Attempts, Json, RunData, _at

DASH = "–"


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    bold: bool = False
    note: str = ""  # small, behind the text
    underlined: bool = False
    value: float | None = None  # of the CSV, where the text is no number that a program reads
    more: tuple[tuple[str, float | bool], ...] = ()  # the note's figures: columns of their own in the CSV
    named: bool = False  # the text is a name, and keeps its column beside those of `more`
    full: str = ""  # what the text is short for: shown on pointing at it, and in the CSV


@dataclass(frozen=True, slots=True)
class Table:
    name: str  # of its CSV file
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """A headline metric as summary.json has it. key: under a policy and under `difference`."""

    key: str
    label: str
    size: str | None = None  # the k of pass@k

    @property
    def subject(self) -> str:
        """The metric as the subject of a sentence."""
        return f"The share of tasks that pass {self.label}" if self.key == "observed_all_k" else self.label

    def of(self, figures: Any) -> Json:
        found = _at(figures, self.key)
        if self.size is not None and isinstance(found, Mapping) and "value" not in found:
            found = found.get(self.size)
        return found if isinstance(found, Mapping) else {"value": found} if isinstance(found, int | float) else {}


def metrics(run: RunData) -> list[Metric]:
    """pass@1, pass@k and observed k/k, k being the number of attempts."""
    k = max([size(run), *(a.size for a in run.policies.values())])
    return [
        Metric("pass_at_1", "pass@1"),
        Metric("pass_at_k", f"pass@{k}", str(k)),
        Metric("observed_all_k", f"{k} of {k}"),
    ]


def size(run: RunData) -> int:
    """Attempts per task that the figures are of, also where no task has them all; 0 without figures."""
    policies = summary_policies(run)
    sizes = [int(k) for p in policies.values() for k in (_at(p, "pass_at_k") or {}) if str(k).isdigit()]
    return max([*sizes, *(a for p in policies.values() if isinstance(a := p.get("attempts"), int))], default=0)


def labels(run: RunData) -> dict[str, str]:
    """Policies as figures name them."""
    return {name: marked(name, figures) for name, figures in summary_policies(run).items()}


def policy_cell(name: str, figures: Json, *, bold: bool = False) -> Cell:
    """A policy's name; of a partial evaluation what it covers, in the CSV its coverage in percent in any case."""
    partial, share, whole = is_partial(figures), covered_share(figures), whole_tasks(figures)
    more: list[tuple[str, float | bool]] = [] if share is None else [("coverage", 100 * share)]
    if partial:
        more += [] if whole is None else [("complete tasks", whole[0])]
        more.append(("partial", True))
    return Cell(name, bold, f"partial: {covered(figures)}" if partial else "", more=tuple(more), named=True)


def summary_policies(run: RunData) -> dict[str, Json]:
    found = run.summary.get("policies")
    return {str(k): v for k, v in found.items() if isinstance(v, Mapping)} if isinstance(found, Mapping) else {}


def headline(run: RunData) -> Table | None:
    policies = summary_policies(run)
    if not policies:
        return None
    columns = metrics(run)
    costs = {name: _at(p, "cost", "per_reliable_task_usd") for name, p in policies.items()}
    with_cost = any(
        (isinstance(cost, int | float) and cost > 0) or (cost == "inf" and (_at(p, "cost", "campaign_usd") or 0) > 0)
        for cost, p in zip(costs.values(), policies.values(), strict=True)
    )
    best = {
        m.label: max((v for p in policies.values() if (v := m.of(p).get("value")) is not None), default=None)
        for m in columns
    }
    cheapest = min((c for c in costs.values() if isinstance(c, int | float)), default=None)
    rows = []
    for name, figures in policies.items():
        cells = [policy_cell(name, figures)]
        cells += [Cell(_count(figures.get("tasks"))), Cell(_count(figures.get("clean_attempts")))]
        for metric in columns:
            found = metric.of(figures)
            value = found.get("value")
            note = interval(found)
            if metric.key == "observed_all_k" and isinstance(found.get("tasks"), int | float):
                note = counted(found["tasks"], "task") + (f", {note}" if note else "")
            leads = value is not None and value == best[metric.label] and len(policies) > 1
            cells.append(Cell(percent(value), leads, note, value=hundred(value), more=bounds(found, tasks=True)))
        if with_cost:
            cost = costs[name]
            known = isinstance(cost, int | float)
            cells.append(
                Cell(
                    dollars(cost) if known else "∞" if cost == "inf" else DASH,
                    known and cost == cheapest and len(policies) > 1,
                    value=cost if known else None,
                )
            )
        rows.append(tuple(cells))
    difference = run.summary.get("difference")
    if isinstance(difference, Mapping) and difference:
        partial = any(is_partial(figures) for figures in policies.values())
        more = (("partial", True),) if partial else ()
        cells = [Cell("trained − base", note="partial" if partial else "", more=more, named=True), Cell(""), Cell("")]
        for metric in columns:
            found = metric.of(difference)
            if found.get("value") is None and {"base", "trained"} <= policies.keys():
                after, before = (metric.of(policies[name]).get("value") for name in ("trained", "base"))
                found = {"value": after - before} if after is not None and before is not None else {}
            value = found.get("value")
            note = interval(found, signed=True) or ("no task changed" if is_still(found) else "")
            cells.append(Cell(points(value), False, note, value=hundred(value), more=bounds(found)))
        rows.append((*cells, Cell("")) if with_cost else tuple(cells))
    names = (
        "policy",
        "tasks",
        "attempts",
        *(m.label for m in columns),
        *(["US$ per reliable task"] if with_cost else []),
    )
    return Table(
        "headline",
        "Rates in percent, differences in points; 95% intervals for another set of tasks of the same kind: of pass@1 "
        "and its difference by bootstrap over tasks, of a share of tasks Jeffreys', of the difference of two such "
        "shares Tango's score interval",
        names,
        tuple(rows),
    )


def by_topic(run: RunData) -> tuple[list[str], list[tuple[str, list[list[float | None]]]]] | None:
    """Topics, and for each metric one line [base, trained, change] per topic."""
    policies = summary_policies(run)
    before, after = (_by_topic(policies.get(name)) for name in ("base", "trained"))
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return None
    names = sorted({*before, *after})
    blocks = []
    for metric in metrics(run):
        lines: list[list[float | None]] = []
        for name in names:
            first, second = (metric.of(side.get(name)).get("value") for side in (before, after))
            lines.append([first, second, second - first if first is not None and second is not None else None])
        blocks.append((metric.label, lines))
    return names, blocks


def _by_topic(policy: Any) -> Json | None:
    """Figures by topic where tasks have one, else by domain."""
    found = _at(policy, "by_topic") or _at(policy, "by_domain")
    return found if isinstance(found, Mapping) else None


def topic_table(run: RunData) -> Table | None:
    """For one policy alone, or as the CSV of the heat map."""
    policies = {name: found for name, p in summary_policies(run).items() if (found := _by_topic(p))}
    return _rates_by("topics", "topic", policies, run) if policies else None


def group_tables(run: RunData) -> list[Table]:
    """By scenario and by tag, where the tasks have several."""
    found = []
    for grouping in ("scenario", "tag"):
        policies = {name: by for name, p in summary_policies(run).items() if (by := _at(p, f"by_{grouping}"))}
        if len({label for by in policies.values() for label in by}) > 1:
            found.append(_rates_by(f"{grouping}s", grouping, policies, run))
    return found


def _rates_by(file: str, what: str, policies: Mapping[str, Json], run: RunData) -> Table:
    columns, shown = metrics(run), [labels(run)[name] for name in policies]
    topics = sorted({topic for by in policies.values() for topic in by})
    rows = []
    for topic in topics:
        cells = [Cell(topic.replace("_", " "))]
        for metric in columns:
            values = [metric.of(by.get(topic)).get("value") for by in policies.values()]
            top = max((v for v in values if v is not None), default=None)
            leads = len({v for v in values if v is not None}) > 1
            cells += [Cell(percent(v), leads and v == top, value=hundred(v)) for v in values]
        rows.append(tuple(cells))
    names = [what, *(f"{m.label} {name}" for m in columns for name in shown)]
    return Table(file, f"Rates by {what}, in percent", tuple(names), tuple(rows))


@dataclass(frozen=True, slots=True)
class Changes:
    """Tasks whose standing changed. Only tasks with all attempts on both sides are compared."""

    size: int
    compared: int
    gained: tuple[str, ...]  # every attempt passes now, not before
    lost: tuple[str, ...]
    reached: tuple[str, ...]  # at least one attempt passes now, none before
    dropped: tuple[str, ...]


def changes(before: Attempts, after: Attempts, size: int = 0) -> Changes:
    size = max(size, before.size, after.size)
    both = [u for u in sorted(before.outcomes) if before.clean(u) == after.clean(u) == size]
    was = {u: before.passed(u) for u in both}
    now = {u: after.passed(u) for u in both}
    return Changes(
        size,
        len(both),
        tuple(u for u in both if now[u] == size > was[u]),
        tuple(u for u in both if was[u] == size > now[u]),
        tuple(u for u in both if now[u] > 0 == was[u]),
        tuple(u for u in both if was[u] > 0 == now[u]),
    )


def change_table(found: Changes, before: Attempts, after: Attempts) -> Table:
    rows = []
    kinds = (
        (f"gained: now {found.size} of {found.size}", found.gained),
        (f"lost: no longer {found.size} of {found.size}", found.lost),
        ("now passed at least once", found.reached),
        ("no longer passed at all", found.dropped),
    )
    for kind, uids in kinds:
        for uid in uids:
            cells = (
                uid,
                before.domains.get(uid, "").replace("_", " "),
                str(before.passed(uid)),
                str(after.passed(uid)),
            )
            rows.append((Cell(kind), *(Cell(cell) for cell in cells)))
    caption = f"Passes of {counted(found.size, 'attempt')}; a task may stand in two lists"
    return Table("tasks_gained_and_lost", caption, ("change", "task", "topic", "base", "trained"), tuple(rows))


def band_table(run: RunData) -> Table | None:
    if not run.tasks:
        return None
    total = len(run.tasks)
    rows = []
    lower = 0.0
    for band in BANDS:
        upper = run.edges.get(band, 1.0)
        mine = [row for row in run.tasks if row.get("band") == band]
        mass = sum(float(_at(row, "masses", band) or 0.0) for row in run.tasks)
        taken = sum(bool(row.get("kept")) for row in mine)
        policy = "kept" if band in run.kept_bands else "dropped"
        cells = (band_label(band), f"{lower:g} to {upper:g}", policy, str(len(mine)), f"{mass:.1f}", str(taken))
        rows.append(tuple(Cell(cell) for cell in cells))
        lower = upper
    last = ("all", "", "", str(total), str(total), str(sum(bool(row.get("kept")) for row in run.tasks)))
    rows.append(tuple(Cell(cell, bold=True) for cell in last))
    names = ("band", "pass rate", "rule", "tasks decided", "tasks expected by the posterior", "in the pool")
    return Table("bands", "Tasks by band", names, tuple(rows))


def reason_table(run: RunData) -> Table | None:
    counts: dict[str, int] = {}
    for row in run.tasks:
        for reason in row.get("reasons") or []:
            counts[str(reason)] = counts.get(str(reason), 0) + 1
    if not counts:
        return None
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = tuple((Cell(reason.replace("_", " ")), Cell(str(count))) for reason, count in ordered)
    return Table("reasons", "Why tasks are not in the pool; a task may have several reasons", ("reason", "tasks"), rows)


def error_table(sources: Mapping[str, Attempts]) -> Table | None:
    kinds = sorted({kind for attempts in sources.values() for kind in attempts.errors})
    if not kinds:
        return None
    rows = []
    for kind in kinds:
        message = next((a.messages[kind] for a in sources.values() if a.messages.get(kind)), "")
        first = " ".join(message.split())
        counts = [Cell(_count(attempts.errors[kind])) for attempts in sources.values()]
        rows.append((Cell(kind), *counts, Cell(first if len(first) <= 160 else first[:159] + "…")))
    rows.append((Cell("all tries"), *(Cell(_count(a.total + _repeated(a))) for a in sources.values()), Cell("")))
    left = [sum(o is None for made in a.outcomes.values() for o in made.values()) for a in sources.values()]
    rows.append((Cell("attempts left without a verdict"), *(Cell(_count(n)) for n in left), Cell("")))
    return Table("system_errors", "System errors by kind, in tries: an attempt may have been tried several times, and "
                 "each try that failed counts; none of them is scored",
                 ("kind", *sources, "first message"), tuple(rows))  # fmt: skip


def time_table(rows: Sequence[tuple[str, float]]) -> Table:
    total = sum(value for _, value in rows) or 1.0
    cells = [
        (Cell(name), Cell(duration(value), more=(("seconds", value),)), Cell(percent(value / total)))
        for name, value in rows
    ]
    return Table("time", "Wall time by stage", ("stage", "time", "share"), tuple(cells))


def certainty_table(run: RunData) -> Table | None:
    """Intervals that answer different questions, side by side."""
    rows = []
    for name, figures in summary_policies(run).items():
        k = figures.get("attempts")
        for label, key in (("pass@1", "pass_at_1"), (f"{k} of {k}", "observed_all_k")):
            found = _at(figures, key) or {}
            if not isinstance(found, Mapping) or found.get("fixed_low") is None:
                continue
            fixed = {"low": found["fixed_low"], "high": found["fixed_high"]}
            least = found.get("task_rate_lower_bound")
            cells = [policy_cell(name, figures), Cell(label)]
            cells.append(Cell(percent(found.get("value")), value=hundred(found.get("value"))))
            cells += [Cell(interval(part) or DASH, more=bounds(part)) for part in (found, fixed)]
            cells.append(Cell("" if least is None else percent(least), value=hundred(least)))
            rows.append(tuple(cells))
    if not rows:
        return None
    columns = (
        *("policy", "figure", "value", "with other tasks of the same kind", "with the same tasks again"),
        "a task that passed every time passes at least",
    )
    caption = (
        "How sure, by question: 95% intervals and bounds, in percent. With the same tasks again, k of k has room for "
        "0.98 of a task to either side at least: one task that is not sure moves the count by a whole one."
    )
    return Table("certainty", caption, columns, tuple(rows))


def claims_table(run: RunData) -> Table | None:
    """How often an agent ends an attempt as done that the check of the final state fails."""
    rows = []
    for name, figures in summary_policies(run).items():
        found = _at(figures, "claimed_success")
        if not isinstance(found, Mapping) or found.get("share") is None:
            continue
        cells = [policy_cell(name, figures), *(Cell(_count(found.get(key))) for key in ("attempts", "failed"))]
        for key in ("share", "share_of_claims"):
            part = {side: found.get(f"{key}_{side}") for side in ("low", "high")}
            value = found.get(key)
            cells.append(Cell(percent(value), note=interval(part), value=hundred(value), more=bounds(part)))
        rows.append(tuple(cells))
    columns = ("policy", "claims of success", "with a failed check", "of all attempts, %", "of the claims, %")
    caption = (
        "Success claimed while the database disagrees: the agent itself ended the attempt, and the check of the final "
        "state failed; 95% intervals for another set of tasks"
    )
    return Table("claims", caption, columns, tuple(rows)) if rows else None


def verdict_table(run: RunData) -> Table | None:
    """Who gave the verdicts, and how attempts fared that needed another try."""
    rows = []
    for name, figures in summary_policies(run).items():
        judged = figures.get("judged_share")
        tries = [figures.get(key) for key in ("first_try", "retried")]
        if judged is None and not any(isinstance(part, Mapping) for part in tries):
            continue
        code = None if judged is None else 1 - judged
        cells = [policy_cell(name, figures)]
        cells += [Cell(percent(share), value=hundred(share)) for share in (code, judged)]
        for part in tries:
            rate, count = _at(part, "pass_rate"), _at(part, "attempts")
            note = "" if count is None else counted(count, "attempt")
            cells.append(Cell(percent(rate), note=note, value=hundred(rate), more=(("attempts", count or 0),)))
        rows.append(tuple(cells))
    columns = ("policy", "verdicts by code", "verdicts by the judge", "pass rate, first try", "pass rate, retried")
    caption = "Verdicts, in percent; retried: a system error came first"
    return Table("verdicts", caption, columns, tuple(rows)) if rows else None


def hundred(value: float | None) -> float | None:
    return None if value is None else 100 * value


def bounds(found: Json, *, tasks: bool = False) -> tuple[tuple[str, float | bool], ...]:
    """low and high in percent, and the count of tasks, for the CSV."""
    parts: list[tuple[str, float | bool]] = []
    if tasks and isinstance(found.get("tasks"), int | float):
        parts.append(("tasks", found["tasks"]))
    if not is_still(found):
        parts += [(side, 100 * value) for side in ("low", "high") if (value := found.get(side)) is not None]
    return tuple(parts)


def is_still(found: Json) -> bool:
    """A paired difference in which no task changed: of such there is no interval."""
    return found.get("value") == 0 and found.get("low") == 0 and found.get("high") == 0


def dollars(value: float) -> str:
    """Cents, and below a dollar as many digits as tell three significant ones."""
    digits = 2 if value >= 1 or value <= 0 else max(2, 2 - math.floor(math.log10(value)))
    return f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.1f}"


def points(value: float | None) -> str:
    """A difference in points with its sign; a zero has none."""
    if value is None:
        return DASH
    text = f"{100 * value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


def interval(found: Json, *, signed: bool = False) -> str:
    low, high = found.get("low"), found.get("high")
    if low is None or high is None or (signed and is_still(found)):
        return ""
    return f"{100 * low:+.1f} to {100 * high:+.1f}" if signed else f"{100 * low:.1f} to {100 * high:.1f}"


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else DASH


def _repeated(attempts: Attempts) -> int:
    """Tries that ended in a system error and were made again."""
    open_errors = sum(o is None for a in attempts.outcomes.values() for o in a.values())
    return sum(attempts.errors.values()) - open_errors
