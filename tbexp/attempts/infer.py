"""Attempts in the row format of `tb infer`, for tools that read that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tbexp.attempts.row import AttemptRow
from tbexp.tasks import Task

_GRADING = ("grader", "judge", "no_judge", "test_code", "fixture")  # kinds of system errors that begin so
_PARTS = {"time_agent": "agent", "time_user": "user", "time_tool": "tools", "time_test": "grading"}


def to_tb_infer_row(
    row: AttemptRow, trajectory: Mapping[str, Any] | None = None, task: Task | None = None
) -> dict[str, Any]:
    """The attempt as `tb infer` writes it (thinkingbox format, section 8).

    Of the trajectory, `messages`, `verdict`, `metadata` and `seconds` are taken where they are there; of the task,
    its tags and its file, whose place is not kept with attempts. A system error of grading
    stands in `test_result`, any other in the row, as in `tb infer`; token counts are one sum over the attempt's
    completions.
    """
    seen: Mapping[str, Any] = trajectory or {}
    verdict: Mapping[str, Any] = seen.get("verdict") or {}
    graded = row.system_error is not None and row.system_error["kind"].startswith(_GRADING)
    result: dict[str, Any] | None = None
    if row.clean or graded:
        line = verdict.get("line")
        result = {
            "result": bool(row.passed),
            "reward": row.reward,
            "is_system_error": graded,
            "tb": verdict.get("message", "") if row.system_error is None else row.system_error["message"],
            "prints": verdict.get("prints", ""),
            "lineno": -1 if line is None else line,
            "line_content": verdict.get("line_content") or "",
            "metadata": {"judge_motivation": None, **(verdict.get("metadata") or {})},
        }
    metadata = {
        "scenario": row.domain,
        "repetition": row.attempt,
        "execution_time": row.seconds,
        **seen.get("metadata", {}),
        **_times(seen.get("seconds") or {}),
    }
    if task is not None and "test_case_file" in task.metadata:
        metadata["test_case_file"] = task.metadata["test_case_file"]
    if row.search:
        metadata["search"] = row.search
    if row.evaluation_only:
        metadata["evaluation_only"] = True
    if row.system_error is not None and not graded:
        metadata["error"] = {"type": row.system_error["kind"], "message": row.system_error["message"], "tb": ""}
    return {
        "uid": row.uid,
        "messages": list(seen.get("messages", [])),
        "test_result": result,
        "test_context": None,
        "test_tags": None if task is None else _tags(task),
        "tools": None,
        "raw_messages": None,
        "user_llm_history": None,
        "usage": [_usage(row)],
        "metadata": metadata,
        "is_system_error": row.system_error is not None and not graded,
        "finish_reason": row.finish_reason,
    }


def _times(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds by part as `tb infer` names them; a part that did not happen took none."""
    if not seconds:
        return {}
    parts = {name: seconds.get(part, 0.0) for name, part in _PARTS.items()}
    loop = sum(parts[name] for name in ("time_agent", "time_user", "time_tool"))
    return {**parts, "time_agent_user_loop": round(loop, 4)}


def _tags(task: Task) -> dict[str, Any]:
    parts = asdict(task.tags)
    return {name: list(part) if isinstance(part, tuple) else part for name, part in parts.items()}


def _usage(row: AttemptRow) -> dict[str, Any]:
    return {
        "input_tokens": row.prompt_tokens,
        "input_tokens_details": {"cached_tokens": row.cached_tokens},
        "output_tokens": row.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": row.reasoning_tokens},
        "total_tokens": row.prompt_tokens + row.completion_tokens,
    }
