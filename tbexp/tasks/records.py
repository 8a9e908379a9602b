"""What a task is once everything it refers to has been read: plain frozen values that go through JSON and pickle.

Decided here: how scenario and task are merged (server configuration, system messages, tags) and what a task's content
hash covers. Left to others: reading files (loader.py), starting servers, and the conversation.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tbexp.errors import Problem, UserError

UNLIMITED = sys.maxsize
ENTRY = "__tb_test_fn"  # the name that test code binds to the function to be called


@dataclass(frozen=True, slots=True)
class ToolDef:
    """A tool of the harness itself. `direct_response`: a format string that makes its answer a message to the user."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    direct_response: str | None = None
    is_end_turn: bool = False


@dataclass(frozen=True, slots=True)
class Agent:
    name: str
    system_instructions: str
    builtin_tools: tuple[ToolDef, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolOverride:
    """A server tool that the agent may see, and what of it is shown differently."""

    name: str
    override_description: str | None = None
    override_arg_description: Mapping[str, str] | None = None
    direct_response: str | None = None
    is_end_turn: bool = False


@dataclass(frozen=True, slots=True)
class Tags:
    labels: tuple[str, ...] = ()
    category: tuple[str, ...] = ()
    domain: str | None = None
    eval_type: str | None = None
    skip: bool = False

    def under(self, scenario: Tags) -> Tags:
        """A task's tags together with its scenario's."""
        return Tags(
            labels=scenario.labels + self.labels,
            category=self.category,
            domain=self.domain or scenario.domain,
            eval_type=self.eval_type or scenario.eval_type,
            skip=self.skip or scenario.skip,
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """`fixtures`: name -> {"type": dotted path, keyword arguments...}."""

    name: str
    world_state: Mapping[str, Mapping[str, Any]]
    tools: tuple[ToolOverride, ...] = ()
    bot_instructions: str | None = None
    tags: Tags = Tags()
    fixtures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """One task. `history`: recorded messages in ThinkingBox's message shapes, to be replayed before the query."""

    uid: str
    agent: Agent
    scenario: Scenario
    query: str
    user_context: str | None = None
    test_code: str = ""
    init: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    bot_instructions: str | None = None
    max_user_sim_turns: int = 10
    max_agent_sim_turns: int = UNLIMITED
    history: tuple[Mapping[str, Any], ...] | None = None
    format_query: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: Tags = Tags()
    fixtures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def domain(self) -> str:
        """What results are grouped by: the domain tag, or the scenario's name."""
        return self.tags.domain or self.scenario.name

    def server_config(self) -> dict[str, Any]:
        """Server -> configuration: the scenario's servers in order, then those only the task names; a fresh copy."""
        return {name: _server(self.scenario.world_state.get(name), self.init.get(name)) for name in self.server_names()}

    def server_names(self) -> tuple[str, ...]:
        """The servers that the task needs, in the order in which they are started."""
        return (*self.scenario.world_state, *(name for name in self.init if name not in self.scenario.world_state))

    def system_messages(self) -> tuple[str, ...]:
        """The agent's instructions and, where there are any, the scenario's and the task's in a second message."""
        more = "\n".join(part for part in (self.scenario.bot_instructions, self.bot_instructions) if part)
        return (self.agent.system_instructions, more) if more else (self.agent.system_instructions,)

    def formatted(self, init: Mapping[str, Any]) -> Task:
        """The task with `{init[SERVER][KEY]}` filled in where it asks for that; init: what the servers' inits answered.

        ValueError says which text has a field that the servers did not answer.
        """
        if not self.format_query:
            return self
        texts = {}
        for name in ("query", "user_context", "bot_instructions"):
            text = getattr(self, name)
            try:
                texts[name] = text.format(init=init) if text else text
            except (KeyError, IndexError, ValueError, AttributeError, TypeError) as problem:
                raise ValueError(f"{name} cannot be filled in: {type(problem).__name__}: {problem}") from None
        return replace(self, format_query=False, **texts)

    def content_hash(self) -> str:
        """SHA-256 over all that decides how an attempt runs and is judged; not over uid and places of files."""
        content = {
            "system": self.system_messages(),
            "builtin_tools": [_tool(tool) for tool in self.agent.builtin_tools],
            "tools": [_tool(tool) for tool in self.scenario.tools],
            "servers": list(self.server_config().items()),
            "query": self.query,
            "user_context": self.user_context,
            "limits": (self.max_user_sim_turns, self.max_agent_sim_turns),
            "history": self.history,
            "format_query": self.format_query,
            "test": _bare(self.test_code),
            "fixtures": self.fixtures,
        }
        text = json.dumps(_text_keys(content), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


class Unhydrated(UserError):
    """What is wrong with a dataset. needs: server -> uids of the tasks that name it, as far as they could be read."""

    def __init__(self, problems: Iterable[Problem] | Problem | str, needs: Mapping[str, Sequence[str]] | None = None):
        super().__init__(problems)
        self.needs = needs or {}

    def of(self, uids: set[str] | None) -> Unhydrated:
        """The same, where only these tasks are wanted; None: all."""
        if uids is None:
            return self
        left = {server: [uid for uid in named if uid in uids] for server, named in self.needs.items()}
        return Unhydrated(self.problems, {server: named for server, named in left.items() if named})


def servers_needed(tasks: Iterable[Task]) -> dict[str, list[str]]:
    """Server -> uids of the tasks that name it."""
    needs: dict[str, list[str]] = {}
    for task in tasks:
        for name in task.server_names():
            needs.setdefault(name, []).append(task.uid)
    return needs


def _text_keys(value: Any) -> Any:
    """With all keys as the texts that a server gets them as; YAML reads `on: 1` and `2: 1` as other types."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else json.dumps(key): _text_keys(part) for key, part in value.items()}
    return [_text_keys(part) for part in value] if isinstance(value, list | tuple) else value


def _bare(code: str) -> str:
    """Test code without comments, layout, the tasks' own `!` blocks and the name of the test."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return code
    entry = next((_bound(node) for node in tree.body if _bound(node)), None)
    body = [node for node in tree.body if not _is_block(node) and not _bound(node)]
    for node in body:
        if isinstance(node, ast.FunctionDef):
            node.body = [part for part in node.body if not _is_block(part)] or [ast.Pass()]
            if node.name == entry:
                node.name = "test"
    return ast.unparse(ast.Module(body, []))


def _bound(node: ast.stmt) -> str | None:
    """The function that a statement binds to the entry name of test code."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Name):
        return None
    names = [target.id for target in node.targets if isinstance(target, ast.Name)]
    return node.value.id if ENTRY in names else None


def _is_block(node: ast.stmt) -> bool:
    value = node.value.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else None
    return isinstance(value, str) and value.startswith("!")


def _tool(tool: ToolDef | ToolOverride) -> list[Any]:
    return [getattr(tool, name) for name in tool.__slots__]


def _server(world: Any, init: Any) -> Any:
    return merged(world, init) if world and init else copied(world or init or {})


def merged(base: Any, over: Any) -> Any:
    """The recursive merge of ThinkingBox: objects key by key, lists one after the other, anything else replaced."""
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        return {
            **{key: merged(value, over[key]) if key in over else copied(value) for key, value in base.items()},
            **{key: copied(value) for key, value in over.items() if key not in base},
        }
    if isinstance(base, list) and isinstance(over, list):
        return [copied(value) for value in (*base, *over)]
    return copied(over)


def copied(value: Any) -> Any:
    """A value with containers of its own; what a server does to its configuration stays with that session."""
    if isinstance(value, Mapping):
        return {key: copied(part) for key, part in value.items()}
    return [copied(part) for part in value] if isinstance(value, list) else value
