from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbexp.attempts import AttemptRow, AttemptStore, Counts, read_contents, read_counts, read_rows, to_tb_infer_row
from tbexp.attempts.counts import _batches, _Problems
from tbexp.config.schema import Fields
from tbexp.errors import UserError
from tbexp.tasks import Agent, Scenario, Tags, Task
from tbexp.tasks import benchmark as guard


def lines(folder: Path, *rows: Any, name: str = "rows.jsonl") -> Path:
    file = folder / name
    file.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return file


def infer(uid: str, result: Any, *, flag: bool = False, **inner: Any) -> dict[str, Any]:
    test = None if result is None else {"result": result, "is_system_error": False, **inner}
    return {"uid": uid, "test_result": test, "is_system_error": flag}


def test_tb_infer_rows_with_both_kinds_of_system_error(tmp_path: Path) -> None:
    file = lines(
        tmp_path,
        infer("b:1", True),
        infer("b:1", False),
        "",
        infer("a:1", None, flag=True),  # the run failed
        infer("a:1", False, is_system_error=True),  # the grading failed
        infer("a:1", None),  # cancelled, not flagged
    )
    assert read_counts([file]).as_dict() == {"a:1": (0, 0, 3), "b:1": (2, 1, 0)}


def test_rows_of_an_own_store(tmp_path: Path) -> None:
    fault = {"kind": "tool_timeout", "message": ""}
    with AttemptStore(tmp_path) as store:
        store.append(AttemptRow("a:1", 0, None, 0.0, fault))
        store.append(AttemptRow("a:1", 0, True, 1.0, tries=2))
        store.append(AttemptRow("a:1", 1, False, 0.0))
        expected = store.rows()
    file = tmp_path / "attempts.jsonl"
    assert read_counts([file]).as_dict() == {"a:1": (2, 1, 1)}
    assert [row for row in read_rows([file]) if row.clean] == expected
    assert Counts.of_rows(expected).as_dict() == {"a:1": (2, 1, 0)}


def test_dotted_paths_with_list_indexes(tmp_path: Path) -> None:
    rows = [{"task": {"ids": ["x", f"t{i}"]}, "scores": [{"ok": i == 1}], "bad": i == 2} for i in range(3)]
    file = lines(tmp_path, *rows)
    fields = Fields(uid="task.ids.1", passed="scores.0.ok", system_error="bad")
    assert read_counts([file], fields).as_dict() == {"t0": (1, 0, 0), "t1": (1, 1, 0), "t2": (0, 0, 1)}


def test_without_a_system_error_field_every_row_is_clean(tmp_path: Path) -> None:
    file = lines(tmp_path, {"id": "t", "ok": True, "is_system_error": True})
    fields = Fields(uid="id", passed="ok", system_error=None)
    assert read_counts([file], fields).as_dict() == {"t": (1, 1, 0)}


PATHS = Fields(uid="id", passed="r.ok", system_error="bad")


def test_attempts_that_are_called_by_a_text_keep_their_number_and_what_is_called_alike_is_one(tmp_path: Path) -> None:
    def row(attempt: Any, ok: bool = True) -> dict[str, Any]:
        return {"task": "a", "attempt": attempt, "ok": ok}

    fields = Fields(uid="task", passed="ok", system_error=None)
    file = lines(tmp_path, row("3"), row("second", False), row(None), row("second"), row(1.5, False))
    found = [(row.attempt, row.passed) for row in read_rows([file], fields)]
    assert found == [(0, False), (0, True), (1, True), (2, False), (3, True)]  # the two of one attempt stand together


@pytest.mark.parametrize(
    ("row", "fields", "message"),
    [
        ({"id": 3, "r": {"ok": True}, "bad": False}, PATHS, "id: 3 is no text"),
        ({"id": "", "r": {"ok": True}, "bad": False}, PATHS, 'id: "" is no text'),
        ({"r": {"ok": True}, "bad": False}, PATHS, "id: missing"),
        ({"id": "t", "r": {"ok": 1}, "bad": False}, PATHS, "r.ok: 1 is neither true nor false"),
        ({"id": "t", "r": {}, "bad": False}, PATHS, "r.ok: missing (r has no ok)"),
        ({"id": "t", "r": None, "bad": False}, PATHS, "r.ok: missing (r is null)"),
        ({"id": "t", "r": {"ok": True}}, PATHS, "bad: missing"),
        ({"id": "t", "r": {"ok": True}, "bad": None}, PATHS, "bad: null is neither true nor false"),
        ([1, 2], None, "the line is no JSON object"),
        ("{nonsense", None, "no JSON"),
        ('{"uid": "a"} {}', None, "no JSON"),
        ("[" * 100_000, None, "no JSON"),
        ('{"uid": "a\\ud800", "passed": true, "system_error": null}', None, 'uid: "a\\ud800" has half of a character'),
        ('{"id": "a\\udfff", "r": {"ok": true}, "bad": false}', PATHS, 'id: "a\\udfff" has half of a character'),
        ({"uid": "t"}, None, "test_result.result: missing"),
        ({"uid": "t", "passed": True}, None, "system_error: missing"),
        ({"uid": "t", "passed": "yes", "system_error": None}, None, 'passed: "yes" is neither'),
        ({"uid": "t", "passed": True, "system_error": "no"}, None, 'system_error: "no" is neither'),
        ({"uid": "t", "test_result": {"result": 1}}, None, "test_result.result: 1 is neither"),
        ({"uid": "t", "test_result": [], "is_system_error": False}, None, "test_result: [] is no object"),
        ({"uid": "t", "test_result": {}, "is_system_error": 0}, None, "is_system_error: 0 is neither"),
    ],
)
def test_an_error_names_file_line_and_field(tmp_path: Path, row: Any, fields: Fields | None, message: str) -> None:
    good = {"id": "t", "uid": "t", "passed": True, "system_error": None, "r": {"ok": True}, "bad": False}
    file = lines(tmp_path, good, "", row)
    for reader in (read_counts, read_rows):
        with pytest.raises(UserError, match=re.escape(f"{file}:3: {message}")):
            reader([file], fields)


def test_all_problems_of_all_files_come_at_once_and_are_bounded(tmp_path: Path) -> None:
    broken = lines(tmp_path, *[{"uid": i} for i in range(50)])
    with pytest.raises(UserError) as caught:
        read_counts([broken, tmp_path / "absent.jsonl", tmp_path])
    text = str(caught.value)
    assert f"{broken}:1:" in text and f"{broken}:20:" in text and f"{broken}:21:" not in text
    assert "and 32 more" in text


def test_a_missing_file_and_a_file_without_rows_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.jsonl: not found"):
        read_counts([tmp_path / "absent.jsonl"])
    with pytest.raises(UserError, match="no rows"):
        read_counts([lines(tmp_path, "", "")])


@pytest.mark.parametrize("copied", [False, True])
def test_a_file_that_is_named_twice_does_not_count_twice(copied: bool, tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text('{"uid": "a.py:t", "test_result": {"result": true}}\n')
    second.write_bytes(first.read_bytes())
    with pytest.raises(UserError, match="would count twice"):
        read_counts([first, second if copied else first])
    second.write_text(first.read_text().replace("true", "false"))
    assert read_counts([first, second]).clean.tolist() == [2]


def test_two_clean_rows_of_one_attempt_in_a_file_are_refused(tmp_path: Path) -> None:
    row = AttemptRow("a:1", 0, True, 1.0).as_dict()
    with pytest.raises(UserError, match=r"rows\.jsonl:2: attempt: a:1 0 has a clean row in line 1"):
        read_counts([lines(tmp_path, row, row)])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
LINES = st.builds(
    lambda value, left, right: left + json.dumps(value, ensure_ascii=False) + right,
    JSON,
    st.sampled_from(["", " ", "\t", "{", "]"]),
    st.sampled_from(["", " ", "\r", "}", " 1", ","]),
) | st.sampled_from(["", "  ", "NaN", "tru", '"', "1 2"])


@settings(max_examples=150)
@given(st.lists(LINES, max_size=6), st.booleans())
def test_lines_are_read_as_json_loads_reads_them(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], newline_at_end: bool
) -> None:
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    file = tmp_path_factory.mktemp("lines") / "x.jsonl"
    file.write_bytes(("\n".join(texts) + ("\n" if newline_at_end else "")).encode())
    problems = _Problems()
    found = [
        (number, json.dumps(value))
        for numbers, batch in _batches(file, problems, size=16)
        for number, value in zip(numbers, batch, strict=True)
    ]
    expected, bad = [], 0
    for number, text in enumerate(file.read_bytes().decode().split("\n"), 1):
        if text.strip():
            try:
                expected.append((number, json.dumps(json.loads(text))))
            except ValueError:
                bad += 1
    assert found == expected
    assert len(problems.shown) == bad


def test_rows_of_tb_infer_become_attempts_with_tokens_time_and_kinds_of_error(tmp_path: Path) -> None:
    usage = {"input_tokens": 10, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 4}}
    rows = [
        infer("a:1", True) | {"usage": [usage, usage], "metadata": {"repetition": 1, "scenario": "s"}},
        infer("a:1", None, flag=True) | {"metadata": {"error": {"type": "Timeout", "message": "m"}}},
        infer("a:1", False, is_system_error=True, tb="boom") | {"metadata": {"repetition": 2, "execution_time": 2.5}},
    ]
    found = read_rows([lines(tmp_path, *rows)])
    assert [(r.attempt, r.passed) for r in found] == [(0, None), (1, True), (2, None)]
    assert found[0].system_error == {"kind": "Timeout", "message": "m"}
    assert found[2].system_error == {"kind": "grader", "message": "boom"}
    assert (found[1].prompt_tokens, found[1].cached_tokens, found[1].completion_tokens) == (20, 8, 10)
    assert (found[1].domain, found[2].seconds) == ("s", 2.5)


OWN = AttemptRow(
    "a:1", 3, True, 0.5, finish_reason="done", turns=2, tool_calls=4, prompt_tokens=9, completion_tokens=7, seconds=1.5,
    domain="d", tries=2, cached_tokens=5, reasoning_tokens=3, user_prompt_tokens=11, user_completion_tokens=12,
    judge_prompt_tokens=13, judge_completion_tokens=14, user_cached_tokens=2, user_reasoning_tokens=4,
    judge_cached_tokens=6, judge_reasoning_tokens=8, judged=True, search="embedded", evaluation_only=True,
)  # fmt: skip
FAULT = {"kind": "tool_timeout", "message": "m"}


@pytest.mark.parametrize(
    ("row", "changes", "lacks", "read"),
    [
        (OWN, {"note": "x"}, "", {}),
        (OWN, {"note": None, "search_kind": []}, "", {}),
        (OWN, {}, "reward", {"reward": 1.0}),
        (OWN, {"judged": None, "tries": None}, "", {"judged": False, "tries": 1}),
        (replace(OWN, passed=None, system_error=FAULT), {"note": "x"}, "", {}),
        (replace(OWN, passed=None, system_error=FAULT), {"passed": True}, "", {}),
        (replace(OWN, evaluation_only=False), {"note": "x"}, "trajectory", {}),
    ],
)
def test_fields_that_an_attempt_lacks_or_has_besides_do_not_touch_the_others(
    row: AttemptRow, changes: dict[str, Any], lacks: str, read: dict[str, Any], tmp_path: Path
) -> None:
    plain = row.as_dict() | changes
    plain.pop(lacks, None)
    assert read_rows([lines(tmp_path, plain)]) == [replace(row, **read)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"finish_reason": ["a"]}, "finish_reason: ['a'] is no text"),
        ({"domain": 3}, "domain: 3 is no text"),
        ({"search": False}, "search: False is no text"),
        ({"judged": "yes"}, "judged: 'yes' is neither true nor false"),
        (
            {"user_cached_tokens": 12},
            "user_cached_tokens: 12 are more than user_prompt_tokens, 11, which they are part of",
        ),
        ({"judge_reasoning_tokens": 15}, "judge_reasoning_tokens: 15 are more than judge_completion_tokens, 14,"),
        ({"judge_cached_tokens": -1}, "judge_cached_tokens: -1 is no whole number from 0 on"),
        ({"evaluation_only": 1}, "evaluation_only: 1 is neither true nor false"),
        ({"tries": 1.0}, "tries: 1.0 is no whole number"),
        ({"system_error": {"kind": 3}, "passed": None}, "system_error.kind: 3 is no text"),
    ],
)
def test_a_field_of_another_type_than_it_has_is_told_with_file_and_line(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = lines(tmp_path, replace(OWN, attempt=0).as_dict(), OWN.as_dict() | changes)
    with pytest.raises(UserError, match=re.escape(f"{file}:2: {message}")) as caught:
        read_rows([file])
    assert len(caught.value.problems) == 1


def test_how_a_row_of_tb_infer_ended_is_text(tmp_path: Path) -> None:
    file = lines(tmp_path, infer("a:1", True) | {"finish_reason": ["a"]})
    with pytest.raises(UserError, match=re.escape(f"{file}:1: finish_reason: ['a'] is no text")):
        read_rows([file])


HUGE = 10**400


@pytest.mark.parametrize(
    ("row", "message"),
    [
        *((OWN.as_dict() | {name: HUGE}, f"{name}: 1000") for name in ("seconds", "reward", "prompt_tokens", "tries")),
        (OWN.as_dict() | {"attempt": 10**30}, "attempt: 1000"),
        (OWN.as_dict() | {"reward": -HUGE}, "reward: -1000"),
        (OWN.as_dict() | {"seconds": 1e300}, "seconds: 1e+300 is beyond"),
        (infer("a:1", True) | {"metadata": {"repetition": 10**30}}, "metadata.repetition: 1000"),
        (infer("a:1", True) | {"metadata": {"execution_time": HUGE}}, "metadata.execution_time: 1000"),
        (infer("a:1", True, reward=HUGE), "test_result.reward: 1000"),
        (infer("a:1", True) | {"usage": [{"input_tokens": HUGE}]}, "usage.0.input_tokens: 1000"),
        (infer("a:1", True) | {"messages": [{}, {"tool_calls": 5}]}, "messages.1.tool_calls: 5 is no list"),
        (infer("a:1", True) | {"messages": [{"tool_calls": {"a": 1}}]}, "messages.0.tool_calls: {'a': 1} is no list"),
    ],
)
def test_a_number_out_of_range_is_told_with_file_and_line(row: Any, message: str, tmp_path: Path) -> None:
    file = lines(tmp_path, OWN.as_dict(), row)
    with pytest.raises(UserError, match=re.escape(f"{file}:2: {message}")):
        read_rows([file])


def test_a_row_written_for_tb_infer_reads_back_as_the_same_attempt(tmp_path: Path) -> None:
    attempts = [
        AttemptRow("a:1", 0, True, 0.5, finish_reason="done", prompt_tokens=7, completion_tokens=3, domain="d"),
        AttemptRow("a:1", 1, False, 0.0, finish_reason="agent_limit", seconds=1.5, prompt_tokens=2, cached_tokens=2),
        AttemptRow("a:1", 2, None, 0.0, {"kind": "tool_timeout", "message": "m"}),
        AttemptRow("a:1", 3, None, 0.0, {"kind": "grader_crash", "message": "m"}),
    ]
    file = lines(tmp_path, *[to_tb_infer_row(row, {"messages": [], "metadata": {"agent": "x"}}) for row in attempts])
    found = read_rows([file])
    for before, after in zip(attempts, found, strict=True):
        assert (after.attempt, after.passed, after.reward, after.finish_reason) == (
            before.attempt,
            before.passed,
            before.reward,
            before.finish_reason,
        )
        assert (after.prompt_tokens, after.completion_tokens, after.cached_tokens, after.seconds, after.domain) == (
            before.prompt_tokens,
            before.completion_tokens,
            before.cached_tokens,
            before.seconds,
            before.domain,
        )
    assert [to_tb_infer_row(row)["is_system_error"] for row in attempts] == [False, False, True, False]


def test_the_messages_and_verdict_of_a_trajectory_stand_in_the_row_for_tb_infer(tmp_path: Path) -> None:
    call = {"T": "ToolCall", "name": "find", "arguments": {}, "id": "c", "metadata": {}}
    messages = [
        {"T": "Text", "role": "assistant", "content": "hi", "metadata": {"tag": "text"}},
        {"T": "ParallelToolCall", "tool_calls": [call, call], "metadata": {}},
    ]
    verdict = {"passed": False, "line": 7, "line_content": "assert x", "message": "no", "prints": "p", "metadata": {}}
    row = to_tb_infer_row(AttemptRow("a:1", 0, False, 0.0), {"messages": messages, "verdict": verdict})
    assert row["messages"] == messages
    assert [row["test_result"][key] for key in ("lineno", "line_content", "tb", "prints")] == [7, "assert x", "no", "p"]
    (found,) = read_rows([lines(tmp_path, row)])
    assert (found.turns, found.tool_calls) == (1, 2)


def test_a_row_for_tb_infer_has_the_times_and_what_the_task_says(tmp_path: Path) -> None:
    seconds = {"start": 0.5, "agent": 2.0, "tools": 0.25, "grading": 0.125, "total": 3.0}
    trajectory = {"seconds": seconds, "metadata": {"scenario": "s", "agent": "a", "test_case_name": "1"}}
    tags = Tags(labels=("smoke",), domain="d", eval_type="e")
    task = Task("a:1", Agent("a", "s"), Scenario("s", {}), "q", tags=tags, metadata={"test_case_file": "/there/a"})
    row = to_tb_infer_row(AttemptRow("a:1", 2, True, 1.0, seconds=3.0), trajectory, task)
    assert json.loads(json.dumps(row))["test_tags"] == row["test_tags"] == {
        "labels": ["smoke"], "category": [], "domain": "d", "eval_type": "e", "skip": False,
    }  # fmt: skip
    assert row["metadata"] == {
        "scenario": "s", "agent": "a", "test_case_file": "/there/a", "test_case_name": "1", "repetition": 2,
        "time_agent": 2.0, "time_user": 0.0, "time_tool": 0.25, "time_test": 0.125, "time_agent_user_loop": 2.25,
        "execution_time": 3.0,
    }  # fmt: skip
    bare = to_tb_infer_row(AttemptRow("a:1", 2, True, 1.0))
    assert bare["test_tags"] is None and not [name for name in bare["metadata"] if name.startswith("time_")]


def test_counts_can_be_extended_and_restricted_and_their_digest_ignores_the_order_of_rows(tmp_path: Path) -> None:
    rows = [infer("a", True), infer("b", False), infer("a", False)]
    counts = read_counts([lines(tmp_path, *rows)])
    assert counts.digest() == read_counts([lines(tmp_path, *rows[::-1], name="other.jsonl")]).digest()
    assert counts.with_uids(["c"]).as_dict() == {"a": (2, 1, 0), "b": (1, 0, 0), "c": (0, 0, 0)}
    assert counts.only(["b", "d"]).as_dict() == {"b": (1, 0, 0), "d": (0, 0, 0)}
    with pytest.raises(ValueError, match="sorted"):
        Counts(("b", "a"), *(np.zeros(2, np.int64) for _ in range(3)))


Q = "A digger, please."


@pytest.mark.parametrize(
    ("row", "benchmark", "known"),
    [
        ({"messages": [{"T": "Text", "role": "user", "content": f" {Q}\n"}]}, True, True),
        ({"messages": [{"role": "system", "content": Q}, {"role": "user", "content": "Another."}]}, False, True),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": Q}]}]}, True, True),
        ({"trajectory": {"messages": [{"role": "user", "content": Q}]}}, True, True),
        ({"messages": []}, False, False),
        ({"messages": None, "metadata": {"evaluation_only": True}}, True, False),
        ({"evaluation_only": True}, True, False),
        ({"evaluation_only": False, "metadata": None}, False, False),
        ({"messages": [7, {"role": "user"}, {"role": "user", "content": 5}]}, False, False),
        ({}, False, False),
    ],
)
def test_a_task_of_the_benchmark_is_known_by_what_a_row_holds(tmp_path, monkeypatch, row, benchmark, known):
    monkeypatch.setattr(guard, "_shipped", lambda: (frozenset(), frozenset({guard._sha(Q)})))
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"uid": "a.py:b", "test_result": {"result": True}, **row}) + "\n\n")
    found = read_contents([file])
    assert (found.benchmark, found.known) == ({"a.py:b"} if benchmark else set(), {"a.py:b"} if known else set())
    try:
        (made,) = read_rows([file])
    except UserError:
        return  # what is no message is told there
    assert made.evaluation_only is benchmark
