"""How the text of an argument becomes a typed value: the one table, and the two functions that follow it.

Decided here: which JSON types a schema admits (`admitted`), and which value a text then is (`take`). A schema is
reduced to the set of JSON types it admits; nothing else of it is looked at, because reading is not validating: a
value outside an enum or a range is read, passed on, and answered by the tool. Left to others: where an argument
begins and ends in the model's output (qwen_xml.py), and what the tool makes of the value.

No broken JSON is repaired: the policy learns from its mistakes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SPACE = " \t\r\n"  # JSON's own white space; other Unicode spaces are content
NAMES = ("null", "boolean", "integer", "number", "array", "object", "string")  # the order in which they are tried
ANYTHING = frozenset(NAMES)
ONLY_TEXT = frozenset({"string"})

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.0+)?")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"-?[0-9]+")


class Unreadable(ValueError):
    """A text that is no value of the wanted type; the message is for the agent. `end`: where a JSON value ends."""

    def __init__(self, why: str, end: int = 0):
        super().__init__(why)
        self.end = end


def complaint(name: str, why: str) -> str:
    """The text the agent gets for a call that cannot be read; `name` is empty when not even that was readable."""
    return f"Error: the call{f' of {name}' if name else ''} could not be read: {why}."


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Unreadable(f"{text[:40]} is out of range")
    return value


def decode_json(text: str) -> tuple[Any, int]:
    """The strict JSON value that a text begins with, and where it ends.

    NaN, Infinity, numbers out of range, lone surrogates and nesting deeper than the interpreter allows raise
    Unreadable, whose `end` is where the value ends; a JSONDecodeError, which tells the position, is left as it is.
    """
    problems: list[str] = []  # noted, not raised, so that the decoder goes on to the value's end

    def noted(convert: Callable[[str], Any]) -> Callable[[str], Any]:
        def number(spelling: str) -> Any:
            try:
                return convert(spelling)
            except ValueError as problem:
                problems.append(str(problem) if isinstance(problem, Unreadable) else "a number is too long")

        return number

    decoder = json.JSONDecoder(
        parse_constant=lambda name: problems.append(f"{name} is no JSON value"),
        parse_float=noted(_float),
        parse_int=noted(int),
    )
    try:
        value, end = decoder.raw_decode(text)
    except RecursionError:
        raise Unreadable("nested too deeply", len(text)) from None
    if "\\u" in text and not _encodable(value):
        problems.append("a lone surrogate is no character")
    if problems:
        raise Unreadable(problems[0], end)
    return value, end


def _encodable(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def whole_json(text: str) -> Any:
    """The strict JSON value that a whole text is; ValueError when it is none."""
    value, end = decode_json(text)
    if end != len(text):
        raise Unreadable(f"there is more after the JSON value, from character {end + 1}")
    return value


def _null(text: str) -> None:
    if text != "null":
        raise Unreadable("not null")


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise Unreadable("not true or false")
    return text == "true"


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise Unreadable("not an integer")
    try:
        return int(text.partition(".")[0])
    except ValueError:
        raise Unreadable("too many digits") from None


def _number(text: str) -> int | float:
    if not _NUMBER.fullmatch(text):
        raise Unreadable("not a number")
    if not _WHOLE.fullmatch(text):
        return _float(text)
    try:
        return int(text)
    except ValueError:
        raise Unreadable("too many digits") from None


def _container(opening: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if not text.startswith(opening):
            raise Unreadable(f"does not begin with {opening}")
        try:
            return whole_json(text)
        except json.JSONDecodeError as problem:
            raise Unreadable(f"{problem.msg} at character {problem.pos + 1}") from None

    return read


_READERS: dict[str, Callable[[str], Any]] = {
    "null": _null,
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "array": _container("["),
    "object": _container("{"),
}
# Published Qwen templates write a Python True and None this way, so models do too.
_PYTHON_SPELLING = {"True": "true", "False": "false", "None": "null"}


def take(text: str, types: frozenset[str]) -> Any:
    """The value that `text` is when a schema admits `types`; Unreadable when it is none.

    Only text admitted: the text as it stands. Text and others: what is exactly another type's JSON spelling is that
    type, all else is text; a JSON string literal stands for its content where the content alone would be read
    otherwise (`"7"`). No text admitted: white space around the value is dropped, and True, False and None count as
    true, false and null.
    """
    if types == ONLY_TEXT:
        return text
    if "string" in types:
        literal = _escaped(text, types)
        if literal is not None:
            return literal
        try:
            return _take_typed(text, types)
        except Unreadable:
            return text
    bare = text.strip(SPACE)
    return _take_typed(_PYTHON_SPELLING.get(bare, bare), types)


def _take_typed(text: str, types: frozenset[str]) -> Any:
    problems = []
    for name in NAMES:
        if name in types and name in _READERS:
            try:
                return _READERS[name](text)
            except Unreadable as problem:
                problems.append(str(problem))
    raise Unreadable(problems[0] if len(problems) == 1 else "none of these types")


def _escaped(text: str, types: frozenset[str]) -> str | None:
    """The content of a JSON string literal that had to be quoted to be read as text, else None."""
    if not (len(text) > 1 and text[0] == text[-1] == '"'):
        return None
    try:
        content = whole_json(text)
    except ValueError:
        return None
    return content if isinstance(content, str) and take(content, types) != content else None


def write(value: Any, types: frozenset[str]) -> str:
    """The text that `take` reads as `value`; ValueError when there is none."""
    if not isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        if _same(text, value, types):
            return text
    elif _same(value, value, types):
        return value
    elif _same(quoted := json.dumps(value, ensure_ascii=False), value, types):
        return quoted
    raise ValueError(f"{value!r} is not a value of type {' or '.join(sorted(types))}")


def _same(text: str, value: Any, types: frozenset[str]) -> bool:
    try:
        back = take(text, types)
    except Unreadable:
        return False
    return bool(back == value) and isinstance(back, bool) == isinstance(value, bool)


def admitted(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that `schema` admits; `root` is the tool's schema, where `$ref` points into."""
    return _admitted(schema, root, frozenset()) or ANYTHING


def _admitted(schema: Any, root: Mapping[str, Any], seen: frozenset[str]) -> frozenset[str]:
    if not isinstance(schema, Mapping):
        return ANYTHING
    types = ANYTHING
    for part in _constraints(schema, root, seen):
        types &= part
    if schema.get("nullable") is True:
        types |= {"null"}
    return types


def _constraints(schema: Mapping[str, Any], root: Mapping[str, Any], seen: frozenset[str]) -> Iterator[frozenset[str]]:
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        yield _admitted(_resolve(reference, root), root, seen | {reference})
    declared = schema.get("type")
    if isinstance(declared, str):
        declared = [declared]
    if isinstance(declared, (list, tuple)):
        names = frozenset(name for name in declared if isinstance(name, str)) & ANYTHING
        # An integer is a number: together with an enum of whole numbers the integers are what is left.
        yield (names | {"integer"} if "number" in names else names) or ANYTHING
    elif not schema.keys() & {"enum", "const", "anyOf", "oneOf", "allOf", "$ref"}:
        if "properties" in schema:
            yield frozenset({"object"})
        elif "items" in schema or "prefixItems" in schema:
            yield frozenset({"array"})
    members = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(members, (list, tuple)) and members:
        yield frozenset(_type_of(member) for member in members)
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key)
        if isinstance(choices, (list, tuple)) and choices:
            yield frozenset().union(*(_admitted(choice, root, seen) for choice in choices))
    parts = schema.get("allOf")
    if isinstance(parts, (list, tuple)):
        for part in parts:
            yield _admitted(part, root, seen)


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    """What a reference into the tool's own schema points to; {} (anything) when it points nowhere."""
    if not reference.startswith("#"):
        return {}
    place: Any = root
    for step in reference[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(place, Mapping) or step not in place:
            return {}
        place = place[step]
    return place


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for name, kind in (("integer", int), ("number", float), ("string", str), ("array", (list, tuple))):
        if isinstance(value, kind):
            return name
    return "object"


def parameter_types(input_schema: Mapping[str, Any] | None, parameter: str) -> frozenset[str]:
    """What a tool's schema admits for one parameter; anything where neither the tool nor the parameter is declared."""
    if not isinstance(input_schema, Mapping):
        return ANYTHING
    properties = input_schema.get("properties")
    if isinstance(properties, Mapping) and parameter in properties:
        return admitted(properties[parameter], input_schema)
    return admitted(input_schema.get("additionalProperties"), input_schema)


@dataclass(frozen=True, slots=True)
class Row:
    """One case of the table: a schema, the rule in a sentence, and texts with the values they are read as."""

    case: str
    schema: Mapping[str, Any]
    rule: str
    reads: tuple[tuple[str, Any], ...]
    refuses: tuple[str, ...] = ()


TABLE: tuple[Row, ...] = (
    Row(
        "string",
        {"type": "string"},
        "the text as it stands; a declared string is never converted, trimmed or unquoted",
        (
            ("123", "123"),
            ("null", "null"),
            (" x ", " x "),
            ('"q"', '"q"'),
            ("", ""),
            ("a</parameter>b", "a</parameter>b"),
        ),
    ),
    Row(
        "integer",
        {"type": "integer"},
        "ASCII digits as JSON writes them; a fraction of zeros is allowed, as JSON schema has it",
        (("7", 7), ("-12", -12), (" 7\n", 7), ("7.0", 7)),
        ("7.5", "1_000", "1,000", "+7", "007", "1e3", "seven", "", "٧", "9" * 5000),
    ),
    Row(
        "number",
        {"type": "number"},
        "a JSON number: whole ones stay integers, the others must be finite",
        (("7", 7), ("2.5", 2.5), ("-1e3", -1000.0)),
        ("nan", "NaN", "inf", "Infinity", "1e999", "1_000.5", ".5", "5.", "٢.٥"),
    ),
    Row(
        "boolean",
        {"type": "boolean"},
        "true or false; True and False too, since published templates write them so",
        (("true", True), ("false", False), ("True", True), (" False ", False)),
        ("yes", "1", "0", "TRUE", '"true"', ""),
    ),
    Row("null", {"type": "null"}, "null, or None", (("null", None), ("None", None)), ("", "nil", "0")),
    Row(
        "array",
        {"type": "array", "items": {"type": "integer"}},
        "a JSON array, whole and strict; its elements are typed by JSON itself, not by the schema",
        (("[1, 2]", [1, 2]), ("[]", []), ('["1"]', ["1"])),
        ("1, 2", "[1, 2", "[1, 2,]", "['a']", "[NaN]", "[1] [2]", '["\\ud800"]', "[" * 5000),
    ),
    Row(
        "object",
        {"type": "object"},
        "a JSON object, whole and strict",
        (('{"a": 1}', {"a": 1}), ("{}", {})),
        ('{"a": 1', "{'a': 1}", "{a: 1}", "null", '{"a": 1e999}'),
    ),
    Row(
        "enum",
        {"enum": ["7", "auto"]},
        "the types of its members; a value that is no member is passed on, and the tool answers",
        (("7", "7"), ("auto", "auto"), ("other", "other")),
    ),
    Row(
        "enum of several types",
        {"enum": [1, "auto", None]},
        "as anyOf of its members' types; const is an enum of one",
        (("1", 1), ("auto", "auto"), ("null", None), ('"1"', "1")),
    ),
    Row(
        "anyOf with null",
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "the first of null, boolean, integer, number, array, object, string that it is, in this order",
        (("7", 7), ("null", None), ("None", None)),
        ("2.5", "seven", "7 null"),
    ),
    Row(
        "integer or number",
        {"type": ["integer", "number"]},
        "a list of types is an anyOf",
        (("2.5", 2.5), ("2", 2)),
        ("x",),
    ),
    Row(
        "string or null",
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "beside a string only the exact JSON spelling is another type; in quotes it is text",
        (("null", None), ('"null"', "null"), ("None", "None"), (" null", " null"), ('"x"', '"x"'), ("", "")),
    ),
    Row(
        "oneOf with array",
        {"oneOf": [{"type": "string"}, {"type": "array"}]},
        "as anyOf",
        (("[1]", [1]), ("[1", "[1"), ('"[1]"', "[1]"), ("7", "7")),
    ),
    Row(
        "allOf",
        {"allOf": [{"type": ["integer", "null"]}, {"type": "integer"}]},
        "what all parts admit",
        (("7", 7),),
        ("null",),
    ),
    Row(
        "$ref",
        {"$ref": "#/$defs/days", "$defs": {"days": {"type": "integer"}}},
        "what it points to within the tool's schema; anything where it points nowhere or in a circle",
        (("7", 7),),
        ("x",),
    ),
    Row(
        "missing type",
        {"description": "anything"},
        "what is exactly a JSON number, true, false, null, array or object is that; all else is text",
        (
            ("7", 7),
            ("true", True),
            ("True", "True"),
            ('{"a": 1}', {"a": 1}),
            ("{broken", "{broken"),
            ("7 days", "7 days"),
        ),
    ),
    Row(
        "missing type with properties",
        {"properties": {"a": {}}},
        "properties mean an object, items an array",
        (('{"a": 1}', {"a": 1}),),
        ("a",),
    ),
)

# The same for parameters that the schema does not name: (case, the tool's input schema or None, rule, text, value).
UNDECLARED: tuple[tuple[str, Mapping[str, Any] | None, str, str, Any], ...] = (
    (
        "additionalProperties",
        {"additionalProperties": {"type": "string"}},
        "its schema types what is not declared",
        "7",
        "7",
    ),
    (
        "undeclared parameter",
        {"properties": {}, "additionalProperties": False},
        "read as missing type and passed on",
        "7",
        7,
    ),
    ("undeclared function", None, "its arguments are read as missing type and passed on", "7", 7),
)


def table_markdown() -> str:
    """The table as the documentation shows it."""

    def shown(value: str) -> str:
        value = value if len(value) < 40 else value[:12] + "…"
        return "`` " + value.replace("|", "\\|").replace("\n", "\\n") + " ``" if value else "(empty)"

    lines = ["| case | schema | rule | read | refused |", "|---|---|---|---|---|"]
    for row in TABLE:
        read = ", ".join(f"{shown(text)} → {shown(json.dumps(value, ensure_ascii=False))}" for text, value in row.reads)
        refused = ", ".join(shown(text) for text in row.refuses) or "nothing"
        lines.append(f"| {row.case} | {shown_schema(row.schema)} | {row.rule} | {read} | {refused} |")
    for case, schema, rule, text, value in UNDECLARED:
        read = f"{shown(text)} → {shown(json.dumps(value))}"
        lines.append(f"| {case} | {shown_schema(schema)} | {rule} | {read} | nothing |")
    return "\n".join(lines) + "\n"


def shown_schema(schema: Mapping[str, Any] | None) -> str:
    """A schema as one cell of the table."""
    return "none" if schema is None else f"`{json.dumps(schema)}`"
