"""The published figures (published.yaml), and the same figures from counts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from tbexp.evaluation.cost import per


@cache
def load_published() -> dict[str, Any]:
    """Protocol, domains, models and settings as published; a field that the source does not give is absent."""
    import yaml

    loaded: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text())
    return loaded


def published_from_counts(
    *,
    passed_attempts: int,
    tasks_passed_at_least_once: int,
    tasks_passed_every_time: int,
    campaign_cost_usd: float | None = None,
    tasks: int = 507,
    attempts_per_task: int = 20,
) -> dict[str, float]:
    """The published columns from counts, shares in percent, unrounded."""
    figures = {
        "pass_at_1": 100 * passed_attempts / (tasks * attempts_per_task),
        "pass_at_20": 100 * tasks_passed_at_least_once / tasks,
        "observed_20_of_20": 100 * tasks_passed_every_time / tasks,
    }
    if campaign_cost_usd is not None:
        figures["cost_per_passed_attempt_usd"] = per(campaign_cost_usd, passed_attempts)
        figures["cost_per_reliable_task_usd"] = per(campaign_cost_usd, tasks_passed_every_time)
    return figures


def derived_cost_per_passed_attempt(model: dict[str, Any], attempts: int = 10_140) -> float | None:
    """Cost per passed attempt where the source gives only the cost per reliable task. To be marked as derived."""
    needed = ("cost_per_reliable_task_usd", "tasks_passed_every_time", "pass_at_1")
    if any(key not in model for key in needed):
        return None
    passed = model.get("passed_attempts", round(model["pass_at_1"] / 100 * attempts))
    return float(model["cost_per_reliable_task_usd"] * model["tasks_passed_every_time"] / passed)
