"""The reference's own aggregation (`tb agg`), number for number, for those who compare with it.

Its definitions differ from ours on purpose or by defect: attempts that the world failed stay in every denominator,
pass^k is (c/n)^k, and the interval pools all attempts as if independent (thinkingbox format, section 9). Use
`summarise` for figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

_KS = (1, 5, 10, 20, 50, 100)
_ZONE = (0.0625, 0.9375)
_TAILS = ((1 - 0.95) / 2, (1 + 0.95) / 2)  # computed as the reference does: 0.025 would differ in the last digit


def tb_agg(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """{per_test, metrics} of rows of `tb infer` (`attempts.to_tb_infer_row` makes them), tasks in the order of first
    rows. Without rows there are no means: they are None.
    """
    by_uid: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_uid.setdefault(row["uid"], []).append(_measured(row))
    per_test = [_test(uid, group) for uid, group in by_uid.items()]
    return {"per_test": per_test, "metrics": _metrics(per_test)}


def _measured(row: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of one row; of its messages nothing else is kept."""
    messages, usage = row.get("messages") or [], row.get("usage") or []
    details = [u.get("output_tokens_details") or {} for u in usage]
    return {
        "outcome": _outcome(row),
        "assistant_turns": sum(m.get("role") == "assistant" for m in messages),
        "user_turns": sum(m.get("role") == "user" for m in messages),
        "tool_turns": sum(m.get("T") == "ToolResponse" for m in messages),
        "output_tokens": sum(u.get("output_tokens") or 0 for u in usage),
        "reasoning_tokens": sum(d.get("reasoning_tokens") or 0 for d in details),
        "char_lengths": sum(len(m.get("content") or "") for m in messages),
        "exec_time": (row.get("metadata") or {}).get("execution_time") or 0.0,
    }


def _test(uid: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    from scipy.special import betainc

    outcomes = [row.pop("outcome") for row in rows]
    runs, passed = len(rows), outcomes.count("passed")
    low, high = betainc(0.5 + passed, 0.5 + runs - passed, np.array(_ZONE))
    likelihood = float(high - low)
    return {
        "uid": uid,
        "runs": runs,
        "passed": passed,
        "failed": outcomes.count("failed"),
        "error": outcomes.count("error"),
        **{name: _spread([row[name] for row in rows]) for name in rows[0]},
        "success_pct": passed / runs,
        "in_goldilocks_zone": likelihood >= 0.95,
        "likelihood_in_goldilocks_zone": likelihood,
    }


def _outcome(row: Mapping[str, Any]) -> str:
    result = row.get("test_result")
    if row.get("is_system_error") or result is None or result.get("is_system_error"):
        return "error"
    return "passed" if result["result"] else "failed"


def _spread(values: list[Any]) -> dict[str, Any]:
    return {
        "avg_val": float(sum(values) / len(values)),
        "min_val": float(min(values)),
        "max_val": float(max(values)),
        "count": len(values),
    }


def _metrics(per_test: list[dict[str, Any]]) -> dict[str, Any]:
    from scipy.special import betaincinv

    runs, passed = [t["runs"] for t in per_test], [t["passed"] for t in per_test]
    total, good = sum(runs), sum(passed)
    if not runs:
        none = dict.fromkeys(("mean_pass", "mean_pass_ci_low", "mean_pass_ci_high"))
        empty: dict[str, Any] = {"num_tests": 0, "runs_per_test": 0, "total_runs": 0, **none}
        return {**empty, "unbiased_pass_at_k": [], "pass_power_k": []}
    low, high = betaincinv(0.5 + good, 0.5 + total - good, _TAILS).tolist()
    equal = len(set(runs)) == 1
    ks = [k for k in _KS if equal and k <= runs[0]]
    return {
        "num_tests": len(per_test),
        "runs_per_test": runs[0],
        "total_runs": total,
        "mean_pass": good / total,
        "mean_pass_ci_low": low,
        "mean_pass_ci_high": high,
        "unbiased_pass_at_k": [[k, _mean([_pass_at(n, c, k) for n, c in zip(runs, passed, strict=True)])] for k in ks],
        "pass_power_k": [[k, _mean([(c / n) ** k for n, c in zip(runs, passed, strict=True)])] for k in ks],
    }


def _pass_at(n: int, c: int, k: int) -> float:
    """The product form that the reference uses: its rounding is part of the digits."""
    if n - c < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


def _mean(values: list[float]) -> float:
    return float(np.mean(values))
