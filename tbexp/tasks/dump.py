"""Hydrated tasks as rows, one JSON object a line, in the field names of ThinkingBox's own dumps.

Decided here: the row. Left to others: where tasks come from (loader.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tbexp.errors import Problem, UserError
from tbexp.tasks.definitions import tags_of
from tbexp.tasks.records import UNLIMITED, Agent, Scenario, Tags, Task, ToolDef, ToolOverride


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
    """The tasks of a .jsonl file; UserError names every line that is none, and every uid that comes twice."""
    problems: list[Problem] = []
    tasks: list[Task] = []
    seen: dict[str, int] = {}
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(Problem(f"cannot be read: {problem}", str(file))) from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            task = task_of(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            what = f"it lacks {problem}" if isinstance(problem, KeyError) else str(problem)
            problems.append(Problem(f"not a hydrated task: {what}", where))
            continue
        if task.uid in seen:
            problems.append(Problem(f"uid {task.uid} is also that of line {seen[task.uid]}", where))
        seen.setdefault(task.uid, number)
        tasks.append(task)
    if problems:
        raise UserError(problems)
    return tasks


def task_of(row: Mapping[str, Any]) -> Task:
    """The inverse of `task_row`; KeyError, TypeError or ValueError when it is no such row."""
    agent, scenario, metadata = row["agent"], row["scenario"], row.get("metadata") or {}
    history = row.get("history")
    for name in ("uid", "query", "test_code"):
        if not isinstance(row[name], str):
            raise TypeError(f"{name} must be a text")
    return Task(
        uid=row["uid"],
        agent=Agent(
            name=str(metadata.get("agent", "")),
            system_instructions=agent["system_instructions"],
            builtin_tools=tuple(ToolDef(**tool) for tool in agent["builtin_tools"]),
        ),
        scenario=Scenario(
            name=str(metadata.get("scenario", "")),
            world_state=scenario["world_state"],
            tools=tuple(ToolOverride(**tool) for tool in scenario["tools"]),
            bot_instructions=scenario.get("bot_instructions"),
            tags=tags_of(scenario.get("tags") or {}),
            fixtures=scenario.get("fixtures") or {},
            metadata=scenario.get("metadata") or {},
        ),
        query=row["query"],
        user_context=row.get("user_context"),
        test_code=row["test_code"],
        init=row.get("init") or {},
        bot_instructions=row.get("bot_instructions"),
        max_user_sim_turns=row.get("max_user_sim_turns", 10),
        max_agent_sim_turns=row.get("max_agent_sim_turns", UNLIMITED),
        history=tuple(history) if history is not None else None,
        format_query=row.get("format_query") or False,
        metadata=metadata,
        tags=tags_of(row.get("tags") or {}),
        fixtures=row.get("fixtures") or {},
    )


def _slots(value: ToolDef | ToolOverride | Tags) -> dict[str, Any]:
    parts = ((name, getattr(value, name)) for name in value.__slots__)
    return {name: list(part) if isinstance(part, tuple) else part for name, part in parts}
