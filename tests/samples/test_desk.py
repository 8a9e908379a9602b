"""The desk's tools: what they answer and change."""

from __future__ import annotations

from typing import Any

import pytest

from tbexp.samples.desk import Desk

DATA: dict[str, list[dict[str, Any]]] = {
    "customers": [{"id": "C1", "name": "Ada Quist", "account": "site"}],
    "machines": [
        {"id": "M1", "kind": "lift", "size": "large", "rate": 200, "status": "out"},
        {"id": "M2", "kind": "saw", "size": "small", "rate": 90},
        {"id": "M3", "kind": "saw", "size": "small", "rate": 120},
    ],
    "rentals": [
        {"id": "R1", "customer": "C1", "machine": "M1", "days": 5, "paid": 400, "due": 120, "manager": "denied"}
    ],
    "deposits": [{"id": "R1", "amount": 200}],
    "damages": [{"id": "DM-0", "rental": "R1", "severity": "minor", "cost": 50}],
    "invoices": [
        {"id": "I1", "customer": "C1", "rental": "R1", "amount": 80, "age": 10},
        {"id": "I2", "customer": "C1", "rental": "R1", "amount": 80, "age": 20},
    ],
    "tickets": [{"id": "T1", "customer": "C1", "topic": "billing"}],
}


@pytest.mark.parametrize(
    ("tool", "arguments", "answer", "changes"),
    [
        (
            "get_rental",
            {"rental": "R1"},
            "rental R1 customer C1 account site machine M1 size large paid 400 reserved no damage minor status open",
            {},
        ),
        ("get_machine", {"machine": "M2"}, "machine M2 saw size small rate 90 status free", {}),
        ("get_customer", {"customer": "C1"}, "customer C1 account site tickets T1 billing", {}),
        ("find_machines", {"size": "small"}, "machine M3 rate 120 machine M2 rate 90", {}),
        ("find_machines", {"size": "small", "max_rate": 100.5}, "machine M2 rate 90", {}),
        ("find_machines", {"size": "medium", "max_rate": None}, "none", {}),
        (
            "get_deposit",
            {"rental": "R1"},
            "deposit 200 held customer C1 rental open damage minor keep 50 refund 150",
            {},
        ),
        ("get_invoice", {"invoice": "I1"}, "invoice I1 customer C1 amount 80 age 10 status paid", {}),
        ("find_invoices", {"rental": "R1"}, "invoice I2 amount 80 paid invoice I1 amount 80 paid", {}),
        ("quote_return", {"rental": "R1"}, "refund 120", {}),
        (
            "ask_approval",
            {"rental": "R1", "action": "return"},
            "approval AP-1 denied",
            {
                "approvals": {
                    "AP-1": {
                        "rental": "R1",
                        "action": "return",
                        "decision": "denied",
                        "machine": "M1",
                        "status": "open",
                    }
                }
            },
        ),
        (
            "end_rental",
            {"rental": "R1", "refund": 120},
            "ok",
            {"machines": {"M1": {"status": "free"}}, "rentals": {"R1": {"refund": 120, "status": "closed"}}},
        ),
        (
            "swap_machine",
            {"rental": "R1", "machine": "M2"},
            "ok",
            {"machines": {"M1": {"status": "free"}, "M2": {"status": "out"}}, "rentals": {"R1": {"machine": "M2"}}},
        ),
        ("extend_rental", {"rental": "R1", "days": 3}, "ok", {"rentals": {"R1": {"days": 8}}}),
        (
            "settle_deposit",
            {"rental": "R1", "refund": 150, "keep": 50},
            "ok",
            {"deposits": {"R1": {"refunded": 150, "kept": 50, "status": "settled"}}},
        ),
        (
            "report_damage",
            {"rental": "R1", "severity": "major", "cost": 12.5},
            "report DM-2",
            {"damages": {"DM-2": {"rental": "R1", "severity": "major", "cost": 12.5}}},
        ),
        (
            "refund_invoice",
            {"invoice": "I1", "amount": 80},
            "ok",
            {"invoices": {"I1": {"refunded": 80, "status": "refunded"}}},
        ),
        ("void_invoice", {"invoice": "I1"}, "ok", {"invoices": {"I1": {"status": "void"}}}),
        (
            "open_ticket",
            {"customer": "C1", "topic": "damage", "urgent": True, "rental": "R1"},
            "ticket TK-1",
            {"tickets": {"TK-1": {"customer": "C1", "topic": "damage", "urgent": 1, "rental": "R1", "status": "open"}}},
        ),
        ("close_ticket", {"ticket": "T1"}, "ok", {"tickets": {"T1": {"status": "closed"}}}),
        (
            "add_items",
            {"rental": "R1", "items": ["ramp", "helmet"]},
            "ok",
            {"rentals": {"R1": {"items": "helmet ramp"}}},
        ),
    ],
)
def test_a_tool_answers_and_changes(tool: str, arguments: dict[str, Any], answer: str, changes: dict[str, Any]) -> None:
    desk = Desk(DATA)
    assert desk.call(tool, arguments) == answer
    assert desk.changes() == changes


@pytest.mark.parametrize(
    ("tool", "arguments", "answer"),
    [
        ("fly", {}, "error: no tool fly"),
        ("load", {"data": {}}, "error: no tool load"),
        ("get_rental", {}, "error: rental is missing"),
        ("get_rental", {"rental": 7}, "error: rental must be string"),
        ("get_rental", {"rental": "R9"}, "error: no rental R9"),
        ("get_rental", {"rental": "R1", "day": 1}, "error: unknown argument day"),
        ("swap_machine", {"rental": "R1", "machine": "M9"}, "error: no machine M9"),
        ("end_rental", {"rental": "R1", "refund": 1.5}, "error: refund must be integer"),
        ("end_rental", {"rental": "R1", "refund": True}, "error: refund must be integer"),
        ("open_ticket", {"customer": "C1", "topic": "damage", "urgent": 1}, "error: urgent must be boolean"),
        (
            "open_ticket",
            {"customer": "C1", "topic": "damage", "urgent": True, "rental": 3},
            "error: rental must be string or null",
        ),
        ("ask_approval", {"rental": "R1", "action": "swap"}, "error: action must be one of return, downgrade"),
        ("add_items", {"rental": "R1", "items": []}, "error: items must be a list"),
        ("add_items", {"rental": "R1", "items": "ramp"}, "error: items must be a list"),
        ("extend_rental", {"rental": "R1", "days": float("nan")}, "error: days must be integer"),
        ("extend_rental", {"rental": "R1", "days": 10**30}, "error: days must be integer"),
    ],
)
def test_bad_calls_are_answered_in_words_and_change_nothing(tool: str, arguments: dict[str, Any], answer: str) -> None:
    desk = Desk(DATA)
    assert desk.call(tool, arguments).startswith(answer)
    assert desk.changes() == {}


@pytest.mark.parametrize(
    "data", [{"boats": []}, {"customers": [{"id": "C1"}]}, {"tickets": [{"id": "T1", "colour": "red"}]}]
)
def test_data_that_is_no_data_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Desk(data)


def test_a_desk_that_is_loaded_anew_forgets() -> None:
    desk = Desk(DATA)
    desk.call("void_invoice", {"invoice": "I1"})
    desk.load(DATA)
    assert desk.changes() == {} and desk.state() == Desk(DATA).state()
