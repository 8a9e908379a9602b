"""What an evaluation cost, and what a reliable task costs.

A comparative serving index, not an invoice: tokens times a price table, or GPU hours times a rate, without training
and probing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from tbexp.config.schema import ModelPrice
    from tbexp.evaluation.tally import Tally

CAUTION: Final = (
    "Dollar values are a comparative serving index, not invoices; they leave out the training run and the probing."
)


@dataclass(frozen=True, slots=True)
class Spending:
    """How the attempts of a policy are priced. Roles without a price cost nothing; `gpu_hours` are of the policy's
    server.
    """

    policy: ModelPrice | None = None
    user: ModelPrice | None = None
    judge: ModelPrice | None = None
    gpu_hours: float = 0.0
    gpu_hour_usd: float = 0.0
    besides_usd: float | None = None  # training and probing, if known: only in total_usd


def token_cost(tokens: Mapping[str, int], prefix: str, price: ModelPrice | None) -> float:
    """US dollars of one role's tokens; cached prompt tokens are charged at their own price."""
    if price is None:
        return 0.0
    cached = tokens.get(f"{prefix}cached_tokens", 0)
    prompt = tokens.get(f"{prefix}prompt_tokens", 0) - cached
    completion = tokens.get(f"{prefix}completion_tokens", 0)
    return (prompt * price.prompt + cached * price.cached + completion * price.completion) / 1e6


def cost_of(runs: Sequence[Tally], attempts: int, spending: Spending) -> dict[str, Any]:
    """Cost over all seeds of a policy: campaign, per passed attempt, per task passed every time (else infinite)."""
    parts = {
        "policy_usd": sum(token_cost(run.tokens, "", spending.policy) for run in runs),
        "user_usd": sum(token_cost(run.tokens, "user_", spending.user) for run in runs),
        "judge_usd": sum(token_cost(run.tokens, "judge_", spending.judge) for run in runs),
        "gpu_usd": spending.gpu_hours * spending.gpu_hour_usd,
    }
    campaign = sum(parts.values())
    passed = sum(int(run.passed.sum()) for run in runs)
    reliable = sum(int(np.sum((run.clean == attempts) & (run.passed == attempts))) for run in runs)
    return {
        "campaign_usd": campaign,
        "per_passed_attempt_usd": per(campaign, passed),
        "per_reliable_task_usd": per(campaign, reliable),
        "total_usd": None if spending.besides_usd is None else campaign + spending.besides_usd,
        "gpu_hours": spending.gpu_hours,
        **parts,
        "caution": CAUTION,
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
    if price is None or tokens is None:
        return None
    used = {"prompt_tokens": int(row.get("train/thrown_away/prompt_tokens", 0)), "completion_tokens": int(tokens)}
    return token_cost(used, "", price)
