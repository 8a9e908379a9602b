"""The sentences of the sample domain: how users ask, how they answer, how a clerk asks back and closes."""

from __future__ import annotations

import random
from collections.abc import Mapping

QUERIES: Mapping[str, tuple[str, ...]] = {
    "return": (
        "Please end my rental {rental} early.",
        "I want to return rental {rental} early.",
        "We are done with {rental}, take it back early.",
    ),
    "return_ask": (
        "Please end my rental early.",
        "I want to return my machine early.",
        "We are done, take the machine back early.",
    ),
    "swap": ("Please swap rental {rental} to machine {machine}.", "I want machine {machine} for rental {rental}."),
    "swap_ask": ("Please swap the machine of rental {rental}.", "I want another machine for rental {rental}."),
    "best": (
        "Please swap rental {rental} to the best free {size} machine.",
        "I want the best free {size} machine for rental {rental}.",
    ),
    "budget": (
        "Please swap rental {rental} to the best {size} machine within my budget.",
        "I want a {size} machine within my budget for rental {rental}.",
    ),
    "extend": ("Please extend rental {rental} by {days} days.", "I need rental {rental} for {days} more days."),
    "extend_ask": ("Please extend rental {rental}.", "I need rental {rental} for some more days."),
    "deposit": (
        "Please pay back the deposit of rental {rental}.",
        "I want my deposit for rental {rental}.",
        "Where is the deposit of {rental}?",
    ),
    "deposit_ask": ("Please pay back my deposit.", "I want my deposit.", "Where is my deposit?"),
    "damage": (
        "Please record {severity} damage on rental {rental}, cost {cost}.",
        "Rental {rental} has {severity} damage, cost {cost}.",
    ),
    "damage_ask": ("Please record {severity} damage on rental {rental}.", "Rental {rental} has {severity} damage."),
    "invoice": ("Please refund invoice {invoice}.", "I want my money back for invoice {invoice}."),
    "invoice_ask": ("Please refund my invoice.", "I want my money back for an invoice."),
    "part_ask": ("Please refund a part of invoice {invoice}.", "I want a part of invoice {invoice} back."),
    "twice": ("I was billed twice for rental {rental}.", "Please void the double invoice of rental {rental}."),
    "ticket": (
        "I am {customer}. Please open a {topic} ticket, {urgency}.",
        "This is {customer}, I need a {topic} ticket, {urgency}.",
    ),
    "ticket_ask": (
        "I am {customer}. Please open a ticket, {urgency}.",
        "This is {customer}, I need a ticket, {urgency}.",
    ),
    "close": (
        "I am {customer}. Please close my {topic} ticket.",
        "This is {customer}, my {topic} ticket can be closed.",
    ),
    "close_ask": ("Please close my {topic} ticket.", "My {topic} ticket can be closed."),
    "items": (
        "Please add a {first} and a {second} to rental {rental}.",
        "I need a {first} and a {second} for rental {rental}.",
    ),
    "items_ask": ("Please add accessories to rental {rental}.", "I need some accessories for rental {rental}."),
}

QUESTIONS: Mapping[str, str] = {
    "rental": "Which rental is it?",
    "machine": "Which machine do you want?",
    "budget": "What is your budget?",
    "days": "How many days?",
    "cost": "What is the cost?",
    "invoice": "Which invoice is it?",
    "amount": "Which amount?",
    "topic": "Which topic?",
    "customer": "What is your customer number?",
    "accessories": "Which accessories?",
}
DONE = ("Done. <DONE>", "All set. <DONE>")
REFUSED = ("Sorry, our rules do not allow that. <DONE>", "I cannot do that. <DONE>")


def query(rng: random.Random, kind: str, **facts: object) -> str:
    return rng.choice(QUERIES[kind]).format(**facts)


def answer(rng: random.Random, value: object) -> str:
    return rng.choice(("It is {}.", "{}.")).format(value)


SYSTEM = "You work at a rental desk. End your last message with <DONE>."
POLICY = """\
Look up before you act. Ask the user for what is missing.
Site account: get approval before an early return or a swap to a smaller size. Denied: stop.
Early return: refund what quote_return says. Closed rentals do not change.
Swap to free machines only. Extend by 10 days at most, never if reserved.
Settle a deposit once, after the rental is closed.
Major damage: open an urgent damage ticket for that rental too. Report damage once.
Refund an invoice once, up to age 30. Void the second of two equal invoices.
One open ticket per topic. A breaker needs a large machine; if one item is forbidden, add none."""
