"""A page per task: its way through the stages, what its attempts changed, and their conversations.

Decided here: what a page shows of a task, and how much: conversations up to BUDGET characters, one of each cluster
first; of the others the page says where they stand. All text of models, users and servers is escaped by the template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbexp.config.schema import BANDS
from tbexp.errors import UserError
from tbexp.errors import counted as counted_of
from tbexp.reporting.clusters import Cluster, Done, against, clusters, done
from tbexp.reporting.figures import band_label
from tbexp.reporting.page import visible
from tbexp.reporting.run_data import Json, RunData, _at, _attempt_rows, _lines, attempts_about, beyond

BUDGET = 1_000_000  # characters of conversations on a page
LONGEST = 8_000  # characters of one message that are shown
GROUPS = "train/verl/groups.jsonl"


@dataclass(frozen=True, slots=True)
class Store:
    """Attempts of one policy: {uid: {attempt: row}}; a clean row before a system error, as in the attempt store."""

    name: str
    folder: Path
    rows: dict[str, dict[int, Json]]
    foreign: bool = False  # rows that were made elsewhere, whose lines hold what happened

    def trajectory(self, row: Json) -> Json:
        """What happened; empty where it was not kept or cannot be read."""
        name, _, place = str(row.get("trajectory") or "").rpartition("@")
        start, _, length = place.partition("+")
        if not name or not start.isdigit() or not length.isdigit():
            return {}
        try:
            with (self.folder / name).open("rb") as file:
                file.seek(int(start))
                found = json.loads(file.read(int(length)))
        except (OSError, ValueError):
            return {}
        if not isinstance(found, dict):
            return {}
        return as_trajectory(found, Path(name).parent) if self.foreign else found


@dataclass(frozen=True, slots=True)
class Shown:
    """One attempt on the page. messages: none if the page is full."""

    anchor: str
    title: str
    passed: bool | None
    row: Json
    what: str
    messages: list[tuple[str, str]]
    verdict: list[tuple[str, str]]
    difference: tuple[str, ...] | None  # None: not known
    beyond: list[str]
    lacking: list[str]
    place: str  # of the conversation; "": nowhere


def write_task_pages(run: RunData, folder: Path) -> list[Path]:
    """Writes tasks.html and tasks/<task>.html in `folder`; none where the run has no attempts and no selection."""
    from importlib.resources import files

    from jinja2 import Environment, StrictUndefined

    stores = read_stores(run)
    selected = {str(row.get("uid")): row for row in run.tasks}
    groups = training_groups(run)
    uids = sorted({*selected, *(uid for store in stores for uid in store.rows)})
    if not uids:
        return []
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=visible
    )
    source = files("tbexp.reporting").joinpath("tasks.html.j2").read_text(encoding="utf-8")
    template = environment.from_string(source)
    (folder / "tasks").mkdir(parents=True, exist_ok=True)
    pages = page_names(uids)
    title = f"{run.config.get('name') or run.folder.parent.name}: {run.folder.name}"
    made, lines = [], []
    for uid in uids:
        shown, found, system = attempts_of(uid, stores)
        strips = [(store.name, strip(store.rows[uid])) for store in stores if uid in store.rows]
        html = template.render(
            page="task",
            title=title,
            uid=uid,
            stages=way(uid, run, stores, selected.get(uid), groups.get(uid, [])),
            masses=[(band_label(b), f"{100 * float(_at(selected.get(uid), 'masses', b) or 0):.1f}") for b in BANDS]
            if _at(selected.get(uid), "masses")
            else [],
            groups=groups.get(uid, []),
            strips=strips,
            policies=[store.name for store in stores if uid in store.rows],
            sizes={store.name: sum(r.get("system_error") is None for r in store.rows.get(uid, {}).values())
                   for store in stores},
            clusters=found,
            attempts=shown,
            system=system,
        )  # fmt: skip
        file = folder / "tasks" / pages[uid]
        file.write_text(html, encoding="utf-8", errors="replace")
        made.append(file)
        band = band_label(str(_at(selected.get(uid), "band") or ""))
        first = next(iter(found), None)
        counts = {store.name: counted(store.rows[uid]) for store in stores if uid in store.rows}
        lines.append((uid, f"tasks/{pages[uid]}", band, counts, first.label if first else ""))
    index = folder / "tasks.html"
    names = [store.name for store in stores]
    index.write_text(template.render(page="index", title=title, lines=lines, names=names), encoding="utf-8")
    return [index, *made]


def places_of(run: RunData) -> list[tuple[str, Path]]:
    """(name, folder) of the stores that there may be."""
    evaluated = run.folder / "evaluate"
    found = sorted(path for path in evaluated.iterdir() if path.is_dir()) if evaluated.is_dir() else []
    places = [("reference", run.folder / "reference"), ("probe", run.folder / "probe")]
    return places + [(path.name, path) for path in found]


def made_of(run: RunData) -> list[Any]:
    """What pages are made of besides what `read_run` reads: the run's own attempts, whether what happened in them is
    there, and training's groups. A store that other runs add attempts to stays the same in this.
    """
    made: list[Any] = []
    for store in read_stores(run):
        sizes = {file.name: file.stat().st_size for file in store.folder.glob("trajectories*.jsonl")}
        for uid, rows in sorted(store.rows.items()):
            made += [(store.name, uid, n, _trace(row), _is_there(row, sizes)) for n, row in sorted(rows.items())]
    files = [run.folder / GROUPS, *map(Path, rows_elsewhere(run))]
    return made + [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]


def _trace(row: Json) -> tuple[Any, ...]:
    return row.get("passed"), row.get("tries"), row.get("trajectory")


def _is_there(row: Json, sizes: Mapping[str, int]) -> bool:
    name, _, place = str(row.get("trajectory") or "").rpartition("@")
    start, _, length = place.partition("+")
    return name in sizes and start.isdigit() and length.isdigit() and int(start) + int(length) <= sizes[name]


def read_stores(run: RunData) -> list[Store]:
    """The reference's attempts, the probe's, and those of each evaluated policy, base before trained."""
    about = attempts_about(run.config, run.tasks)
    stores = []
    for name, folder in places_of(run):
        most = about.get(name, about["evaluate"])
        rows: dict[str, dict[int, Json]] = {}
        for row in _attempt_rows(folder, []):
            uid, number = row.get("uid"), row.get("attempt")
            if not isinstance(uid, str) or not isinstance(number, int):
                continue
            if beyond(number, uid, most):
                continue
            before = rows.setdefault(uid, {}).get(number)
            if before is None or before.get("system_error") is not None:
                rows[uid][number] = row
        if rows:
            stores.append(Store(name, folder, rows))
    return [*stores, *foreign_store(run, about["evaluate"])]


def foreign_store(run: RunData, limit: Any) -> list[Store]:
    """evaluation.rows, where they are still there (else `run_data` has said so)."""
    from tbexp.attempts import read_rows
    from tbexp.config.schema import Fields

    try:
        fields = Fields(**(_at(run.config, "evaluation", "fields") or {}))
        made = read_rows(rows_elsewhere(run), fields, placed=True) if "rows" in run.policies else []
    except (UserError, ValueError):
        return []
    rows: dict[str, dict[int, Json]] = {}
    for row in made:  # the clean one of an attempt comes last
        if not (isinstance(limit, int) and row.attempt >= limit):
            rows.setdefault(row.uid, {})[row.attempt] = row.as_dict()
    return [Store("rows", Path(), rows, foreign=True)] if rows else []


def rows_elsewhere(run: RunData) -> list[str]:
    files = _at(run.config, "evaluation", "rows")
    return [str(file) for file in files] if isinstance(files, list) else []


def as_trajectory(line: Json, folder: Path) -> Json:
    """What a row of `tb infer` says of its attempt, in the form of a trajectory; of one of tbexp what stands beside it.
    Neither says what the attempt changed, but that of tbexp. folder: of the row's file.
    """
    if "test_result" not in line and isinstance(line.get("trajectory"), str):
        return Store("", folder, {}).trajectory(line)
    messages = [m for m in line.get("messages") or () if isinstance(m, Mapping)]
    if not messages:
        return {}
    result = line.get("test_result")
    at = _at(result, "lineno")
    verdict = {
        "message": _at(result, "tb"),
        "line": at if isinstance(at, int) and at >= 0 else None,
        "line_content": _at(result, "line_content"),
        "metadata": _at(result, "metadata"),
    }
    return {"messages": messages, "verdict": verdict}


def training_groups(run: RunData) -> dict[str, list[Json]]:
    """{uid: groups}, each {step, draw, kind, used, rewards, advantages}; of a repeated update the last."""
    steps: dict[tuple[int, int], Json] = {}
    for row in _lines(run.folder / GROUPS, []):
        if isinstance(row.get("step"), int) and isinstance(row.get("rewards"), list):
            steps[row["step"], int(row.get("draw") or 0)] = row
    by_std = _at(run.config, "training", "normalise_by_std") is not False
    found: dict[str, list[Json]] = {}
    for _, row in sorted(steps.items()):
        values = advantages([float(r) for r in row["rewards"]], by_std=by_std)
        found.setdefault(str(row.get("task")), []).append({**row, "advantages": values})
    return found


def advantages(rewards: Sequence[float], *, by_std: bool) -> list[float]:
    """GRPO's: reward minus the group's mean, divided by its (n-1) standard deviation plus 1e-6."""
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    spread = (sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1)) ** 0.5 if by_std else 1.0 - 1e-6
    return [(r - mean) / (spread + 1e-6) for r in rewards]


def way(uid: str, run: RunData, stores: Sequence[Store], row: Json | None, groups: Sequence[Json]) -> list[Any]:
    """(stage, what became of the task there), in the order of the stages."""
    by_name = {store.name: store.rows[uid] for store in stores if uid in store.rows}
    lines = []
    if "reference" in by_name:
        lines.append(("screen", f"the reference passed {counted(by_name['reference'])}"))
    if "probe" in by_name:
        lines.append(("probe", f"the base policy passed {counted(by_name['probe'])}"))
    if row is not None:
        low, high = (row.get("interval") or [None, None])[:2]
        text = f"{row.get('passed')} of {row.get('clean')}, posterior Beta({row.get('alpha'):g}, {row.get('beta'):g})"
        if low is not None:
            text += f", rate {100 * low:.0f}% to {100 * high:.0f}% (95%)"
        text += f"; band {band_label(str(row.get('band')))}"
        if isinstance(row.get("mixed_probability"), int | float):
            text += f"; a group is mixed with probability {row['mixed_probability']:.2f}"
        lines.append(("select", text))
        kept = "in the pool, " + ("trained on" if uid in run.train else "for validation")
        reasons = ", ".join(str(reason).replace("_", " ") for reason in row.get("reasons") or ())
        lines.append(("pool", kept if row.get("kept") else f"not in the pool: {reasons or 'no reason is recorded'}"))
    if groups:
        used = sum(bool(group.get("used")) for group in groups)
        lines.append(("train", f"{counted_of(len(groups), 'group')}, {used} of them trained on"))
    for name, rows in by_name.items():
        if name not in ("reference", "probe"):
            lines.append(("evaluate", f"{name} passed {counted(rows)}"))
    return lines


def counted(rows: Mapping[int, Json]) -> str:
    clean = [row for row in rows.values() if row.get("system_error") is None]
    text = f"{sum(row.get('passed') is True for row in clean)} of {len(clean)}"
    broken = len(rows) - len(clean)
    return text + (f" ({broken} without a verdict: {_kinds(rows)})" if broken else "")


def _kinds(rows: Mapping[int, Json]) -> str:
    return ", ".join(
        sorted({str(_at(row, "system_error", "kind")) for row in rows.values() if row.get("system_error")})
    )


def strip(rows: Mapping[int, Json]) -> str:
    """Passed ones first: a full box for a pass, an empty one for a failure, a cross where there is no verdict."""
    marks = sorted("▣▢×".index(_mark(row)) for row in rows.values())
    return "".join("▣▢×"[mark] for mark in marks)


def _mark(row: Json) -> str:
    return "×" if row.get("system_error") is not None else "▣" if row.get("passed") is True else "▢"


def attempts_of(uid: str, stores: Sequence[Store]) -> tuple[list[Shown], list[Cluster], list[str]]:
    """The attempts to show, the clusters of those that have a verdict, and the system messages that they share."""
    every = [(store, number, row) for store in stores for number, row in sorted(store.rows.get(uid, {}).items())]
    kept: list[tuple[Store, int, Json, Json, Done]] = []
    for store, number, row in every:
        trajectory = store.trajectory(row)
        kept.append((store, number, row, trajectory, done(store.name, number, row.get("passed"), trajectory)))
    acts = [each for *_, trajectory, each in kept if "effects" in trajectory and each.passed is not None]
    found = clusters(acts)
    label = {(a.policy, a.attempt): cluster.label for cluster in found for a in cluster.members}
    first = {(c.members[0].policy, c.members[0].attempt) for c in found}
    left = BUDGET
    texts: dict[tuple[str, int], list[tuple[str, str]]] = {}
    for store, number, _, trajectory, _ in sorted(kept, key=lambda k: (k[0].name, k[1]) not in first):
        messages = conversation(trajectory)
        left -= sum(len(text) for _, text in messages)
        texts[store.name, number] = messages if left >= 0 else []
    shown = []
    for store, number, row, trajectory, act in kept:
        beyond, lacking = against(act.difference, acts) if act.passed is False else ([], [])
        outcome = "no verdict" if act.passed is None else "passed" if act.passed else "failed"
        shown.append(
            Shown(
                anchor=f"{store.name}-{number}",
                title=f"{store.name} {number}: {outcome}",
                passed=act.passed,
                row=row,
                what=label.get((store.name, number), ""),
                messages=texts[store.name, number],
                verdict=verdict(row, trajectory),
                difference=act.difference or (None if act.passed is None or "effects" not in trajectory else ()),
                beyond=beyond,
                lacking=lacking,
                place=f"{'' if store.foreign else f'{store.name}/'}{row.get('trajectory')}" if trajectory else "",
            )
        )
    system = next((told for *_, trajectory, _ in kept if (told := _system(trajectory))), [])
    return shown, found, system


def _system(trajectory: Json) -> list[str]:
    messages = trajectory.get("messages") or ()
    return [_said(m) for m in messages if m.get("T", "Text") == "Text" and m.get("role") == "system"]


def _said(message: Json) -> str:
    """A message's text; of a list of parts, as chat endpoints take it, their texts."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(_at(part, "text") or part) for part in content)
    return str(content)


def conversation(trajectory: Json) -> list[tuple[str, str]]:
    """(who, text) of each message but the system's."""
    found = []
    for message in trajectory.get("messages") or ():
        kind = message.get("T")
        if kind is None:
            found += _of_chat(message)
        elif kind == "Text" and message.get("role") != "system":
            tag = _at(message, "metadata", "tag")
            who = "agent thinks" if tag == "think" else "agent" if message.get("role") == "assistant" else "user"
            found.append((who, cut(str(message.get("content")))))
        elif kind == "ParallelToolCall":
            for call in message.get("tool_calls") or ():
                arguments = json.dumps(call.get("arguments"), ensure_ascii=False, default=str)
                found.append(("call", cut(f"{call.get('name')}({arguments})")))
        elif kind == "ToolResponse":
            found.append(("answer", cut(f"{message.get('name')}: {message.get('content')}")))
    return found


def _of_chat(message: Json) -> list[tuple[str, str]]:
    """A message as chat endpoints have it."""
    role, found = message.get("role"), []
    if thought := message.get("reasoning_content"):
        found.append(("agent thinks", cut(str(thought))))
    if role != "system" and message.get("content") is not None:
        who = {"assistant": "agent", "tool": "answer"}.get(str(role), "user")
        named = f"{message['name']}: " if who == "answer" and message.get("name") else ""
        found.append((who, cut(named + _said(message))))
    for call in message.get("tool_calls") or ():
        told = _at(call, "function") or call
        found.append(("call", cut(f"{_at(told, 'name')}({_at(told, 'arguments')})")))
    return found


def verdict(row: Json, trajectory: Json) -> list[tuple[str, str]]:
    lines = [("ended by", str(row.get("finish_reason") or "not recorded")), ("reward", f"{row.get('reward') or 0:g}")]
    if error := row.get("system_error"):
        lines.append(("system error", f"{_at(error, 'kind')}: {_at(error, 'message')}"))
    told = trajectory.get("verdict") or {}
    if told.get("message"):
        lines.append(("check", cut(str(told["message"]))))
    if told.get("line") is not None:
        lines.append(("at", f"line {told['line']}: {told.get('line_content') or ''}"))
    if motivation := _at(told, "metadata", "judge_motivation"):
        lines.append(("judge", cut(json.dumps(motivation, ensure_ascii=False, default=str))))
    lines.append(("spent", f"{row.get('turns') or 0} completions, {row.get('tool_calls') or 0} tool calls, "
                           f"{row.get('completion_tokens') or 0} tokens, {row.get('seconds') or 0:.1f} s"))  # fmt: skip
    return lines


def cut(text: str) -> str:
    more = len(text) - LONGEST
    return text if more <= 0 else text[:LONGEST] + f" … ({more:,} more characters)"


def page_names(uids: Sequence[str]) -> dict[str, str]:
    """A file name for each task, unlike any other's, also where a file system does not tell cases apart."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for uid in uids:
        plain = re.sub(r"[^A-Za-z0-9]+", "_", uid).strip("_")[:100] or "task"
        name, number = plain, 2
        while name.lower() in taken:
            name, number = f"{plain}_{number}", number + 1
        taken.add(name.lower())
        names[uid] = f"{name}.html"
    return names
