"""Agents, scenarios, conftest files and tags: the files that tests refer to.

Decided here: their fields and types. Left to others: what a task takes from them (loader.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tbexp.errors import Problem
from tbexp.tasks import blocks
from tbexp.tasks.blocks import Block, Check, nearest
from tbexp.tasks.records import Agent, Scenario, Tags, ToolDef, ToolOverride

_AGENT: Mapping[str, Check] = {
    "system_instructions": blocks.text,
    "builtin_tools": blocks.listing,
    # Written in released agents, without any effect.
    "parallel_tool_calls": blocks.anything,
    "inject_after_user": blocks.anything,
    "inject_after_tool": blocks.anything,
}
_TOOL: Mapping[str, Check] = {
    "name": blocks.text,
    "description": blocks.text,
    "input_schema": blocks.mapping,
    "direct_response": blocks.text_or_null,
    "is_end_turn": blocks.flag,
}
_TAGS = ("labels", "category", "domain", "eval_type", "skip")


def wrong_tags(value: Any) -> str:
    """Tags: a flat list of texts, or their stored form."""
    if value is None:
        return ""
    if not isinstance(value, dict):
        return blocks.texts(value)
    unknown = [key for key in value if key not in _TAGS]
    if unknown:
        return f"has the unknown key {unknown[0]}; keys: {', '.join(_TAGS)}"
    wrong = {key: blocks.texts(value.get(key) or []) for key in ("labels", "category")}
    wrong |= {key: blocks.text_or_null(value.get(key)) for key in ("domain", "eval_type")}
    wrong["skip"] = blocks.flag(value.get("skip", False))
    return next((f"{key} {what}" for key, what in wrong.items() if what), "")


_SCENARIO: Mapping[str, Check] = {
    "world_state": blocks.objects_or_empty,
    "tools": blocks.listing,
    "bot_instructions": blocks.text_or_null,
    "tags": wrong_tags,
    "fixtures": blocks.mapping,
    "metadata": blocks.mapping,
}
_OVERRIDE: Mapping[str, Check] = {
    "name": blocks.text,
    "override_description": blocks.text_or_null,
    "override_arg_description": blocks.texts_by_name_or_null,
    "direct_response": blocks.text_or_null,
    "is_end_turn": blocks.flag,
}


def read_agent(folder: Path, name: str, problems: list[Problem]) -> Agent | None:
    """`agent/<name>.yaml`; None when it is missing or broken."""
    opened = _open(folder / "agent", name, "tasks.agent", problems)
    if opened is None:
        return None
    block, node = opened
    return agent_of(block, _listed(block, node, "builtin_tools", problems), name, problems)


def agent_of(block: Block, builtin: Iterable[Block], name: str, problems: list[Problem]) -> Agent | None:
    """The agent of an object and of those in its `builtin_tools`; None when something about it is wrong."""
    count = len(problems)
    good = blocks.checked(block, _AGENT, problems, what="an agent", required=["system_instructions", "builtin_tools"])
    required = ["name", "description", "input_schema"]
    tools = [ToolDef(**part) for part in _entries(builtin, "builtin_tools", _TOOL, required, problems)]
    _unique([tool.name for tool in tools], block.at("builtin_tools"), problems)
    return Agent(name, good["system_instructions"], tuple(tools)) if len(problems) == count else None


def read_scenario(folder: Path, name: str, where: str, problems: list[Problem]) -> Scenario | None:
    """`scenario/<name>.yaml`; where: who refers to it. None when it is missing or broken."""
    opened = _open(folder / "scenario", name, where, problems)
    if opened is None:
        return None
    block, node = opened
    return scenario_of(block, _listed(block, node, "tools", problems), name, problems)


def scenario_of(block: Block, offered: Iterable[Block], name: str, problems: list[Problem]) -> Scenario | None:
    """The scenario of an object and of those in its `tools`; None when something about it is wrong."""
    count = len(problems)
    good = blocks.checked(block, _SCENARIO, problems, what="a scenario", required=["world_state", "tools"])
    tools = [ToolOverride(**part) for part in _entries(offered, "tools", _OVERRIDE, ["name"], problems)]
    _unique([tool.name for tool in tools], block.at("tools"), problems)
    fixtures = fixtures_of(good.get("fixtures", {}), block.at("fixtures"), problems)
    if len(problems) > count:
        return None
    return Scenario(
        name=name,
        world_state={server: part or {} for server, part in good["world_state"].items()},
        tools=tuple(tools),
        bot_instructions=good.get("bot_instructions"),
        tags=tags_of(good.get("tags")),
        fixtures=fixtures,
        metadata=good.get("metadata", {}),
    )


def read_conftest(file: Path, problems: list[Problem]) -> dict[str, Any]:
    """The fixtures of a conftest.yaml, by name; they may also stand under one key `fixtures`."""
    if not file.is_file():
        return {}
    block = blocks.read_block(blocks.read_text(file, problems), file, 1, problems)
    if block is None:
        return {}
    found = block.values
    inner = found.get("fixtures")
    if len(found) == 1 and isinstance(inner, dict) and not isinstance(inner.get("type"), str):
        found = inner
    return fixtures_of(found, block.at(), problems)


def read_tags(tags: Sequence[str]) -> Tags:
    """A flat list of tags; the last domain and eval counts."""
    values: dict[str, list[str]] = {"domain": [], "eval": [], "category": []}
    labels = []
    for tag in tags:
        kind, colon, value = tag.partition(":")
        if colon and kind in values:
            values[kind].append(value.strip().lower())
        elif tag.lower() != "skip":
            labels.append(tag)
    return Tags(
        labels=tuple(labels),
        category=tuple(values["category"]),
        domain=values["domain"][-1] if values["domain"] else None,
        eval_type=values["eval"][-1] if values["eval"] else None,
        skip=any(tag.lower() == "skip" for tag in tags),
    )


def tags_of(stored: Mapping[str, Any] | Sequence[str] | None) -> Tags:
    """Tags in their stored form, or as a flat list."""
    if not isinstance(stored, Mapping):
        return read_tags(stored or ())
    return Tags(
        labels=tuple(stored.get("labels") or ()),
        category=tuple(stored.get("category") or ()),
        domain=stored.get("domain"),
        eval_type=stored.get("eval_type"),
        skip=bool(stored.get("skip", False)),
    )


def exists(folder: Path, kind: str, name: str) -> bool:
    """Whether there is a file for this agent or scenario."""
    return blocks.is_file(folder / kind / f"{name}.yaml")


def _open(folder: Path, name: str, where: str, problems: list[Problem]) -> tuple[Block, yaml.MappingNode] | None:
    file = folder / f"{name}.yaml"
    kind = folder.name
    if not exists(folder.parent, kind, name):
        known = [str(path.relative_to(folder).with_suffix("")) for path in sorted(folder.rglob("*.yaml"))]
        near = nearest(name, known)
        fix = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known) or 'none'}"
        problems.append(Problem(f"no {kind} {name}: {file} does not exist", where or str(folder), fix))
        return None
    count = len(problems)
    value, node = blocks.read_yaml(blocks.read_text(file, problems), file, 1, problems)
    if len(problems) > count:
        return None
    block = blocks.block_of(value, node, file, 1, problems) if node is not None else Block(file, 1)
    if block is None:
        return None
    return block, node if isinstance(node, yaml.MappingNode) else yaml.MappingNode("", [])


def _listed(block: Block, node: yaml.MappingNode, key: str, problems: list[Problem]) -> list[Block]:
    """The objects of a list that stands under a key."""
    nodes = blocks.under(node, key)
    value = block.values.get(key)
    if not isinstance(value, list) or not isinstance(nodes, yaml.SequenceNode):
        return []
    found = (blocks.block_of(part, at, block.file, 1, problems) for part, at in zip(value, nodes.value, strict=True))
    return [inner for inner in found if inner is not None]


def _entries(
    listed: Iterable[Block],
    key: str,
    fields: Mapping[str, Check],
    required: Sequence[str],
    problems: list[Problem],
) -> list[dict[str, Any]]:
    """The checked objects of a list that stands under a key."""
    entries = []
    for inner in listed:
        good = blocks.checked(inner, fields, problems, what=f"an entry of {key}", required=required)
        if all(name in good for name in required):
            entries.append(good)
    return entries


def fixtures_of(found: Mapping[str, Any], where: str, problems: list[Problem]) -> dict[str, Any]:
    """The fixtures of an object, name -> fixture; one that is none is noted."""
    for name, fixture in found.items():
        if not isinstance(fixture, dict) or not isinstance(fixture.get("type"), str):
            problems.append(Problem(f"fixture {name} must be an object with type, a dotted path", where))
    return dict(found)


def missing_fixtures(wanted: Iterable[str], declared: Mapping[str, Any], test: str, where: str) -> list[Problem]:
    """A problem for each fixture that a test asks for and nobody declares."""
    problems = []
    for name in wanted:
        if name not in declared:
            near = nearest(name, declared)
            fix = f"did you mean {near[0]}?" if near else "declare it in a conftest.yaml or in the scenario"
            problems.append(Problem(f"test {test} asks for the fixture {name}", where, fix))
    return problems


def offered_twice(agent: Agent, scenario: Scenario, where: str) -> list[Problem]:
    """A problem for each tool that the agent has built in and the scenario offers."""
    offered = {tool.name for tool in scenario.tools}
    return [
        Problem(f"tool {tool.name} is both built into agent {agent.name} and offered by {scenario.name}", where)
        for tool in agent.builtin_tools
        if tool.name in offered
    ]


def _unique(names: Sequence[str], where: str, problems: list[Problem]) -> None:
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.append(Problem(f"tool {name} is listed twice", where))
