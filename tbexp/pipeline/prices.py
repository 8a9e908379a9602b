"""What attempts cost, by the price table: which of its prices are whose.

Decided here: a policy behind an endpoint is priced by its tokens, local weights, and those that tbexp serves itself, by
the hours of their devices; a policy that has no price has no cost, and what cannot be known is not taken for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from tbexp.attempts import AttemptRow
from tbexp.config.schema import Config
from tbexp.evaluation.cost import Spending


def spending_of(config: Config, rows: Sequence[AttemptRow]) -> Spending | None:
    """How a policy's evaluation is priced; None without a price for the policy itself.

    rows: its attempts. Local weights generate on one device, served ones on policy.vllm.tensor_parallel_size, for as
    long as attempts run: their seconds together, divided by how many run at a time.
    """
    models, rate = config.prices.models, config.prices.gpu_hour_usd
    user = models.get(config.user.endpoint.model or "") if config.user.kind == "chat" else None
    judge = models.get(config.judge.endpoint.model or "") if config.judge.kind == "chat" else None
    policy = config.policy
    served = policy.serve == "vllm" and name_of(config) not in models
    if (policy.kind == "local" or served) and rate > 0 and not config.evaluation.rows:
        at_a_time = max(1, min(policy.concurrency, len(rows)))
        hours = (
            sum(row.seconds for row in rows) / at_a_time / 3600 * (policy.vllm.tensor_parallel_size if served else 1)
        )
        return Spending(user=user, judge=judge, gpu_hours=hours, gpu_hour_usd=rate)
    price = models.get(name_of(config))
    return None if price is None else Spending(policy=price, user=user, judge=judge)


def name_of(config: Config) -> str:
    """The name that the price table knows the policy by: its endpoint's model, or `model.name`."""
    return (config.policy.endpoint.model or "") if config.policy.kind == "chat" else config.model.name
