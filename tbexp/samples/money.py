"""Situations about money and trouble: deposits, damage, invoices, tickets.

Decided here: what is right, what the usual mistakes are, and the expected final changes, as in `machines_out.py`.
"""

from __future__ import annotations

import random

from tbexp.samples.desk import State
from tbexp.samples.situation import INVOICES, TICKETS, Call, Say, Situation, Steps, World
from tbexp.samples.speech import DONE, QUESTIONS, REFUSED, answer, query
from tbexp.samples.tools import TOPICS

WINDOW_AGE = 30  # days after which an invoice is not refunded


def deposit(rng: random.Random, shape: str, *, damage: str = "none", open_: bool = False, settled: bool = False,
            ask: bool = False) -> Situation:  # fmt: skip
    """Paid back once, after the rental closed, less the damage; major damage keeps all of it and needs a ticket."""
    world = World(rng)
    customer = world.customer()
    rental = world.rental(customer, status="open" if open_ else "closed")
    held = world.amount(100, 300)
    done_already = {"status": "settled", "refunded": held} if settled else {}
    world.add("deposits", rental, amount=held, **done_already)
    keep = {"none": 0, "minor": world.amount(10, held - 20), "major": held}[damage]
    if damage != "none":
        cost = keep if damage == "minor" else world.amount(310, 600)
        world.add("damages", "DM-0", rental=rental, severity=damage, cost=cost)
    world.bystanders()
    done, refused = Say(rng.choice(DONE)), Say(rng.choice(REFUSED))

    opening: Steps = ((Say(QUESTIONS["rental"]),) if ask else ()) + (Call("get_deposit", {"rental": rental}),)
    settle = Call("settle_deposit", {"rental": rental, "refund": held - keep, "keep": keep})
    whole = Call("settle_deposit", {"rental": rental, "refund": held, "keep": 0})
    ticket = _damage_ticket(customer, rental, urgent=True)
    expected: State = {"deposits": {rental: {"refunded": held - keep, "kept": keep, "status": "settled"}}}
    expected["deposits"][rental] = {k: v for k, v in expected["deposits"][rental].items() if v != 0}
    wrong: dict[str, Steps] = {"no_ask": (refused,)} if ask else {}
    if open_ or settled:
        right: Steps = (*opening, refused)
        expected = {}
        wrong["acts_anyway"] = (*opening, settle, done)
    elif damage == "major":
        right = (*opening, settle, ticket, done)
        expected["tickets"] = {"TK-1": _ticket_row(customer, "damage", True, rental)}
        wrong |= {"wrong_amount": (*opening, whole, done), "forgets_step": (*opening, settle, done)}
    elif damage == "minor":
        right = (*opening, settle, done)
        wrong["wrong_amount"] = (*opening, whole, done)
    else:
        right = (*opening, settle, done)
        wrong["stops_early"] = (*opening, refused)
    return Situation(
        shape, "deposit", query(rng, "deposit_ask" if ask else "deposit", rental=rental),
        (("rental", answer(rng, rental)),), world.who(customer), world.frozen(), expected, right, wrong, ask,
    )  # fmt: skip


def damage(
    rng: random.Random, shape: str, *, severity: str = "minor", again: bool = False, ask: bool = False
) -> Situation:
    """Recorded once; major damage needs an urgent ticket too."""
    world = World(rng)
    customer = world.customer()
    rental = world.rental(customer)
    cost = world.amount(20, 300)
    if again:
        world.add("damages", "DM-0", rental=rental, severity=severity, cost=cost)
    world.bystanders()
    done, refused = Say(rng.choice(DONE)), Say(rng.choice(REFUSED))

    look = Call("get_rental", {"rental": rental})
    opening: Steps = (*((Say(QUESTIONS["cost"]),) if ask else ()), look)
    report = Call("report_damage", {"rental": rental, "severity": severity, "cost": cost})
    ticket = _damage_ticket(customer, rental, urgent=True)
    expected: State = {"damages": {"DM-1": {"rental": rental, "severity": severity, "cost": cost}}}
    wrong: dict[str, Steps] = {}
    if again:
        right: Steps = (*opening, refused)
        expected = {}
        wrong["acts_anyway"] = (*opening, report, done)
    elif severity == "major":
        right = (*opening, report, ticket, done)
        expected["tickets"] = {"TK-1": _ticket_row(customer, "damage", True, rental)}
        wrong["forgets_step"] = (*opening, report, done)
        wrong["not_urgent"] = (*opening, report, _damage_ticket(customer, rental, urgent=False), done)
    else:
        right = (*opening, report, done)
        wrong["stops_early"] = (*opening, refused)
    if ask:  # a clerk who doesn't ask writes down a guess
        guess = Call("report_damage", {"rental": rental, "severity": severity, "cost": 10})
        wrong["no_ask"] = (look, guess, done)
    return Situation(
        shape, "damage", query(rng, "damage_ask" if ask else "damage", rental=rental, severity=severity, cost=cost),
        (("cost", answer(rng, cost)),), world.who(customer), world.frozen(), expected, right, wrong, ask,
    )  # fmt: skip


def invoice(rng: random.Random, shape: str, *, age: str = "recent", refunded: bool = False, part: bool = False,
            ask: bool = False) -> Situation:  # fmt: skip
    """Paid back once, while it is at most thirty days old."""
    world = World(rng)
    customer = world.customer()
    rental = world.rental(customer)
    days = rng.choice(range(5, WINDOW_AGE + 1, 5) if age == "recent" else range(WINDOW_AGE + 5, 65, 5))
    amount = world.amount(100, 500)
    share = world.amount(10, amount - 50) if part else amount
    key = world.fresh(INVOICES)
    paid = {"status": "refunded", "refunded": amount} if refunded else {}
    world.add("invoices", key, customer=customer, rental=rental, amount=amount, age=days, **paid)
    world.bystanders()
    done, refused = Say(rng.choice(DONE)), Say(rng.choice(REFUSED))

    topic = "amount" if part else "invoice"
    look = Call("get_invoice", {"invoice": key})
    opening: Steps = (*((Say(QUESTIONS[topic]),) if ask else ()), look)
    pay = Call("refund_invoice", {"invoice": key, "amount": share})
    whole = Call("refund_invoice", {"invoice": key, "amount": amount})
    wrong: dict[str, Steps] = {"no_ask": (look, whole, done) if part else (refused,)} if ask else {}
    if age == "old" or refunded:
        right: Steps = (*opening, refused)
        expected: State = {}
        wrong["acts_anyway"] = (*opening, pay, done)
    else:
        right, expected = (*opening, pay, done), {"invoices": {key: {"refunded": share, "status": "refunded"}}}
        wrong["stops_early"] = (*opening, refused)
    kind = "part_ask" if part else "invoice_ask" if ask else "invoice"
    answers = (("amount", answer(rng, share)),) if part else (("invoice", answer(rng, key)),)
    return Situation(
        shape, "invoice", query(rng, kind, invoice=key), answers, world.who(customer), world.frozen(), expected, right,
        wrong, ask,
    )  # fmt: skip


def twice(rng: random.Random, shape: str, *, equal: bool = True) -> Situation:
    """Of two invoices of one amount the later is void; of two amounts neither."""
    world = World(rng)
    customer = world.customer()
    rental = world.rental(customer)
    older, newer = world.fresh(INVOICES), world.fresh(INVOICES)
    amount = world.amount(100, 500)
    second = amount if equal else rng.choice([x for x in range(100, 510, 10) if x != amount])
    for key, value, age in ((older, amount, 20), (newer, second, 10)):
        world.add("invoices", key, customer=customer, rental=rental, amount=value, age=age)
    world.bystanders()
    done, refused = Say(rng.choice(DONE)), Say(rng.choice(REFUSED))

    look = Call("find_invoices", {"rental": rental})
    void = Call("void_invoice", {"invoice": newer})
    if equal:
        right: Steps = (look, void, done)
        expected: State = {"invoices": {newer: {"status": "void"}}}
        wrong: dict[str, Steps] = {
            "wrong_record": (look, Call("void_invoice", {"invoice": older}), done),
            "refuses": (look, refused),
        }
    else:
        right, expected = (look, refused), {}
        wrong = {"acts_anyway": (look, void, done)}
    return Situation(
        shape, "invoice", query(rng, "twice", rental=rental), (("rental", answer(rng, rental)),), world.who(customer),
        world.frozen(), expected, right, wrong,
    )  # fmt: skip


def ticket(rng: random.Random, shape: str, *, again: bool = False, ask: bool = False) -> Situation:
    """One open ticket for each topic of a customer."""
    world = World(rng)
    customer = world.customer()
    topic, urgent = rng.choice(TOPICS), rng.random() < 0.5
    others = [each for each in TOPICS if each != topic]
    if again or rng.random() < 0.5:
        world.add("tickets", world.fresh(TICKETS), customer=customer, topic=topic if again else rng.choice(others))
    world.bystanders()
    done, refused = Say(rng.choice(DONE)), Say(rng.choice(REFUSED))

    def create(about: str, hurry: bool) -> Call:
        return Call("open_ticket", {"customer": customer, "topic": about, "urgent": hurry, "rental": None})

    look = Call("get_customer", {"customer": customer})
    opening: Steps = (*((Say(QUESTIONS["topic"]),) if ask else ()), look)
    if again:
        right: Steps = (*opening, refused)
        expected: State = {}
        wrong: dict[str, Steps] = {"acts_anyway": (*opening, create(topic, urgent), done)}
    else:
        right = (*opening, create(topic, urgent), done)
        expected = {"tickets": {"TK-1": _ticket_row(customer, topic, urgent, None)}}
        wrong = {"wrong_urgency": (*opening, create(topic, not urgent), done)}
        if ask:  # a guess that is always wrong
            wrong["no_ask"] = (look, create("safety" if topic != "safety" else "billing", urgent), done)
    urgency = "it is urgent" if urgent else "it can wait"
    return Situation(
        shape, "ticket", query(rng, "ticket_ask" if ask else "ticket", customer=customer, topic=topic, urgency=urgency),
        (("topic", answer(rng, topic)),), world.who(customer), world.frozen(), expected, right, wrong, ask,
    )  # fmt: skip


def close_ticket(rng: random.Random, shape: str, *, ask: bool = False) -> Situation:
    """The one of two open tickets that is about the topic."""
    world = World(rng)
    customer = world.customer()
    topic, other = rng.sample(TOPICS, 2)
    about = [(world.fresh(TICKETS), topic), (world.fresh(TICKETS), other)]
    for key, of in sorted(about):
        world.add("tickets", key, customer=customer, topic=of)
    (key, _), (second, _) = about
    world.bystanders()
    done, refused = Say(rng.choice(DONE)), Say(rng.choice(REFUSED))

    opening: Steps = (
        *((Say(QUESTIONS["customer"]),) if ask else ()),
        Call("get_customer", {"customer": customer}),
    )
    wrong: dict[str, Steps] = {"wrong_record": (*opening, Call("close_ticket", {"ticket": second}), done)}
    if ask:
        wrong["no_ask"] = (refused,)
    return Situation(
        shape, "ticket", query(rng, "close_ask" if ask else "close", customer=customer, topic=topic),
        (("customer number or customer", answer(rng, customer)),), world.who(customer), world.frozen(),
        {"tickets": {key: {"status": "closed"}}}, (*opening, Call("close_ticket", {"ticket": key}), done), wrong, ask,
    )  # fmt: skip


def _damage_ticket(customer: str, rental: str, *, urgent: bool) -> Call:
    return Call("open_ticket", {"customer": customer, "topic": "damage", "urgent": urgent, "rental": rental})


def _ticket_row(customer: str, topic: str, urgent: bool, rental: str | None) -> dict[str, object]:
    return {"customer": customer, "topic": topic, "urgent": int(urgent), "rental": rental, "status": "open"}
