"""The shapes of situations at the desk, and how often demonstrations of each go wrong.

Decided here: which shapes there are (`SHAPES`) and, in one table, the chance of each mistake (`MISTAKES`). A policy
that imitates the demonstrations errs about as often as they do, so the table sets how hard a shape is for it. Two
shapes that look alike up to a decision share it: after reading a site account's rental, a clerk who skips the
approval cannot know whether it would have been denied. Their chances are equal, or the policy learns the mean.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial

from tbexp.samples import machines_out, money
from tbexp.samples.situation import Situation, Steps

Builder = Callable[[random.Random, str], Situation]

SHAPES: Mapping[str, Builder] = {
    # early return
    "return_private": partial(machines_out.early_return, account="private"),
    "return_private_ask": partial(machines_out.early_return, account="private", ask=True),
    "return_site_approved": partial(machines_out.early_return, account="site"),
    "return_site_approved_ask": partial(machines_out.early_return, account="site", ask=True),
    "return_site_denied": partial(machines_out.early_return, account="site", manager="denied"),
    "return_site_denied_ask": partial(machines_out.early_return, account="site", manager="denied", ask=True),
    "return_closed": partial(machines_out.early_return, account="private", open_=False),
    # swap
    "swap_private": partial(machines_out.swap, account="private"),
    "swap_private_ask": partial(machines_out.swap, account="private", ask=True),
    "swap_site_smaller": partial(machines_out.swap, account="site"),
    "swap_site_smaller_ask": partial(machines_out.swap, account="site", ask=True),
    "swap_site_denied": partial(machines_out.swap, account="site", manager="denied"),
    "swap_site_larger": partial(machines_out.swap, account="site", to="larger"),
    "swap_taken": partial(machines_out.swap, account="private", free=False),
    "swap_best": machines_out.best_swap,
    "swap_budget_ask": partial(machines_out.best_swap, budget=True),
    # extension
    "extend": machines_out.extend,
    "extend_ask": partial(machines_out.extend, ask=True),
    "extend_reserved": partial(machines_out.extend, reserved=True),
    "extend_long": partial(machines_out.extend, long=True),
    # accessories
    "items": machines_out.accessories,
    "items_ask": partial(machines_out.accessories, ask=True),
    "items_breaker_large": partial(machines_out.accessories, breaker=True, large=True),
    "items_breaker": partial(machines_out.accessories, breaker=True),
    # deposit
    "deposit_clean": money.deposit,
    "deposit_clean_ask": partial(money.deposit, ask=True),
    "deposit_minor": partial(money.deposit, damage="minor"),
    "deposit_minor_ask": partial(money.deposit, damage="minor", ask=True),
    "deposit_major": partial(money.deposit, damage="major"),
    "deposit_open": partial(money.deposit, open_=True),
    "deposit_settled": partial(money.deposit, settled=True),
    # damage
    "damage_minor": money.damage,
    "damage_minor_ask": partial(money.damage, ask=True),
    "damage_major": partial(money.damage, severity="major"),
    "damage_major_ask": partial(money.damage, severity="major", ask=True),
    "damage_again": partial(money.damage, again=True),
    # invoice
    "invoice": money.invoice,
    "invoice_ask": partial(money.invoice, ask=True),
    "invoice_part_ask": partial(money.invoice, part=True, ask=True),
    "invoice_old": partial(money.invoice, age="old"),
    "invoice_refunded": partial(money.invoice, refunded=True),
    "invoice_twice": money.twice,
    "invoice_differs": partial(money.twice, equal=False),
    # ticket
    "ticket": money.ticket,
    "ticket_ask": partial(money.ticket, ask=True),
    "ticket_again": partial(money.ticket, again=True),
    "ticket_close": money.close_ticket,
    "ticket_close_ask": partial(money.close_ticket, ask=True),
}

# Shape -> mistake -> share of its demonstrations, at `model.tiny.mistakes` = 0.5; the rest is right.
MISTAKES: Mapping[str, Mapping[str, float]] = {
    "return_private": {"wrong_amount": 0.15},
    "return_private_ask": {"no_ask": 0.30, "wrong_amount": 0.10},
    "return_site_approved": {"skips_approval": 0.60, "forgets_step": 0.12},
    "return_site_approved_ask": {"no_ask": 0.30, "skips_approval": 0.42, "forgets_step": 0.08},
    "return_site_denied": {"skips_approval": 0.60, "acts_anyway": 0.20},
    "return_site_denied_ask": {"no_ask": 0.30, "skips_approval": 0.42, "acts_anyway": 0.14},
    "return_closed": {"acts_anyway": 0.50},
    "swap_private": {"stops_early": 0.04},
    "swap_private_ask": {"no_ask": 0.20, "stops_early": 0.03},
    "swap_site_smaller": {"skips_approval": 0.45, "forgets_step": 0.10},
    "swap_site_smaller_ask": {"no_ask": 0.20, "skips_approval": 0.36, "forgets_step": 0.08},
    "swap_site_denied": {"skips_approval": 0.45, "acts_anyway": 0.25},
    "swap_site_larger": {"needless_approval": 0.50},
    "swap_taken": {"acts_anyway": 0.80},
    "swap_best": {"wrong_record": 0.20, "stops_early": 0.08},
    "swap_budget_ask": {"no_ask": 0.50, "ignores_answer": 0.15},
    "extend": {"stops_early": 0.03},
    "extend_ask": {"no_ask": 0.15, "stops_early": 0.03},
    "extend_reserved": {"acts_anyway": 0.65},
    "extend_long": {"acts_anyway": 0.97},
    "items": {"half": 0.40},
    "items_ask": {"no_ask": 0.30, "half": 0.28},
    "items_breaker_large": {"half": 0.10, "refuses": 0.20},
    "items_breaker": {"acts_anyway": 0.65},
    "deposit_clean": {"stops_early": 0.03},
    "deposit_clean_ask": {"no_ask": 0.20, "stops_early": 0.03},
    "deposit_minor": {"wrong_amount": 0.50},
    "deposit_minor_ask": {"no_ask": 0.20, "wrong_amount": 0.40},
    "deposit_major": {"wrong_amount": 0.25, "forgets_step": 0.55},
    "deposit_open": {"acts_anyway": 0.75},
    "deposit_settled": {"acts_anyway": 0.30},
    "damage_minor": {"stops_early": 0.03},
    "damage_minor_ask": {"no_ask": 0.35},
    "damage_major": {"forgets_step": 0.60, "not_urgent": 0.15},
    "damage_major_ask": {"no_ask": 0.35, "forgets_step": 0.40, "not_urgent": 0.10},
    "damage_again": {"acts_anyway": 0.52},
    "invoice": {"stops_early": 0.04},
    "invoice_ask": {"no_ask": 0.40, "stops_early": 0.02},
    "invoice_part_ask": {"no_ask": 0.96},
    "invoice_old": {"acts_anyway": 0.85},
    "invoice_refunded": {"acts_anyway": 0.45},
    "invoice_twice": {"wrong_record": 0.40, "refuses": 0.25},
    "invoice_differs": {"acts_anyway": 0.70},
    "ticket": {"wrong_urgency": 0.25},
    "ticket_ask": {"no_ask": 0.40, "wrong_urgency": 0.15},
    "ticket_again": {"acts_anyway": 0.95},
    "ticket_close": {"wrong_record": 0.20},
    "ticket_close_ask": {"no_ask": 0.25, "wrong_record": 0.15},
}
FULL = 0.5  # the `mistakes` at which MISTAKES holds as written


def situation(shape: str, rng: random.Random) -> Situation:
    """A new situation of this shape."""
    return SHAPES[shape](rng, shape)


def steps(of: Situation, rng: random.Random, mistakes: float) -> tuple[Steps, str]:
    """The steps that a demonstration shows, and the name of their mistake ("": none).

    mistakes: 0 shows none, 0.5 the shares of MISTAKES, more than that proportionally more, though 3% at least stay
    right."""
    chances = MISTAKES[of.shape]
    total = sum(chances.values())
    scale = 0.0 if total == 0 else min(mistakes / FULL, 0.97 / total)
    left = rng.random()
    for name, chance in chances.items():
        left -= chance * scale
        if left < 0:
            return of.wrong[name], name
    return of.right, ""
