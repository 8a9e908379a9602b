"""Hydrated tasks as rows, one JSON object a line, in the field names of ThinkingBox's own dumps.

Decided here: the row, which is checked as strictly as the files that it is made of. Left to others: where tasks come
from (loader.py).
"""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tbexp.errors import Problem, UserError
from tbexp.tasks import blocks
from tbexp.tasks.blocks import Block
from tbexp.tasks.definitions import (
    agent_of,
    fixtures_of,
    missing_fixtures,
    offered_twice,
    scenario_of,
    tags_of,
    wrong_tags,
)
from tbexp.tasks.history import wrong_messages
from tbexp.tasks.records import UNLIMITED, Tags, Task, ToolDef, ToolOverride, Unhydrated
from tbexp.tasks.selectors import split_selector
from tbexp.tasks.test_files import TEST_FIELDS, asked_fixtures


def dump_tests(tasks: Iterable[Task], file: Path) -> None:
    """Write one row per task; `load_tasks` takes the file as its root."""
    with Path(file).open("w", encoding="utf-8") as stream:
        for task in tasks:
            stream.write(json.dumps(task_row(task), ensure_ascii=False) + "\n")


def task_row(task: Task) -> dict[str, Any]:
    """A task as a JSON object."""
    return {
        "uid": task.uid,
        "agent": {
            "system_instructions": task.agent.system_instructions,
            "builtin_tools": [_slots(tool) for tool in task.agent.builtin_tools],
        },
        "scenario": {
            "world_state": task.scenario.world_state,
            "tools": [_slots(tool) for tool in task.scenario.tools],
            "bot_instructions": task.scenario.bot_instructions,
            "tags": _slots(task.scenario.tags),
            "fixtures": task.scenario.fixtures,
            "metadata": task.scenario.metadata,
        },
        "history": list(task.history) if task.history is not None else None,
        "query": task.query,
        "test_code": task.test_code,
        "bot_instructions": task.bot_instructions,
        "user_context": task.user_context,
        "max_user_sim_turns": task.max_user_sim_turns,
        "max_agent_sim_turns": task.max_agent_sim_turns,
        "init": task.init,
        "format_query": task.format_query,
        "metadata": {"scenario": task.scenario.name, **task.metadata, "agent": task.agent.name},
        "tags": _slots(task.tags),
        "fixtures": task.fixtures,
    }


def read_rows(file: Path) -> list[Task]:
    """The tasks of a .jsonl file; Unhydrated names all that is wrong with lines, and each uid that comes twice."""
    problems: list[Problem] = []
    tasks: list[Task] = []
    needs: dict[str, list[str]] = {}
    seen: dict[str, int] = {}
    try:
        lines = file.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines()
    except OSError as problem:
        raise UserError(Problem(f"cannot be read: {problem}", str(file))) from problem
    for number, data in enumerate(lines, 1):
        if not data.strip():
            continue
        where = f"{file}:{number}"
        try:
            line = data.decode()
        except UnicodeDecodeError as problem:
            problems.append(Problem(f"not a hydrated task: {problem}", where, "save it as UTF-8 text"))
            continue
        try:
            row = json.loads(line, object_pairs_hook=_object, parse_constant=_finite, parse_float=_finite)
            if "\\ud" in line or "\\uD" in line:  # half of a surrogate pair is no text
                json.dumps(row, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as problem:
            problems.append(Problem(f"not a hydrated task: {problem}", where))
            continue
        if not isinstance(row, dict):
            problems.append(Problem("not a hydrated task: it is no object", where))
            continue
        task = task_of(Block(file, number, row), problems)
        uid = str(row.get("uid"))
        for server in _servers(row):
            needs.setdefault(server, []).append(uid)
        if uid in seen:
            problems.append(Problem(f"uid {uid} is also that of line {seen[uid]}", where))
        seen.setdefault(uid, number)
        if task is not None:
            tasks.append(task)
    if problems:
        raise Unhydrated(problems, needs)
    return tasks


def _servers(row: Mapping[str, Any]) -> dict[str, None]:
    """The names of the servers in a row that may be wrong; of one that is skipped, none."""
    tags, scenario = row.get("tags"), row.get("scenario")
    if not wrong_tags(tags) and tags_of(tags).skip:
        return {}
    parts = scenario.get("world_state") if isinstance(scenario, dict) else None, row.get("init")
    return {name: None for part in parts if isinstance(part, dict) for name in part}


def task_of(block: Block, problems: list[Problem]) -> Task | None:
    """The inverse of `task_row`; None when something about the row, which is noted, is wrong."""
    count = len(problems)
    good = blocks.checked(block, _FIELDS, problems, what="a hydrated task", required=_NEEDED)
    metadata = good.get("metadata") or {}
    for name in ("agent", "scenario"):
        if wrong := blocks.text_or_null(metadata.get(name)):
            problems.append(Problem(f"metadata.{name} {wrong}", block.at()))
    inner = blocks.part_of(block, "agent"), blocks.part_of(block, "scenario")
    agent = scenario = None
    if "agent" in good:
        tools = blocks.parts_of(inner[0], "builtin_tools", problems)
        agent = agent_of(inner[0], tools, str(metadata.get("agent") or ""), problems)
    if "scenario" in good:
        tools = blocks.parts_of(inner[1], "tools", problems)
        scenario = scenario_of(inner[1], tools, str(metadata.get("scenario") or ""), problems)
    fixtures = fixtures_of(good.get("fixtures") or {}, block.at(), problems)
    uid = good.get("uid", "")
    wanted = asked_fixtures(good.get("test_code", ""), block, problems)
    problems += missing_fixtures(wanted, fixtures, uid, block.at())
    if agent is not None and scenario is not None:
        problems += offered_twice(agent, scenario, block.at())
    if agent is None or scenario is None or len(problems) > count:
        return None
    history = good.get("history")
    return Task(
        uid=uid,
        agent=agent,
        scenario=scenario,
        query=good["query"],
        user_context=good.get("user_context"),
        test_code=good["test_code"],
        init={server: part or {} for server, part in (good.get("init") or {}).items()},
        bot_instructions=good.get("bot_instructions"),
        max_user_sim_turns=good.get("max_user_sim_turns", 10),
        max_agent_sim_turns=good.get("max_agent_sim_turns", UNLIMITED),
        history=tuple(history) if history is not None else None,
        format_query=good.get("format_query") or False,
        metadata=metadata,
        tags=tags_of(good.get("tags")),
        fixtures=fixtures,
    )


def _uid(value: Any) -> str:
    wrong = blocks.text(value)
    return wrong or ("" if split_selector(value) else f"is {value!r}, which is not of the form <file>:<test>")


def _test_code(value: Any) -> str:
    wrong = blocks.text(value)
    return wrong or ("" if value.strip() else "is empty, so every attempt would pass")


_NEEDED = ("uid", "agent", "scenario", "query", "test_code")
_FIELDS: Mapping[str, blocks.Check] = {
    "uid": _uid,
    "agent": blocks.mapping,
    **TEST_FIELDS,
    "scenario": blocks.mapping,
    "history": blocks.or_null(wrong_messages),
    "test_code": _test_code,
    "init": blocks.or_null(blocks.objects_or_empty),
    "format_query": blocks.or_null(blocks.flag),
    "metadata": blocks.or_null(blocks.mapping),
    "tags": wrong_tags,
    "fixtures": blocks.or_null(blocks.mapping),
}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(name for name in names if names.count(name) > 1)} is given twice")
    return found


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is no number in JSON")
    return value


def _slots(value: ToolDef | ToolOverride | Tags) -> dict[str, Any]:
    parts = ((name, getattr(value, name)) for name in value.__slots__)
    return {name: list(part) if isinstance(part, tuple) else part for name, part in parts}
