"""The rental desk's tools as an agent sees them, and the reading of their arguments.

Decided here: names, order, descriptions, argument types, and the text an agent reads when its arguments don't fit.
What a tool does stands in `desk.py`; the MCP server lists exactly these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tbexp.interpret.messages import ToolSpec

SIZES = ("small", "medium", "large")
TOPICS = ("billing", "delivery", "damage", "safety")
ITEMS = ("helmet", "ramp", "lamp", "trailer", "breaker")

LARGEST = 10**9  # of a number, so that sums stay within SQLite's integers

_TEXT: dict[str, Any] = {"type": "string"}
_INTEGER: dict[str, Any] = {"type": "integer"}
_NUMBER: dict[str, Any] = {"type": "number"}


def _choice(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


def _or_null(kind: str) -> dict[str, Any]:
    return {"anyOf": [{"type": kind}, {"type": "null"}], "default": None}


def _tool(name: str, description: str, **parameters: dict[str, Any]) -> ToolSpec:
    required = [key for key, schema in parameters.items() if "default" not in schema]
    return ToolSpec(name, description, {"type": "object", "properties": parameters, "required": required})


TOOLS: tuple[ToolSpec, ...] = (
    _tool("get_rental", "Show a rental.", rental=_TEXT),
    _tool("get_machine", "Show a machine.", machine=_TEXT),
    _tool("get_customer", "Show open tickets.", customer=_TEXT),
    _tool("find_machines", "Free machines, best first.", size=_choice(*SIZES), max_rate=_or_null("number")),
    _tool("get_deposit", "Show a deposit.", rental=_TEXT),
    _tool("get_invoice", "Show an invoice.", invoice=_TEXT),
    _tool("find_invoices", "Invoices of a rental.", rental=_TEXT),
    _tool("quote_return", "Refund for early return.", rental=_TEXT),
    _tool("ask_approval", "Ask the site manager.", rental=_TEXT, action=_choice("return", "downgrade")),
    _tool("end_rental", "End a rental.", rental=_TEXT, refund=_INTEGER),
    _tool("swap_machine", "Change the machine.", rental=_TEXT, machine=_TEXT),
    _tool("extend_rental", "Add days.", rental=_TEXT, days=_INTEGER),
    _tool("settle_deposit", "Pay a deposit back.", rental=_TEXT, refund=_INTEGER, keep=_INTEGER),
    _tool("report_damage", "Record damage.", rental=_TEXT, severity=_choice("minor", "major"), cost=_NUMBER),
    _tool("refund_invoice", "Pay back.", invoice=_TEXT, amount=_NUMBER),
    _tool("void_invoice", "Cancel a duplicate.", invoice=_TEXT),
    _tool(
        "open_ticket",
        "Open a ticket.",
        customer=_TEXT,
        topic=_choice(*TOPICS),
        urgent={"type": "boolean"},
        rental=_or_null("string"),
    ),
    _tool("close_ticket", "Close a ticket.", ticket=_TEXT),
    _tool(
        "add_items",
        "Add accessories.",
        rental=_TEXT,
        items={"type": "array", "items": _choice(*ITEMS), "minItems": 1},
    ),
)
BY_NAME: Mapping[str, ToolSpec] = {tool.name: tool for tool in TOOLS}


def complaint(tool: ToolSpec, arguments: Mapping[str, Any]) -> str:
    """Why these arguments don't fit the tool, in a few words; empty when they do."""
    schemas: Mapping[str, Any] = tool.input_schema["properties"]
    for name in arguments:
        if name not in schemas:
            return f"unknown argument {name}"
    for name in tool.input_schema["required"]:
        if name not in arguments:
            return f"{name} is missing"
    for name, value in arguments.items():
        if wrong := _misfit(value, schemas[name]):
            return f"{name} must be {wrong}"
    return ""


def _misfit(value: Any, schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        misfits = [_misfit(value, each) for each in schema["anyOf"]]
        return "" if "" in misfits else " or ".join(misfits)
    kind = schema["type"]
    if "enum" in schema:
        return "" if value in schema["enum"] else "one of " + ", ".join(schema["enum"])
    if kind == "array":
        if not isinstance(value, list) or len(value) < schema.get("minItems", 0):
            return "a list"
        return next((f"a list, each {wrong}" for each in value if (wrong := _misfit(each, schema["items"]))), "")
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST
    fits = {
        "string": isinstance(value, str),
        "integer": number and float(value).is_integer(),
        "number": number,
        "boolean": isinstance(value, bool),
        "null": value is None,
    }
    return "" if fits[kind] else kind
