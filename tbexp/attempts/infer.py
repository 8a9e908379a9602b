"""Attempts in the row format of `tb infer`, for tools that read that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tbexp.attempts.row import AttemptRow


def to_tb_infer_row(row: AttemptRow, trajectory: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The attempt as `tb infer` writes it (thinkingbox format, section 8).

    Of the trajectory, `messages`, `test_result`, `test_context`, `tools`, `usage`, `tags` and `metadata` are taken
    where they are there. A system error of grading stands in `test_result`, any other in the row, as in `tb infer`.
    """
    seen: Mapping[str, Any] = trajectory or {}
    graded = row.system_error is not None and row.system_error["kind"].startswith(("grade", "grading", "judge"))
    result: dict[str, Any] | None = None
    if row.clean or graded:
        known = seen.get("test_result")
        result = {
            "result": bool(row.passed),
            "reward": row.reward,
            "is_system_error": graded,
            "tb": "" if row.system_error is None else row.system_error["message"],
            "prints": "",
            "lineno": -1,
            "line_content": "",
            "metadata": {"judge_motivation": None},
            **({k: v for k, v in known.items() if k not in ("result", "reward")} if isinstance(known, Mapping) else {}),
        }
    metadata = {
        "scenario": row.domain,
        "repetition": row.attempt,
        "execution_time": row.seconds,
        **seen.get("metadata", {}),
    }
    if row.system_error is not None and not graded:
        metadata["error"] = {"type": row.system_error["kind"], "message": row.system_error["message"], "tb": ""}
    return {
        "uid": row.uid,
        "messages": list(seen.get("messages", [])),
        "test_result": result,
        "test_context": seen.get("test_context"),
        "test_tags": seen.get("tags"),
        "tools": seen.get("tools"),
        "raw_messages": None,
        "user_llm_history": None,
        "usage": seen.get("usage") or [_usage(row)],
        "metadata": metadata,
        "is_system_error": row.system_error is not None and not graded,
        "finish_reason": row.finish_reason,
    }


def _usage(row: AttemptRow) -> dict[str, Any]:
    return {
        "input_tokens": row.prompt_tokens,
        "input_tokens_details": {"cached_tokens": row.cached_tokens},
        "output_tokens": row.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": row.reasoning_tokens},
        "total_tokens": row.prompt_tokens + row.completion_tokens,
    }
