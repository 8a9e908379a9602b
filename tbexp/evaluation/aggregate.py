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
    rows.
    """
    by_uid: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_uid.setdefault(row["uid"], []).append(row)
    per_test = [_test(uid, group) for uid, group in by_uid.items()]
    return {"per_test": per_test, "metrics": _metrics(per_test)}


def _test(uid: str, rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    from scipy.special import betainc

    outcomes = [_outcome(row) for row in rows]
    runs, passed = len(rows), outcomes.count("passed")
    low, high = betainc(0.5 + passed, 0.5 + runs - passed, np.array(_ZONE))
    likelihood = float(high - low)
    messages = [row.get("messages") or [] for row in rows]
    usage = [row.get("usage") or [] for row in rows]
    return {
        "uid": uid,
        "runs": runs,
        "passed": passed,
        "failed": outcomes.count("failed"),
        "error": outcomes.count("error"),
        "assistant_turns": _spread([sum(m.get("role") == "assistant" for m in each) for each in messages]),
        "user_turns": _spread([sum(m.get("role") == "user" for m in each) for each in messages]),
        "tool_turns": _spread([sum(m.get("T") == "ToolResponse" for m in each) for each in messages]),
        "output_tokens": _spread([sum(u.get("output_tokens") or 0 for u in each) for each in usage]),
        "reasoning_tokens": _spread(
            [sum((u.get("output_tokens_details") or {}).get("reasoning_tokens") or 0 for u in each) for each in usage]
        ),
        "char_lengths": _spread([sum(len(m.get("content") or "") for m in each) for each in messages]),
        "exec_time": _spread([(row.get("metadata") or {}).get("execution_time") or 0.0 for row in rows]),
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
