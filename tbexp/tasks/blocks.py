"""YAML objects with the line of every key, checked strictly: all problems are noted, none raised.

Decided here: which type each field has and how a wrong one is reported. Left to others: what the fields mean.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tbexp.errors import Problem

MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """YAML as the safe loader reads it, but a date stays text: everything here has to go through JSON.

    Of several objects that are merged the first wins, as YAML has it; in some versions of the loader the last does.
    """

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        try:
            node.value = pairs(node)
        except ValueError as problem:
            raise yaml.constructor.ConstructorError(None, None, str(problem), node.start_mark) from None


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True)
class Block:
    """One object: its values, where it stands, and the line of each of its keys.

    prefix: what its keys are told with, where it is a part of a row that stands in one line (`scenario.`).
    """

    file: Path
    line: int
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    prefix: str = ""

    def at(self, key: str = "") -> str:
        """`file:line` of a key, or of the block."""
        return f"{self.file}:{self.lines.get(key, self.line)}"

    def over(self, below: Block) -> Block:
        """This block laid over another, key by key."""
        return Block(self.file, self.line, below.values | self.values, below.lines | self.lines)


def is_file(path: Path) -> bool:
    """Whether there is a file; none is there with a name that the system does not even take."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_text(file: Path, problems: list[Problem]) -> str:
    """A file's text; "" where it cannot be read, which is then a problem."""
    try:
        return file.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark of its encoding
    except (OSError, UnicodeDecodeError) as problem:
        problems.append(Problem(f"cannot be read: {problem}", str(file), "save it as UTF-8 text"))
        return ""


def read_yaml(text: str, file: Path, line: int, problems: list[Problem]) -> tuple[Any, yaml.Node | None]:
    """The value of a YAML text that begins at a line of a file, and its node tree; (None, None) when it is broken, or
    holds what JSON has no form for: everything here goes to servers and into rows as JSON.
    """
    try:
        loader = _Loader(text)
    except yaml.YAMLError as problem:  # a character that YAML does not have
        problems.append(Problem(f"not valid YAML: {problem}", f"{file}:{line}"))
        return None, None
    try:
        node = loader.get_single_node()
        if node is None:
            return None, None
        wrong = [Problem(what, f"{file}:{line + at.start_mark.line}") for at, what in _not_json(loader, node, {})]
        problems.extend(wrong or _twice(node, file, line, set()))
        if wrong:
            return None, None
        return loader.construct_document(node), node
    except (yaml.YAMLError, ValueError, TypeError, LookupError, RecursionError) as problem:
        mark = getattr(problem, "problem_mark", None)
        what = getattr(problem, "problem", None) or str(problem)
        problems.append(Problem(f"not valid YAML: {what}", f"{file}:{line + (mark.line if mark else 0)}"))
        return None, None
    finally:
        loader.dispose()


def under(node: yaml.Node, key: str) -> yaml.Node | None:
    """What stands under a key of an already read object; the object's own, where a merge brought one too."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for name, value in reversed(pairs) if name.value == key), None)


def pairs(node: yaml.MappingNode) -> list[tuple[yaml.Node, yaml.Node]]:
    """Keys and values of an object that has not been read, those of a merge key (`<<: *other`) first.

    A later pair replaces an earlier one of its key. Raises ValueError with what is wrong with a merge.
    """
    return _pairs(node, frozenset())


def _pairs(node: yaml.MappingNode, within: frozenset[int]) -> list[tuple[yaml.Node, yaml.Node]]:
    if id(node) in within:
        raise ValueError("is merged into itself")
    merges: list[tuple[yaml.Node, yaml.Node]] = []
    own = []
    for key, value in node.value:
        if key.tag != MERGE:
            own.append((key, value))
            continue
        parts = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for part in reversed(parts):  # the first of several wins
            if not isinstance(part, yaml.MappingNode):
                raise ValueError("merges what is no object")
            merges += _pairs(part, within | {id(node)})
    return merges + own


_YAML = "tag:yaml.org,2002:"
_JSON_TAGS = {_YAML + name for name in ("null", "bool", "int", "float", "str", "map", "seq", "merge")}


def _not_json(loader: Any, node: yaml.Node, seen: dict[int, bool]) -> Iterator[tuple[yaml.Node, str]]:
    """Each part of a node tree that JSON has no form for. seen: nodes by id, and whether they are being looked at."""
    if id(node) in seen:  # an alias
        if seen[id(node)]:
            yield node, "holds itself, so it never ends"
        return
    seen[id(node)] = True
    if node.tag not in _JSON_TAGS:
        yield node, f"{node.tag.replace(_YAML, '!!')} has no form in JSON, as which everything here is passed on"
    elif isinstance(node, yaml.ScalarNode):
        if what := _not_json_scalar(loader, node):
            yield node, what
    elif isinstance(node, yaml.MappingNode):
        for part in (part for pair in node.value for part in pair):
            yield from _not_json(loader, part, seen)
    else:
        for part in node.value:
            yield from _not_json(loader, part, seen)
    seen[id(node)] = False


def _twice(node: yaml.Node, file: Path, line: int, seen: set[int]) -> Iterator[Problem]:
    """A problem for each key that an object gives twice; what a merge brings is not given. Before any is flattened."""
    if id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    lines: dict[str, int] = {}
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ((None, part) for part in node.value):
        if key is not None and key.tag != MERGE:
            name, at = str(key.value), line + key.start_mark.line
            if name in lines:
                yield Problem(f"key {name} is given twice, first in line {lines[name]}", f"{file}:{at}")
            lines.setdefault(name, at)
        yield from _twice(value, file, line, seen)


def _not_json_scalar(loader: Any, node: yaml.ScalarNode) -> str:
    if node.tag == _YAML + "float" and not math.isfinite(loader.construct_yaml_float(node)):
        return f"{node.value} is no number in JSON"
    if node.tag == _YAML + "int":
        str(loader.construct_yaml_int(node))  # ValueError: more digits than are read back
    node.value.encode()  # ValueError: half of a surrogate pair
    return ""


def read_block(text: str, file: Path, line: int, problems: list[Problem]) -> Block | None:
    """The YAML object of a text; an empty text is an empty object; None when it is broken or no object."""
    count = len(problems)
    value, node = read_yaml(text, file, line, problems)
    if len(problems) > count:
        return None
    if node is None:
        return Block(file, line)
    return block_of(value, node, file, line, problems)


def block_of(value: Any, node: yaml.Node, file: Path, line: int, problems: list[Problem]) -> Block | None:
    """The block that an already read node is; `line` is that of the text's first line."""
    start = line + node.start_mark.line
    if not isinstance(node, yaml.MappingNode) or not isinstance(value, dict):
        problems.append(Problem(f"must be an object with keys, is {_name(value)}", f"{file}:{start}"))
        return None
    lines: dict[str, int] = {}
    for key, _ in node.value:  # what is merged in comes first, and what replaces it later
        lines[str(key.value)] = line + key.start_mark.line
    return Block(file, start, {str(key): part for key, part in value.items()}, lines)


def part_of(block: Block, key: str) -> Block:
    """The object that stands under a key of a row; an empty one where none is there."""
    value = block.values.get(key)
    return Block(block.file, block.line, value if isinstance(value, dict) else {}, prefix=f"{block.prefix}{key}.")


def parts_of(block: Block, key: str, problems: list[Problem]) -> list[Block]:
    """The objects of a list that stands under a key of a row."""
    found = []
    listed = block.values.get(key)
    for number, value in enumerate(listed if isinstance(listed, list) else ()):
        name = f"{block.prefix}{key}[{number}]"
        if isinstance(value, dict):
            found.append(Block(block.file, block.line, value, prefix=f"{name}."))
        else:
            problems.append(Problem(f"{name} must be an object with keys, is {_name(value)}", block.at()))
    return found


Check = Callable[[Any], str]  # what is wrong with a value, "" when nothing is


def _kind(wanted: str, *types: type) -> Check:
    def check(value: Any) -> str:
        good = isinstance(value, types) and (bool in types or not isinstance(value, bool))
        return "" if good else f"must be {wanted}, is {_name(value)}"

    return check


text = _kind("a text", str)
text_or_null = _kind("a text or null", str, type(None))
flag = _kind("true or false", bool)
whole = _kind("a whole number", int)
mapping = _kind("an object", dict)
listing = _kind("a list", list)


def count(value: Any) -> str:
    """A whole number that is not negative."""
    return whole(value) or ("" if value >= 0 else f"must be at least 0, is {value}")


def texts(value: Any) -> str:
    """A list of texts."""
    return listing(value) or next((f"must hold texts only, has {_name(part)}" for part in value if text(part)), "")


def texts_by_name_or_null(value: Any) -> str:
    """An object whose values are texts, or null."""
    if value is None:
        return ""
    return mapping(value) or next((f"{key} must be a text" for key, part in value.items() if text(part)), "")


def objects(value: Any) -> str:
    """An object whose values are objects."""
    return mapping(value) or next(
        (f"{key} must be an object, is {_name(part)}" for key, part in value.items() if not isinstance(part, dict)), ""
    )


def objects_or_empty(value: Any) -> str:
    """As objects, where each value may be left empty."""
    return mapping(value) or objects({key: {} if part is None else part for key, part in value.items()})


def or_null(check: Check) -> Check:
    """As the check, or null."""
    return lambda value: "" if value is None else check(value)


def anything(value: Any) -> str:
    """Whatever it is."""
    return ""


def checked(
    block: Block,
    fields: Mapping[str, Check],
    problems: list[Problem],
    *,
    what: str,
    required: Iterable[str] = (),
) -> dict[str, Any]:
    """The values of a block whose keys and types are right; each wrong or missing one is noted."""
    good: dict[str, Any] = {}
    for key, value in block.values.items():
        if key not in fields:
            near = nearest(key, fields)
            fix = f"did you mean {near[0]}?" if near else f"keys of {what}: {', '.join(fields)}"
            problems.append(Problem(f"unknown key {block.prefix}{key} of {what}", block.at(key), fix))
        elif wrong := fields[key](value):
            problems.append(Problem(f"{block.prefix}{key} {wrong}", block.at(key)))
        else:
            good[key] = value
    for key in required:
        if key not in block.values:
            problems.append(Problem(f"{what} needs the key {block.prefix}{key}", block.at()))
    return good


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Up to three names that look like `name`, the most similar first."""
    return difflib.get_close_matches(name, list(names), n=3, cutoff=0.6)


def _name(value: Any) -> str:
    names: dict[type, str] = {type(None): "empty", bool: "true or false", int: "a number", float: "a number"}
    names |= {str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)
