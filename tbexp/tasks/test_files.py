"""The files under test_case/: which tests a file holds, and each test's fields and code.

Decided here: the python form (read as a syntax tree, never imported) and the YAML form. Left to others: finding files,
and what the fields refer to (loader.py).
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbexp.errors import Problem
from tbexp.tasks import blocks
from tbexp.tasks.blocks import Block, Check
from tbexp.tasks.records import ENTRY

_GIVEN = ("x", "judge")  # the arguments every test gets; all others are fixtures


def _history(value: Any) -> str:
    return "" if value is None or isinstance(value, (str, dict)) else "must be key:start:end or an object"


TEST_FIELDS: Mapping[str, Check] = {
    "scenario": blocks.text,
    "query": blocks.text,
    "user_context": blocks.text_or_null,
    "max_user_sim_turns": blocks.count,
    "max_agent_sim_turns": blocks.count,
    "bot_instructions": blocks.text_or_null,
    "history": _history,
    "init": blocks.objects_or_empty,
    "format_query": blocks.flag,
    "tags": blocks.texts,
}
_YAML_FIELDS: Mapping[str, Check] = {
    "uid": blocks.text,
    **TEST_FIELDS,
    "test_code": blocks.text,
    "metadata": blocks.mapping,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One test of a file: its checked fields, where they stand, its code, and the fixtures that the code asks for."""

    name: str
    block: Block
    fields: dict[str, Any]
    code: str
    fixtures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    block: tuple[str, int]  # YAML text and the line it begins in
    span: slice  # its lines in the file
    parameters: tuple[str, ...]


class TestFile:
    """A parsed file; `cases` reads the tests that are asked for, so that a few tests of a large file cost little."""

    __test__ = False  # not a test class, whatever its name

    def __init__(self, path: Path, problems: list[Problem]):
        self.path = path
        self._problems = problems
        before = len(problems)
        self._module = Block(path, 1)
        self._functions: dict[str, _Function] = {}
        self._cases: dict[str, Case] = {}
        self._lines: list[str] = []
        self._blank: list[str] = []  # the same with every test blanked
        self.broken: bool  # nothing of it could be read, which was noted
        text = blocks.read_text(path, problems)
        if len(problems) > before:
            self.broken = True
            return
        if path.suffix == ".py":
            self._parse_python(text)
        else:
            self._parse_yaml(text)
        self.broken = not self.names and len(problems) > before

    @property
    def names(self) -> tuple[str, ...]:
        """The tests of this file in their order."""
        return tuple(self._functions or self._cases)

    def cases(self, names: Iterable[str]) -> Iterator[Case]:
        """The tests of these names; what is wrong with them is noted. Names that the file lacks are left out."""
        for name in names:
            if name not in self._cases and name in self._functions:
                case = self._python_case(self._functions[name])
                if case:
                    self._cases[name] = case
            if name in self._cases:
                yield self._cases[name]

    def _parse_python(self, text: str) -> None:
        try:
            tree = ast.parse(text, filename=str(self.path))
        except (SyntaxError, ValueError) as problem:
            line = getattr(problem, "lineno", None) or 1
            self._problems.append(
                Problem(f"not valid Python: {getattr(problem, 'msg', problem)}", f"{self.path}:{line}")
            )
            return
        self._lines = text.split("\n")
        last = 0
        for node in tree.body:
            if node.lineno <= last:
                self._note("two statements on one line cannot be told apart", node.lineno)
            last = node.end_lineno or node.lineno
            if isinstance(node, ast.Expr) and (found := _marked(node)):
                block = blocks.read_block(_dedented(found), self.path, found.lineno, self._problems)
                if block:
                    blocks.checked(block, TEST_FIELDS, self._problems, what="the module block")
                    self._module = block.over(self._module)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (found := _marked(node.body[0])):
                self._add_function(node, found)
        self._blank = list(self._lines)
        for function in self._functions.values():
            self._blank[function.span] = [""] * (function.span.stop - function.span.start)

    def _add_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, found: ast.Constant) -> None:
        if what := never_decides(node):
            self._note(f"{node.name} {what}, so it cannot be a test", node.lineno)
            return
        if node.name in self._functions:
            self._note(f"uid {self.path.name}:{node.name} is given twice in this file", node.lineno)
        arguments = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        takes = {*arguments, *(argument.arg for argument in node.args.kwonlyargs)}
        missing = [name for name in _GIVEN if name not in takes and not node.args.kwarg]
        if missing:
            self._note(f"{node.name} must take the arguments {' and '.join(missing)}", node.lineno)
        start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
        span = slice(start, node.end_lineno or node.lineno)
        block = (_dedented(found), found.lineno)
        self._functions[node.name] = _Function(node.name, block, span, tuple(a for a in arguments if a not in _GIVEN))

    def _python_case(self, function: _Function) -> Case | None:
        text, line = function.block
        own = blocks.read_block(text, self.path, line, self._problems)
        if own is None:
            return None
        # What the module block got wrong was noted once, when the file was parsed.
        unnoted: list[Problem] = []
        fields = blocks.checked(self._module, TEST_FIELDS, unnoted, what="the module block")
        mine = blocks.checked(own, TEST_FIELDS, self._problems, what=f"test {function.name}")
        tags = [*fields.get("tags", ()), *mine.get("tags", ())]
        block = own.over(self._module)
        if "query" not in block.values:
            self._problems.append(Problem(f"test {function.name} needs the key query", own.at()))
        lines = list(self._blank)
        lines[function.span] = self._lines[function.span]
        code = "\n".join(lines) + f"\n{ENTRY} = {function.name}\n"
        return Case(function.name, block, {**fields, **mine, "tags": tags}, code, function.parameters)

    def _parse_yaml(self, text: str) -> None:
        value, node = blocks.read_yaml(text, self.path, 1, self._problems)
        if node is None:
            return
        top = blocks.block_of(value, node, self.path, 1, self._problems)
        if top is None:
            return
        good = blocks.checked(
            top, {"test_cases": blocks.listing}, self._problems, what="a file", required=["test_cases"]
        )
        nodes = blocks.under(node, "test_cases")
        for part, part_node in zip(good.get("test_cases", ()), nodes.value if nodes else (), strict=False):
            block = blocks.block_of(part, part_node, self.path, 1, self._problems)
            if block is None:
                continue
            required = ["uid", "query", "test_code"]
            fields = blocks.checked(block, _YAML_FIELDS, self._problems, what="a test", required=required)
            name = fields.pop("uid", None)
            if name is not None and (not name or ":" in name):
                self._problems.append(
                    Problem(
                        f"uid {name!r} can be in no selector <file>:<test>", block.at("uid"), "give it a name without :"
                    )
                )
                continue
            if name in self._cases:
                self._note(f"uid {self.path.name}:{name} is given twice in this file", block.line)
            if name is not None:
                code = fields.pop("test_code", "")
                self._cases[name] = Case(name, block, fields, code, asked_fixtures(code, block, self._problems))

    def _note(self, what: str, line: int) -> None:
        self._problems.append(Problem(what, f"{self.path}:{line}"))


def never_decides(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Why calling the function would run nothing of it; "" where it runs, or where a decorator may see to that."""
    if isinstance(node, ast.AsyncFunctionDef):
        return "is async"
    inner: list[ast.AST] = [] if node.decorator_list else list(node.body)
    while inner:
        part = inner.pop()
        if isinstance(part, ast.Yield | ast.YieldFrom):
            return "yields"
        if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            inner += ast.iter_child_nodes(part)
    return ""


def asked_fixtures(code: str, block: Block, problems: list[Problem]) -> tuple[str, ...]:
    """The fixtures that the test in a block's `test_code` asks for; code that holds no test is noted."""
    if not code.strip():
        return ()  # no grading
    where = block.at("test_code")
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError) as problem:
        problems.append(Problem(f"test_code is not valid Python: {problem}", where))
        return ()
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    bound = [
        node.value.id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)
        if any(isinstance(target, ast.Name) and target.id == ENTRY for target in node.targets)
    ]
    if not bound and ENTRY not in functions and ENTRY not in code:
        problems.append(Problem(f"test_code must bind {ENTRY} to the test function", where))
    entry = functions.get(bound[-1] if bound else ENTRY)
    if entry is None:
        return ()
    if what := never_decides(entry):
        problems.append(Problem(f"{entry.name} in test_code {what}, so it cannot be a test", where))
    return tuple(a.arg for a in (*entry.args.posonlyargs, *entry.args.args) if a.arg not in _GIVEN)


def _marked(node: ast.stmt) -> ast.Constant | None:
    """The string of a statement that is only a string beginning with `!`."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        value = node.value.value
        return node.value if isinstance(value, str) and value.startswith("!") else None
    return None


def _dedented(found: ast.Constant) -> str:
    return textwrap.dedent(str(found.value)[1:])
