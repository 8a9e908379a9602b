"""What an evaluation cost, and what a reliable task costs.

A comparative serving index, not an invoice: tokens times a price table, or GPU hours times a rate, without training
and probing; the total with both stands beside it. What is not known is not taken for nothing: without a price for all
who were paid no cost is claimed, and what is known of it is told as `at_least_usd`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from tbexp.config.schema import ModelPrice
    from tbexp.evaluation.tally import Tally

CAUTION: Final = (
    "Dollar values are a comparative serving index, not invoices; they leave out the training run and the probing."
)

TOTAL_CAUTION: Final = (
    "The total adds probing and training by the same prices: the seconds of attempts, updates and validations, without "
    "start-up, waiting, and starts that failed."
)


@dataclass(frozen=True, slots=True)
class Spending:
    """How the attempts of a policy are priced. `gpu_hours` are of the policy's server. unpriced: roles that have to be
    paid for and whose model has no price, or whose tokens some attempts do not tell; any other one without a price
    costs nothing.
    """

    policy: ModelPrice | None = None
    user: ModelPrice | None = None
    judge: ModelPrice | None = None
    gpu_hours: float = 0.0
    gpu_hour_usd: float = 0.0
    assumed: int = 0  # attempts whose rows do not tell how many ran at a time
    unpriced: tuple[str, ...] = ()
    # {role: (n, of)} of those in `unpriced` that have a price: n of so many clean attempts lack tokens that it charges
    untold: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # What a policy cost before it was evaluated: {"probing", "training": US dollars}, as far as they are known. Only in
    # total_usd; None: it is not this run's.
    besides: Mapping[str, float] | None = None
    besides_unknown: tuple[str, ...] = ()  # parts of it that are not known or not all


def token_cost(tokens: Mapping[str, int], prefix: str, price: ModelPrice | None) -> float:
    """US dollars of one role's tokens; cached prompt tokens and reasoning tokens are charged at their own price."""
    if price is None:
        return 0.0
    cached, thought = (tokens.get(f"{prefix}{kind}_tokens", 0) for kind in ("cached", "reasoning"))
    prompt = tokens.get(f"{prefix}prompt_tokens", 0) - cached
    completion = tokens.get(f"{prefix}completion_tokens", 0) - thought
    reasoning = price.completion if price.reasoning is None else price.reasoning
    return (prompt * price.prompt + cached * price.cached + completion * price.completion + thought * reasoning) / 1e6


def known_usd(tokens: Mapping[str, int], attempts: int, spending: Spending) -> dict[str, float]:
    """US dollars by part: {policy_usd, user_usd, judge_usd, gpu_usd}. tokens: of all attempts together."""
    parts = {
        "policy_usd": 0.0,
        "user_usd": 0.0,
        "judge_usd": 0.0,
        "gpu_usd": spending.gpu_hours * spending.gpu_hour_usd,
    }
    for role, price in (("policy", spending.policy), ("user", spending.user), ("judge", spending.judge)):
        if price is not None:
            prefix = "" if role == "policy" else f"{role}_"
            parts[f"{role}_usd"] = token_cost(tokens, prefix, price) + attempts * price.attempt
    return parts


def cost_of(runs: Sequence[Tally], attempts: int, spending: Spending) -> dict[str, Any]:
    """Cost over all seeds of a policy: campaign, per passed attempt, per task passed every time (else infinite).

    All three are None while a role has no price or attempts lack its tokens; `at_least_usd` is what is known.
    total_usd: with training and probing, None unless all of it is known.
    """
    each = [known_usd(run.tokens, run.rows, replace(spending, gpu_hours=0.0)) for run in runs]
    parts = {name: sum(part[name] for part in each) for name in each[0]}
    parts["gpu_usd"] = spending.gpu_hours * spending.gpu_hour_usd
    known = sum(parts.values())
    campaign = None if spending.unpriced else known
    passed = sum(int(run.passed.sum()) for run in runs)
    reliable = sum(int(np.sum((run.clean == attempts) & (run.passed == attempts))) for run in runs)
    besides = spending.besides
    total = (
        None if campaign is None or besides is None or spending.besides_unknown else campaign + sum(besides.values())
    )
    return {
        "campaign_usd": campaign,
        "per_passed_attempt_usd": None if campaign is None else per(campaign, passed),
        "per_reliable_task_usd": None if campaign is None else per(campaign, reliable),
        "total_usd": total,
        "at_least_usd": known,
        "unpriced": list(spending.unpriced),
        "untold": {role: list(each) for role, each in spending.untold.items()},
        "besides_usd": None if besides is None else dict(besides),
        "besides_unknown": list(spending.besides_unknown),
        "gpu_hours": spending.gpu_hours,
        **parts,
        "caution": CAUTION,
        **({} if besides is None else {"caution_of_total": TOTAL_CAUTION}),
    }


def per(cost: float, count: int) -> float:
    """Cost per thing; infinite where there is none, also of what cost nothing: no reliable task can be had for free."""
    return cost / count if count else math.inf


def thrown_away_usd(
    row: Mapping[str, float], *, gpu_hour_usd: float, devices: int, price: ModelPrice | None
) -> float | None:
    """What an update's thrown-away attempts cost: a refill pays its full price. None: there is no price.

    row: the update's metrics (`train/thrown_away/*`). With a rate for device hours: the time in which all `devices`
    generated, as far as these attempts took it; else their tokens by the table's price of the model.
    """
    seconds, tokens = row.get("train/thrown_away/seconds"), row.get("train/thrown_away/tokens")
    if gpu_hour_usd > 0:
        return None if seconds is None else seconds / 3600 * devices * gpu_hour_usd
    if price is None or price.by_attempt or tokens is None:
        return None
    used = {"prompt_tokens": int(row.get("train/thrown_away/prompt_tokens", 0)), "completion_tokens": int(tokens)}
    return token_cost(used, "", price)
