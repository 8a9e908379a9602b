"""Several runs as one comparison: what is read of each, which tasks they share, and what must not be compared.

Decided here: how a run is named in tables and figures, which of its policies stands for it, which settings differ, and
the warnings. Left to others: where runs come from (pipeline), the tests (evaluation), tables and figures
(`comparison.py`, `comparison_figures.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbexp.errors import counted
from tbexp.evaluation import Pairing, TaskCounts, holm, load_published, pair
from tbexp.reporting.partial import covered, is_partial
from tbexp.reporting.run_data import Json, RunData, _at, _lines, read_run
from tbexp.tasks import benchmark_uids

POLICIES = ("trained", "rows", "base")  # the first that a run has stands for it
ASIDE = (
    "tracking",
    "store",
    "stages",
    "force",
    "dry_run",
    "launcher",
    "compare",
    "name",
)  # settings that decide nothing
PROTOCOL = (  # settings that decide how an attempt runs, whatever the policy
    *("policy.sampling", "policy.limits", "user", "judge", "model.format"),
    *("sandbox.max_result_chars", "sandbox.search"),
)
LONGEST_LABEL = 30


@dataclass(frozen=True, slots=True)
class Source:
    """Where a run comes from. entry: as the user wrote it; where: for the reader; status: the tracker's, or empty."""

    entry: str
    name: str
    where: str
    status: str = ""


@dataclass(frozen=True, slots=True)
class Side:
    """One run, or one published model (`run` is None).

    figures: {policy: as in summary.json}; tallies: {policy: counts by task}; policy: which of them stands for the run.
    """

    letter: str
    label: str
    full: str  # what the label may be short for
    source: Source
    run: RunData | None
    figures: Mapping[str, Json]
    tallies: Mapping[str, TaskCounts]
    policy: str | None

    @property
    def counts(self) -> TaskCounts | None:
        return self.tallies.get(self.policy) if self.policy else None

    @property
    def attempts(self) -> int | None:
        found = _at(self.figures.get(self.policy or ""), "attempts")
        return found if isinstance(found, int) else None

    @property
    def partial(self) -> str:
        """What a partial evaluation of the policy that stands for the run covers; else nothing."""
        return covered(self.figures.get(self.policy or "") or {})

    @property
    def pool(self) -> frozenset[str]:
        return frozenset(str(row["uid"]) for row in self.run.tasks if row.get("kept")) if self.run else frozenset()


@dataclass(frozen=True, slots=True)
class Tested:
    """sides[second] against sides[first]. adjusted: p adjusted by Holm for the number of tests made."""

    first: int
    second: int
    found: Pairing
    adjusted: float | None
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    sides: tuple[Side, ...]
    baseline: int  # index of a run; tests are against it unless all pairs are tested
    tests: tuple[Tested, ...]
    settings: tuple[tuple[str, tuple[str, ...]], ...]  # (key, value of each run) where values differ
    warnings: tuple[str, ...]

    @property
    def runs(self) -> tuple[Side, ...]:
        return tuple(side for side in self.sides if side.run is not None)


def read_source(source: Source, folder: Path) -> tuple[Source, RunData, dict[str, TaskCounts]]:
    """The files of a run's folder, or of a copy of what it logged."""
    run = read_run(folder)
    return source, run, _tallies(folder, run)


def holds_results(run: RunData) -> bool:
    return bool(run.tasks or run.steps or run.summary)


def compare_runs(
    runs: Sequence[tuple[Source, RunData, Mapping[str, TaskCounts]]],
    published: Sequence[tuple[Source, str]],
    *,
    baseline: str | None,
    every_pair: bool,
    policy: str | None,
    samples: int,
    seed: int,
) -> Comparison:
    """runs and published models (source, name) in the order of the tables; baseline: an entry or a name of a run, or
    None for the first.
    """
    settings = _different([run.config for _, run, _ in runs])
    letters = [_letter(i) for i in range(len(runs) + len(published))]
    labels = _labels([source.name for source, _, _ in runs], settings)
    sides = []
    for i, (source, run, tallies) in enumerate(runs):
        figures = _figures(run)
        known = [name for name in POLICIES if name in figures or name in tallies]
        mine = policy if policy in known else None if policy else next(iter(known), None)
        short, full = (f"{letters[i]}  {text}" for text in labels[i])
        sides.append(Side(letters[i], short, full, source, run, figures, tallies, mine))
    for letter, (source, name) in zip(letters[len(runs) :], published, strict=True):
        figures = {"published": published_figures(name)}
        label = f"{letter}  {name}"
        sides.append(Side(letter, label, label, source, None, figures, {}, "published"))
    first = next((i for i, (source, _, _) in enumerate(runs) if baseline in (source.entry, source.name)), 0)
    tests = _tests(sides, len(runs), first, every_pair, samples, seed)
    return Comparison(
        sides=tuple(sides),
        baseline=first,
        tests=tests,
        settings=settings,
        warnings=tuple(_warnings(sides, settings, policy)),
    )


def published_figures(name: str) -> Json:
    """A published model in the form of summary.json, as far as its figures go; shares, without intervals."""
    published = load_published()
    model, protocol = published["models"][name], published["protocol"]
    found: dict[str, Any] = {"tasks": protocol["tasks"], "attempts": protocol["attempts_per_task"]}
    found["pass_at_1"] = {"value": model["pass_at_1"] / 100}
    if "pass_at_20" in model:
        found["pass_at_k"] = {"20": {"value": model["pass_at_20"] / 100}}
    every = model.get("tasks_passed_every_time")
    if every is not None:
        share = model.get("observed_20_of_20", 100 * every / protocol["tasks"]) / 100
        found["observed_all_k"] = {"value": share, "tasks": every, "derived": "observed_20_of_20" not in model}
    if "cost_per_reliable_task_usd" in model:
        found["cost"] = {
            "per_reliable_task_usd": model["cost_per_reliable_task_usd"],
            "caution": f"Published costs: {published['caution']}",
        }
    return found


def forecast_and_outcome(run: RunData) -> tuple[float | None, tuple[float, float] | None, tuple[float, float] | None]:
    """The forecast share of mixed groups; (mixed, generated) groups of the first fifth of the updates, and of all.

    Where a run recorded only the rate of each update, its groups are taken to be of one number.
    """
    forecast = _at(run.selection, "summary", "forecast", "mixed_rate")
    if not isinstance(forecast, int | float):
        values = [float(row["mixed_probability"]) for row in run.tasks if row.get("kept")]
        forecast = sum(values) / len(values) if values else None
    groups: list[tuple[float, float]] = []
    usual = _at(run.config, "group", "groups_per_update")
    for row in run.steps.values():
        made, rate = row.get("train/groups/generated"), row.get("train/mixed_group_rate")
        mixed = row.get("train/groups/mixed")
        if made and mixed is not None:
            groups.append((mixed, made))
        elif rate is not None:
            size = float(usual) if isinstance(usual, int) else 1.0
            groups.append((rate * size, size))
    if not groups:
        return forecast, None, None
    early = groups[: max(1, len(groups) // 5)]
    return forecast, _sum(early), _sum(groups)


def _sum(groups: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return sum(mixed for mixed, _ in groups), sum(made for _, made in groups)


def _tests(
    sides: Sequence[Side], runs: int, baseline: int, every_pair: bool, samples: int, seed: int
) -> tuple[Tested, ...]:
    if every_pair:
        wanted = [(i, j) for i in range(runs) for j in range(i + 1, runs)]
    else:
        wanted = [(baseline, j) for j in range(runs) if j != baseline]
    pairs = []
    for i, j in wanted:
        first, second = sides[i].counts, sides[j].counts
        if first is not None and second is not None:
            pairs.append((i, j, pair(first, second, samples=samples, seed=seed)))
    places = [n for n, (_, _, found) in enumerate(pairs) if found.p is not None]
    adjusted = dict(zip(places, holm([p for n in places if (p := pairs[n][2].p) is not None]), strict=True))
    return tuple(
        Tested(i, j, found, adjusted.get(n), tuple(_remarks(found, sides[i], sides[j])))
        for n, (i, j, found) in enumerate(pairs)
    )


def _remarks(found: Pairing, *sides: Side) -> list[str]:
    """What keeps this pair from being a plain comparison."""
    remarks = [f"{side.letter} is partial: {side.partial}" for side in sides if side.partial]
    if not found.shared:
        remarks.append("no task is shared")
    if found.attempts[0] != found.attempts[1]:
        remarks.append(f"{found.attempts[0]} and {found.attempts[1]} attempts per task: k of k is not compared")
    if any(found.missing):
        remarks.append(
            f"{counted(found.missing[0], 'task')} of the first alone, {found.missing[1]} of the second alone"
        )
    if found.changed:
        remarks.append(f"left out: {counted(len(found.changed), 'task')} with the same uid and another content")
    if found.same_counts:
        remarks.append("every task has the same counts: probably the very same attempts")
    elif found.every is not None and found.every.tasks < len(found.shared):
        remarks.append(f"k of k only of {counted(found.every.tasks, 'task')} whose attempts all have a verdict")
    return remarks


def _warnings(sides: Sequence[Side], settings: Sequence[tuple[str, tuple[str, ...]]], policy: str | None) -> list[str]:
    runs = [side for side in sides if side.run is not None]
    found = []
    for side in runs:
        if side.source.status not in ("", "FINISHED"):
            found.append(
                f"{side.letter} ended as {side.source.status} or is not finished; what it has logged is shown."
            )
        if side.policy is None and policy:
            found.append(f"{side.letter} has no evaluated policy {policy}, so it takes no part in the tests.")
        for name, figures in side.figures.items():
            if is_partial(figures):
                found.append(
                    f"{side.letter} is partial: some attempts of its evaluation have no verdict ({name}: "
                    f"{covered(figures)})."
                )
    evaluated = [side for side in runs if side.policy]
    if names := _unlike(evaluated, lambda side: side.policy, lambda policy: f"{policy} policy"):
        found.append(f"Different policies stand for the runs: {names}.")
    if names := _unlike(evaluated, lambda side: side.attempts, lambda k: counted(k, "attempt")):
        found.append(
            f"Attempts per task differ: {names}. pass@1 can be compared; k of k is another question for another k, and "
            "is not tested between these runs."
        )
    tallied = [side for side in evaluated if side.counts is not None]
    with_content = all(side.counts and side.counts.contents for side in tallied)
    if names := _unlike(tallied, lambda side: _task_set(side, with_content), lambda tasks: counted(len(tasks), "task")):
        found.append(
            f"Evaluated task sets differ: {names}. Rates in the table are of each run's own tasks; the paired tests "
            "use only tasks that both sides share."
        )
    keys = [key for key, _ in settings if _under(key, PROTOCOL)]
    if keys:
        found.append(
            f"Not only policies differ: {', '.join(keys)}. A difference between such runs may come from how attempts "
            "were made."
        )
    embedded = [side.letter for side in runs if side.run and _embedded_search(side.run, side.figures)]
    if embedded:
        found.append(
            f"{', '.join(embedded)}: search embedded. The servers' knowledge search was tbexp's own; these figures are "
            "not comparable with published ones, nor with runs that searched otherwise."
        )
    pools = [side for side in runs if side.run and side.run.tasks]
    if names := _unlike(pools, _candidates, lambda uids: counted(len(uids), "candidate")):
        found.append(f"Pools were chosen from different candidates: {names}; where these differ, so must the pools.")
    elif names := _unlike(pools, _candidate_contents, lambda content: f"content {content[:8]}"):
        found.append(f"Candidates have the same uids and another content: {names}. Their pools' overlap counts uids.")
    published = [side for side in sides if side.run is None]
    if published:
        own = [side.letter for side in tallied if not _is_the_benchmark(side)]
        letters = ", ".join(side.letter for side in published)
        text = f"{letters}: published figures of ThinkingBox-Bench v1.0 (507 tasks, 20 attempts), without intervals; "
        text += "no tests are made with them."
        if own:
            text += f" {', '.join(own)} attempted other tasks, so these rates do not stand on the same scale."
        found.append(text)
    return found


def _task_set(side: Side, with_content: bool) -> frozenset[tuple[str, str]]:
    assert side.counts is not None
    contents = side.counts.contents if with_content else {}
    return frozenset((uid, contents.get(uid, "")) for uid in side.counts.counts)


def _candidates(side: Side) -> frozenset[str] | None:
    return frozenset(str(row["uid"]) for row in side.run.tasks) if side.run else None


def _candidate_contents(side: Side) -> str | None:
    found = _at(side.run.selection, "inputs", "content_hashes") if side.run else None
    return found if isinstance(found, str) else None


def _embedded_search(run: RunData, figures: Mapping[str, Json]) -> bool:
    marked = any(found.get("search") == "embedded" for found in figures.values())
    return marked or _at(run.config, "sandbox", "search") == "embedded"


def _is_the_benchmark(side: Side) -> bool:
    return side.counts is not None and side.counts.counts.keys() == benchmark_uids()


def _unlike(sides: Sequence[Side], key: Callable[[Side], Any], name: Callable[[Any], str]) -> str:
    """`20 attempts (A, B), 10 attempts (C)`; empty where all are alike. What one does not know differs from nothing."""
    groups: dict[Any, list[str]] = {}
    for side in sides:
        if (value := key(side)) is not None:
            groups.setdefault(value, []).append(side.letter)
    if len(groups) < 2:
        return ""
    return ", ".join(f"{name(value)} ({', '.join(letters)})" for value, letters in groups.items())


def _figures(run: RunData) -> dict[str, Json]:
    found = run.summary.get("policies")
    if not isinstance(found, Mapping):
        return {}
    order = ("base", "trained")
    names = sorted(found, key=lambda name: (name not in order, name))
    return {str(name): found[name] for name in names if isinstance(found[name], Mapping)}


def _tallies(folder: Path, run: RunData) -> dict[str, TaskCounts]:
    """From evaluate/tasks.jsonl; of a run that did not write it from its summary, where that is complete."""
    rows = list(_lines(folder / "evaluate" / "tasks.jsonl", run.faults))
    found: dict[str, TaskCounts] = {}
    for name, figures in _figures(run).items():
        attempts = figures.get("attempts")
        if not isinstance(attempts, int):
            continue
        mine = [row for row in rows if isinstance(_at(row, "policies", name), Mapping)]
        if mine:
            counts = {
                str(row["uid"]): (int(row["policies"][name]["clean"]), int(row["policies"][name]["passed"]))
                for row in mine
            }
            contents = {str(row["uid"]): str(row["content"]) for row in mine if row.get("content")}
            domains = {str(row["uid"]): str(row.get("domain") or "") for row in mine}
            found[name] = TaskCounts(attempts, counts, contents, domains)
            continue
        passed = figures.get("passed_by_task")
        if isinstance(passed, Mapping) and figures.get("partial") is False and figures.get("seeds", 1) == 1:
            counts = {str(uid): (attempts, int(values[0])) for uid, values in passed.items()}
            found[name] = TaskCounts(attempts, counts, {}, {uid: uid.split(".")[0] for uid in counts})
    return found


def _different(configs: Sequence[Json]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Keys whose values differ, and each run's value as text; names of options only where nothing else tells."""
    flat = [dict(_leaves(config)) for config in configs]
    keys = dict.fromkeys(key for values in flat for key in values)
    found = []
    for key in keys:
        if key.split(".")[0] in ASIDE or key.endswith(".name"):
            continue
        texts = tuple(values.get(key, "–") for values in flat)
        if len({text for text in texts if text != "–"}) > 1:
            found.append((key, texts))
    return tuple(found)


def _leaves(config: Json, prefix: str = "") -> list[tuple[str, str]]:
    leaves: list[tuple[str, str]] = []
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            leaves += _leaves(value, f"{prefix}{key}.")
        else:
            leaves.append((f"{prefix}{key}", value if isinstance(value, str) else _text(value)))
    return leaves


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value, ensure_ascii=False, default=str)


def _labels(names: Sequence[str], settings: Sequence[tuple[str, tuple[str, ...]]]) -> list[tuple[str, str]]:
    """(label, in full): by the one or two settings that differ, if they tell the runs apart; else by name."""
    if 1 <= len(settings) <= 2 and len(names) > 1:
        short = [".".join(key.split(".")[-2:]) for key, _ in settings]
        labels = [
            ", ".join(f"{key}={values[i]}" for key, (_, values) in zip(short, settings, strict=True))
            for i in range(len(names))
        ]
        if len(set(labels)) == len(labels) and max(map(len, labels)) <= 2 * LONGEST_LABEL:
            return [(label, label) for label in labels]
    return [(shortened(name), name) for name in names]


def shortened(text: str, most: int = LONGEST_LABEL) -> str:
    """Names of a sweep's jobs differ in their ends as often as in their beginnings: the middle goes."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}…{text[half + 1 - most :]}"


def _letter(number: int) -> str:
    """A to Z, then AA."""
    return (_letter(number // 26 - 1) if number >= 26 else "") + chr(ord("A") + number % 26)


def _under(key: str, prefixes: Sequence[str]) -> bool:
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)
