"""What a run folder holds, as far as it goes.

Decided here: which files the report reads and what it does about those that are missing, torn or of an unknown form: it
goes on and says so. What the figures mean is decided where they are made (selection, training, evaluation).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tbexp.config.schema import BANDS
from tbexp.errors import UserError, counted, one_line

EDGES = {"rarely": 0.08, "hard": 0.40, "medium": 0.60, "often": 0.90}
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Attempts:
    """Attempts of one policy. outcomes: {uid: {attempt: passed, or None for a system error}}."""

    outcomes: dict[str, dict[int, bool | None]]
    domains: dict[str, str]
    finish: Counter[str]  # of attempts that have a verdict
    errors: Counter[str]  # every system error by kind, also of tries that were repeated
    messages: dict[str, str]  # one message for each kind
    seconds: float  # sum over all tries
    tokens: int  # produced by the policy

    def passed(self, uid: str) -> int:
        return sum(outcome is True for outcome in self.outcomes.get(uid, {}).values())

    def clean(self, uid: str) -> int:
        return sum(outcome is not None for outcome in self.outcomes.get(uid, {}).values())

    @property
    def size(self) -> int:
        return max((len(attempts) for attempts in self.outcomes.values()), default=0)

    @property
    def total(self) -> int:
        return sum(len(attempts) for attempts in self.outcomes.values())


@dataclass(frozen=True, slots=True)
class RunData:
    folder: Path
    config: Json
    config_text: str
    manifest: Json
    tasks: list[Json]  # rows of select/tasks.jsonl
    train: list[str]  # uids of the tasks that are trained on
    selection: Json  # select/manifest.json
    steps: dict[int, dict[str, float]]  # training metrics by step
    chosen_step: int | None
    summary: Json  # evaluate/summary.json
    reference: Attempts | None  # of selection.reference.policy
    probe: Attempts | None
    policies: dict[str, Attempts]  # evaluated ones; base before trained
    faults: list[str] = field(default_factory=list)  # what could not be read
    changed: list[str] = field(default_factory=list)  # which results are of tasks that have changed since

    @property
    def edges(self) -> dict[str, float]:
        """Upper edges of all bands but the last."""
        bands = _at(self.config, "buckets", "bands")
        found = {name: _at(bands, name, "upper") for name in BANDS[:-1]}
        return {name: float(upper) if isinstance(upper, int | float) else EDGES[name] for name, upper in found.items()}

    @property
    def kept_bands(self) -> frozenset[str]:
        bands = _at(self.config, "buckets", "bands")
        if isinstance(bands, Mapping):
            return frozenset(name for name in BANDS if _at(bands, name, "keep") is True)
        return frozenset(str(row.get("band")) for row in self.tasks if row.get("kept"))

    @property
    def notes(self) -> list[str]:
        notes = self.manifest.get("notes", [])
        return [notes] if isinstance(notes, str) else [str(note) for note in notes]

    @property
    def stage_seconds(self) -> dict[str, float]:
        """Wall time by stage, from `stages: {NAME: {seconds: ...}}` of manifest.json."""
        stages = self.manifest.get("stages")
        if not isinstance(stages, Mapping):
            return {}
        seconds = {str(name): _at(stage, "seconds") for name, stage in stages.items()}
        return {name: float(value) for name, value in seconds.items() if isinstance(value, int | float)}


def read_run(folder: Path) -> RunData:
    faults: list[str] = []
    config_text, config = _yaml(folder / "config.yaml", faults)
    train = folder / "train"
    tasks = list(_lines(folder / "select" / "tasks.jsonl", faults))
    most = attempts_about(config, tasks)
    evaluated = most["evaluate"]
    policies = _policies(folder / "evaluate", faults, evaluated) | _foreign(config, faults, evaluated)
    order = ["base", "trained"]
    return RunData(
        folder=folder,
        config=config,
        config_text=config_text,
        manifest=_json(folder / "manifest.json", faults),
        tasks=tasks,
        train=_uids(folder / "select" / "train.yaml", faults),
        selection=_json(folder / "select" / "manifest.json", faults),
        steps=_steps(train, faults, _at(config, "training", "steps")),
        chosen_step=_chosen_step(train, faults),
        summary=_json(folder / "evaluate" / "summary.json", faults),
        reference=_attempts(_attempt_rows(folder / "reference", faults), most["reference"]),
        probe=_attempts(_attempt_rows(folder / "probe", faults), most["probe"]),
        policies={
            name: policies[name]
            for name in sorted(policies, key=lambda n: (n not in order, order.index(n) if n in order else 0, n))
        },
        faults=faults,
        changed=_texts(folder / "changed_since.json", faults),
    )


def attempts_about(config: Json, tasks: list[Json]) -> dict[str, Any]:
    """Attempts per task that a run is about, by stage: one number, or one for each task; None: not known. A store may
    hold more, of other runs.
    """
    probed = _at(config, "probe", "attempts")
    if _at(config, "probe", "kind") == "adaptive" and tasks:
        probed = {str(row.get("uid")): row.get("clean", 0) + row.get("system_errors", 0) for row in tasks}
    evaluated = _at(config, "evaluation", "attempts")
    return {"reference": _at(config, "selection", "reference", "attempts"), "probe": probed, "evaluate": evaluated}


def beyond(number: int, uid: str, most: Any) -> bool:
    """Whether an attempt is none that the run is about."""
    limit = most.get(uid, 0) if isinstance(most, Mapping) else most
    return isinstance(limit, int) and number >= limit


def _policies(folder: Path, faults: list[str], most: Any) -> dict[str, Attempts]:
    """From evaluate/attempts.jsonl by the rows' `policy`, or from one folder for each policy."""
    by_policy: dict[str, list[Json]] = {}
    for row in _attempt_rows(folder, faults):
        by_policy.setdefault(str(row.get("policy", "rows")), []).append(row)
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            if path.is_dir():
                rows = list(_attempt_rows(path, faults))
                if rows:
                    by_policy.setdefault(path.name, []).extend(rows)
    return {name: found for name, rows in by_policy.items() if (found := _attempts(rows, most))}


def _foreign(config: Json, faults: list[str], most: Any) -> dict[str, Attempts]:
    """evaluation.rows, which stay where they were made."""
    files = _at(config, "evaluation", "rows")
    if not isinstance(files, list) or not files:
        return {}
    from tbexp.attempts import read_rows
    from tbexp.config.schema import Fields

    try:
        rows = read_rows([str(file) for file in files], Fields(**(_at(config, "evaluation", "fields") or {})))
    except (UserError, ValueError) as error:
        faults.append(f"evaluation.rows can't be read again, so single attempts are not shown: {one_line(str(error))}")
        return {}
    found = _attempts([row.as_dict() for row in rows], most)
    return {"rows": found} if found else {}


def _attempt_rows(folder: Path, faults: list[str]) -> Iterator[Json]:
    for file in sorted(folder.glob("attempts*.jsonl")):
        yield from _lines(file, faults)


def _attempts(rows: Iterator[Json] | list[Json], most: Any) -> Attempts | None:
    """For each attempt the first row with a verdict counts, as in the attempt store; else the system error.

    most: as `attempts_about` has it.
    """
    outcomes: dict[str, dict[int, bool | None]] = {}
    finish: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    domains: dict[str, str] = {}
    messages: dict[str, str] = {}
    seconds, tokens = 0.0, 0
    for row in rows:
        uid, attempt = row.get("uid"), row.get("attempt")
        if not isinstance(uid, str) or not isinstance(attempt, int):
            continue
        if beyond(attempt, uid, most):
            continue
        seconds += float(row.get("seconds") or 0.0)
        tokens += int(row.get("completion_tokens") or 0)
        domains[uid] = str(row.get("domain") or "") or uid.split(":")[0]
        mine = outcomes.setdefault(uid, {})
        error = row.get("system_error")
        if error is not None or not isinstance(row.get("passed"), bool):
            kind = str(_at(error, "kind") or "unknown")
            errors[kind] += 1
            messages.setdefault(kind, str(_at(error, "message") or ""))
            mine.setdefault(attempt, None)
        elif mine.get(attempt) is None:
            mine[attempt] = row["passed"]
            finish[str(row.get("finish_reason") or "not recorded")] += 1
    return Attempts(outcomes, domains, finish, errors, messages, seconds, tokens) if outcomes else None


def _steps(folder: Path, faults: list[str], last: Any) -> dict[int, dict[str, float]]:
    """Values by step. A row has, beside its step, NAME: value pairs, the same under `data` or `metrics`, or one
    `name` and `value`.
    """
    steps: dict[int, dict[str, float]] = {}
    for row in _lines(folder / "metrics.jsonl", faults):
        step = row.get("step")
        if not isinstance(step, int) or (
            isinstance(last, int) and step > last
        ):  # of a longer run that shares the store
            continue
        if isinstance(row.get("name"), str):
            values: Json = {row["name"]: row.get("value")}
        else:
            nested = row.get("data", row.get("metrics"))
            values = nested if isinstance(nested, Mapping) else {k: v for k, v in row.items() if k != "step"}
        numbers = {
            str(name): float(value)
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        steps.setdefault(step, {}).update(numbers)
    return dict(sorted(steps.items()))


def _chosen_step(folder: Path, faults: list[str]) -> int | None:
    for name in ("result.json", "history.json", "chosen.json", "manifest.json"):
        row = _json(folder / name, faults)
        for key in ("chosen_step", "chosen", "step"):
            if isinstance(row.get(key), int):
                return int(row[key])
    return None


def _lines(file: Path, faults: list[str]) -> Iterator[Json]:
    if not file.exists():
        return
    broken = 0
    with file.open("rb") as stream:
        for line in stream:
            if not line.endswith(b"\n"):  # torn by a kill; the stage writes it again when it goes on
                continue
            try:
                row = json.loads(line)
            except ValueError:
                broken += bool(line.strip())
                continue
            if isinstance(row, dict):
                yield row
    if broken:
        faults.append(f"{file.parent.name}/{file.name}: {counted(broken, 'line')} left out, no JSON")


def _json(file: Path, faults: list[str]) -> Json:
    try:
        row = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        faults.append(f"{file.parent.name}/{file.name} can't be read: {error}")
        return {}
    return row if isinstance(row, dict) else {"value": row}


def _texts(file: Path, faults: list[str]) -> list[str]:
    found = _json(file, faults).get("value")
    return [str(text) for text in found] if isinstance(found, list) else []


def _yaml(file: Path, faults: list[str]) -> tuple[str, Json]:
    import yaml

    try:
        text = file.read_text(encoding="utf-8")
        row = yaml.safe_load(text)
    except FileNotFoundError:
        return "", {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        faults.append(f"{file.name} can't be read: {error}")
        return "", {}
    return text, row if isinstance(row, dict) else {}


def _uids(file: Path, faults: list[str]) -> list[str]:
    """A YAML list of uids; none if there is no such file."""
    import yaml

    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, yaml.YAMLError) as error:
        faults.append(f"{file.parent.name}/{file.name} can't be read: {error}")
        return []
    return [str(uid) for uid in found] if isinstance(found, list) else []


def _at(value: Any, *path: str) -> Any:
    """The value at a path of keys; None where there is none."""
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value
