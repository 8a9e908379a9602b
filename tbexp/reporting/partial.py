"""How much an incomplete evaluation covers, said alike wherever its figures stand.

figures: of one policy, as in summary.json; what an older one does not hold is not said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_partial(figures: Mapping[str, Any]) -> bool:
    """Whether attempts lack a verdict."""
    share = covered_share(figures)
    return figures.get("partial") is True or (share is not None and share < 1)


def covered_share(figures: Mapping[str, Any]) -> float | None:
    """The share of attempts that have a verdict; None: not known."""
    coverage = figures.get("coverage")
    share = coverage.get("share", coverage.get("value")) if isinstance(coverage, Mapping) else coverage
    return float(share) if isinstance(share, int | float) and not isinstance(share, bool) else None


def percent_of(share: float) -> str:
    """To a tenth of a percent, and finer where that would be 100% of what is not whole, or 0% of what is not empty."""
    for digits in range(1, 16):
        text = f"{share:.{digits}%}"
        if share in (0, 1) or float(text[:-1]) not in (0, 100):
            break
    return text


def whole_tasks(figures: Mapping[str, Any]) -> tuple[float, int] | None:
    """(tasks that have all attempts, tasks); None: not known. Of several seeds their mean."""
    every, tasks = figures.get("observed_all_k"), figures.get("tasks")
    whole = every.get("complete_tasks") if isinstance(every, Mapping) else None
    return (whole, tasks) if isinstance(whole, int | float) and isinstance(tasks, int) else None


def covered(figures: Mapping[str, Any]) -> str:
    """Such as `954 of 960 attempts (99.4%), 42 of 48 tasks have all 20`; nothing of a complete evaluation."""
    if not is_partial(figures):
        return ""
    coverage, share, whole = figures.get("coverage"), covered_share(figures), whole_tasks(figures)
    parts = []
    if isinstance(coverage, Mapping) and {"clean", "expected"} <= coverage.keys():
        parts.append(f"{coverage['clean']:,} of {coverage['expected']:,} attempts ({percent_of(share or 0.0)})")
    elif share is not None:
        parts.append(f"{percent_of(share)} of the attempts")
    if whole is not None:
        parts.append(f"{whole[0]:g} of {whole[1]:,} tasks have all {figures.get('attempts')}")
    return ", ".join(parts) or "attempts are missing"


def marked(name: str, figures: Mapping[str, Any] | None) -> str:
    """A policy's name, with `(partial)` behind it where its figures are of a part."""
    return f"{name} (partial)" if figures and is_partial(figures) else name
