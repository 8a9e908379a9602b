"""Situations about machines that are out: early return, swap, extension, accessories.

Decided here: what is right, what the usual mistakes are, and the expected final changes, written down from the rules
and not by running the desk, so that the two check each other.
"""

from __future__ import annotations

import random

from tbexp.samples.desk import State
from tbexp.samples.situation import Call, Say, Situation, Step, Steps, World, merged
from tbexp.samples.speech import DONE, QUESTIONS, REFUSED, answer, query
from tbexp.samples.tools import SIZES

LIMIT_DAYS = 10


def early_return(rng: random.Random, shape: str, *, account: str, manager: str = "approved", open_: bool = True,
                 ask: bool = False) -> Situation:  # fmt: skip
    """A site account needs the manager's approval; what is paid back is what the desk quotes."""
    world = World(rng)
    customer = world.customer(account)
    paid = world.amount(200, 600)
    due = world.amount(10, paid - 50)
    status = "open" if open_ else "closed"
    rental = world.rental(customer, paid=paid, due=due, manager=manager, status=status)
    machine = world.row("rentals", rental)["machine"]
    world.bystanders()
    done, refused = Say(rng.choice(DONE)), Say(rng.choice(REFUSED))

    opening = (*_opening("rental", ask), Call("get_rental", {"rental": rental}))
    approval = Call("ask_approval", {"rental": rental, "action": "return"})
    quote = Call("quote_return", {"rental": rental})
    end = Call("end_rental", {"rental": rental, "refund": due})
    wrong: dict[str, Steps] = {"no_ask": (refused,)} if ask else {}
    ended: State = {"rentals": {rental: {"refund": due, "status": "closed"}}, "machines": {machine: {"status": "free"}}}
    if not open_:
        right: Steps = (*opening, refused)
        expected: State = {}
        wrong["acts_anyway"] = (*opening, quote, end, done)
    elif account == "private":
        right, expected = (*opening, quote, end, done), ended
        wrong["wrong_amount"] = (*opening, Call("end_rental", {"rental": rental, "refund": paid}), done)
    else:
        expected = _asked(rental, "return", manager, machine)
        wrong["skips_approval"] = (*opening, quote, end, done)
        if manager == "approved":
            wrong["approval_afterwards"] = (*opening, quote, end, approval, done)
            right, expected = (*opening, approval, quote, end, done), merged(expected, ended)
            wrong["forgets_step"] = (*opening, approval, done)
        else:
            right = (*opening, approval, refused)
            wrong["acts_anyway"] = (*opening, approval, quote, end, done)
    return Situation(
        shape, "return", query(rng, "return_ask" if ask else "return", rental=rental),
        (("rental", answer(rng, rental)),), world.who(customer), world.frozen(), expected, right, wrong, ask,
    )  # fmt: skip


def swap(rng: random.Random, shape: str, *, account: str, to: str = "smaller", manager: str = "approved",
         free: bool = True, ask: bool = False) -> Situation:  # fmt: skip
    """To a named machine: it must be free; a site account's downgrade needs approval."""
    world = World(rng)
    customer = world.customer(account)
    low = rng.randrange(2)
    small, large = SIZES[low], SIZES[rng.randrange(low + 1, 3)]
    old_size, new_size = (large, small) if to == "smaller" else (small, large)
    rental = world.rental(customer, size=old_size, manager=manager)
    old = world.row("rentals", rental)["machine"]
    new = world.machine(new_size, status="free" if free else rng.choice(("out", "repair")))
    for _ in range(2 if ask else 0):  # with a single free machine there would be nothing to ask
        world.machine(new_size)
    world.bystanders()
    done, refused = Say(rng.choice(DONE)), Say(rng.choice(REFUSED))

    opening = (*_opening("machine", ask), Call("get_rental", {"rental": rental}), Call("get_machine", {"machine": new}))
    approval = Call("ask_approval", {"rental": rental, "action": "downgrade"})
    move = Call("swap_machine", {"rental": rental, "machine": new})
    asked = _asked(rental, "downgrade", manager, old)
    moved = _moved(rental, old, new)
    wrong: dict[str, Steps] = {"no_ask": (refused,)} if ask else {}
    if not free:
        right, expected = (*opening, refused), {}
        wrong["acts_anyway"] = (*opening, move, done)
    elif account == "private":
        right, expected = (*opening, move, done), moved
        wrong["stops_early"] = (*opening, done)
    elif to == "larger":
        right, expected = (*opening, move, done), moved
        wrong["needless_approval"] = (*opening, approval, move, done)
    elif manager == "approved":
        right, expected = (*opening, approval, move, done), merged(asked, moved)
        wrong |= {"skips_approval": (*opening, move, done), "forgets_step": (*opening, approval, done)}
        wrong["approval_afterwards"] = (*opening, move, approval, done)
    else:
        right, expected = (*opening, approval, refused), asked
        wrong |= {"skips_approval": (*opening, move, done), "acts_anyway": (*opening, approval, move, done)}
    return Situation(
        shape, "swap", query(rng, "swap_ask" if ask else "swap", rental=rental, machine=new),
        (("machine", answer(rng, new)),), world.who(customer), world.frozen(), expected, right, wrong, ask,
    )  # fmt: skip


def best_swap(rng: random.Random, shape: str, *, budget: bool = False) -> Situation:
    """To the best free machine of a size, which is the dearest within the user's budget. Private accounts only."""
    world = World(rng)
    customer = world.customer("private")
    size = rng.choice(SIZES)
    rental = world.rental(customer)
    old = world.row("rentals", rental)["machine"]
    world.bystanders()
    rates = sorted(rng.sample(range(50, 310, 10), 3), reverse=True)
    found = [world.machine(size, rate=rate) for rate in rates]
    rng.shuffle(world.rows["machines"])
    limit = rng.choice([rate for rate in range(rates[1], rates[0], 10)]) if budget else None
    target, other = (found[1], found[0]) if budget else (found[0], found[1])
    done, refused = Say(rng.choice(DONE)), Say(rng.choice(REFUSED))

    opening: Steps = (*_opening("budget", budget), Call("get_rental", {"rental": rental}))
    find = Call("find_machines", {"size": size, "max_rate": limit})
    move = Call("swap_machine", {"rental": rental, "machine": target})
    worse = Call("swap_machine", {"rental": rental, "machine": other})
    if budget:
        find_any = Call("find_machines", {"size": size, "max_rate": None})
        get_rental = Call("get_rental", {"rental": rental})
        wrong: dict[str, Steps] = {
            "no_ask": (get_rental, find_any, worse, done),
            "ignores_answer": (*opening, find_any, worse, done),
        }
    else:
        wrong = {"wrong_record": (*opening, find, worse, done), "stops_early": (*opening, find, refused)}
    return Situation(
        shape, "swap", query(rng, "budget" if budget else "best", rental=rental, size=size),
        (("budget or limit", answer(rng, limit)),) if budget else (("rental", answer(rng, rental)),),
        world.who(customer), world.frozen(), _moved(rental, old, target), (*opening, find, move, done), wrong, budget,
    )  # fmt: skip


def extend(
    rng: random.Random, shape: str, *, reserved: bool = False, long: bool = False, ask: bool = False
) -> Situation:
    """At most ten days, and never when the machine is reserved afterwards."""
    world = World(rng)
    customer = world.customer()
    rental = world.rental(customer, reserved=int(reserved))
    had = world.row("rentals", rental)["days"]
    days = rng.randrange(LIMIT_DAYS + 1, 21) if long else rng.randrange(2, LIMIT_DAYS + 1)
    world.bystanders()
    done, refused = Say(rng.choice(DONE)), Say(rng.choice(REFUSED))

    opening = (*_opening("days", ask), Call("get_rental", {"rental": rental}))
    act = Call("extend_rental", {"rental": rental, "days": days})
    wrong: dict[str, Steps] = {"no_ask": (refused,)} if ask else {}
    if reserved or long:
        right: Steps = (*opening, refused)
        expected: State = {}
        wrong["acts_anyway"] = (*opening, act, done)
    else:
        right, expected = (*opening, act, done), {"rentals": {rental: {"days": had + days}}}
        wrong["stops_early"] = (*opening, refused)
    return Situation(
        shape, "extend", query(rng, "extend_ask" if ask else "extend", rental=rental, days=days),
        (("days", answer(rng, f"{days} days")),), world.who(customer), world.frozen(), expected, right, wrong, ask,
    )  # fmt: skip


def accessories(
    rng: random.Random, shape: str, *, breaker: bool = False, large: bool = False, ask: bool = False
) -> Situation:
    """A breaker fits large machines only; when one thing of the request is forbidden, nothing is added."""
    world = World(rng)
    customer = world.customer()
    size = "large" if large else rng.choice(("small", "medium") if breaker else SIZES)
    rental = world.rental(customer, size=size)
    items = rng.sample(("helmet", "ramp", "lamp", "trailer"), 2)
    if breaker:
        items[1] = "breaker"
    world.bystanders()
    done, refused = Say(rng.choice(DONE)), Say(rng.choice(REFUSED))

    opening = (*_opening("accessories", ask), Call("get_rental", {"rental": rental}))
    act = Call("add_items", {"rental": rental, "items": items})
    half = Call("add_items", {"rental": rental, "items": items[:1]})
    wrong: dict[str, Steps] = {"no_ask": (refused,)} if ask else {}
    if breaker and not large:
        right: Steps = (*opening, refused)
        expected: State = {}
        wrong["acts_anyway"] = (*opening, act, done)
    else:
        right, expected = (*opening, act, done), {"rentals": {rental: {"items": " ".join(sorted(items))}}}
        wrong["half"] = (*opening, half, done)
        if breaker:
            wrong["refuses"] = (*opening, refused)
    return Situation(
        shape, "items", query(rng, "items_ask" if ask else "items", rental=rental, first=items[0], second=items[1]),
        (("accessories or items", f"A {items[0]} and a {items[1]}."),), world.who(customer), world.frozen(), expected,
        right, wrong, ask,
    )  # fmt: skip


def _asked(rental: str, action: str, decision: str, machine: str) -> State:
    """An approval that was asked for while the rental was still open and on its first machine."""
    row = {"rental": rental, "action": action, "decision": decision, "machine": machine, "status": "open"}
    return {"approvals": {"AP-1": row}}


def _moved(rental: str, old: str, new: str) -> State:
    return {"rentals": {rental: {"machine": new}}, "machines": {old: {"status": "free"}, new: {"status": "out"}}}


def _opening(topic: str, ask: bool) -> tuple[Step, ...]:
    return (Say(QUESTIONS[topic]),) if ask else ()
