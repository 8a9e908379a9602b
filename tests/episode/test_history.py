"""Tasks that start from a recorded conversation, and tasks whose texts take what the servers answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbexp.episode.history import recorded_calls, told
from tbexp.errors import UserError, WorldError
from tbexp.interpret.messages import Message, ToolCall

from .test_loop import calls, play, text


def said(role: str, content: str, **metadata: Any) -> dict[str, Any]:
    return {"T": "Text", "role": role, "content": content, "metadata": metadata}


def call(name: str, number: int, **metadata: Any) -> dict[str, Any]:
    return {"T": "ToolCall", "name": name, "arguments": {"n": number}, "id": f"call_{number}", "metadata": metadata}


def answer(name: str, number: int) -> dict[str, Any]:
    return {"T": "ToolResponse", "name": name, "content": f"answer {number}", "id": f"call_{number}"}


HISTORY: tuple[Mapping[str, Any], ...] = (
    said("user", "before"),
    said("assistant", "hm", tag="think"),
    said("assistant", "I look."),
    {"T": "ParallelToolCall", "tool_calls": [call("a", 0), call("lost", 1)]},
    answer("a", 0),
    answer("lost", 1),
    said("assistant", "D:7", tag="direct"),
    call("d", 2, error="no JSON"),
    answer("d", 2),
    call("end", 3),
    answer("end", 3),
    said("assistant", "There.", is_dummy=True),
    said("assistant", "Which one?"),
)


def test_a_recorded_conversation_is_told_and_its_calls_are_made_again() -> None:
    played = play([calls("a"), text("ok <DONE>")], history=HISTORY)
    assert played.backend.replayed == [("a", {"n": 0}), ("lost", {"n": 1})]
    messages, _, _ = played.player.opened[0]
    assert messages == [
        Message("system", "S"),
        Message("user", "before"),
        Message(
            "assistant", "I look.", (ToolCall("a", {"n": 0}, "call_0"), ToolCall("lost", {"n": 1}, "call_1")), "hm"
        ),
        Message("tool", "answer 0", name="a", call_id="call_0"),
        Message("tool", "answer 1", name="lost", call_id="call_1"),
        Message("assistant", "", (ToolCall("d", {"n": 2}, "call_2", "no JSON"),)),
        Message("tool", "answer 2", name="d", call_id="call_2"),
        Message("assistant", "", (ToolCall("end", {"n": 3}, "call_3"),)),
        Message("tool", "answer 3", name="end", call_id="call_3"),
        Message("assistant", "There."),
        Message("assistant", "Which one?"),
        Message("user", "Q"),
    ]
    (context,) = played.examiner.contexts
    assert context.messages[1]["content"] == "before" and context.query() == "before"
    # What the agent did is told apart from what was recorded, also by the ids of its calls.
    assert [made["tool_call"]["id"] for made in context.tool_calls] == ["call_4"]
    metadata = played.attempt.trajectory["metadata"]
    assert metadata["replay_warnings"] == ["lost: the session shows no such tool"]


def test_the_user_sees_of_a_recorded_conversation_what_is_visible() -> None:
    played = play([text("and?"), text("ok <DONE>")], says=["yes"], history=HISTORY)
    ((_, seen, _),) = played.customer.seen
    assert [m.content for m in seen] == ["before", "I look.", "D:7", "Which one?", "Q", "and?"]


def test_a_server_that_fails_while_calls_are_made_again_is_a_system_error() -> None:
    played = play([text("x <DONE>")], history=HISTORY, faults={"replay 2": WorldError("server_crashed", "gone")})
    assert played.attempt.system_error is not None and played.attempt.system_error.kind == "server_crashed"


@given(st.lists(st.sampled_from([*HISTORY, said("assistant", "more"), said("system", "note")])))
def test_nothing_that_was_recorded_is_lost_but_direct_messages(history: list[Mapping[str, Any]]) -> None:
    messages = told(history)
    assert [c for m in messages for c in m.calls] == list(recorded_calls(history))
    kept = [m for m in history if m["T"] in ("Text", "ToolResponse") and m.get("metadata", {}).get("tag") != "direct"]
    parts = [part for m in messages for part in (m.reasoning, m.content) if part]
    assert parts == [m["content"] for m in kept]


def test_texts_take_what_the_servers_answered_where_the_task_asks_for_it() -> None:
    asked = {"query": "Q {init[shop][id]}", "user_context": "K {init[shop][id]}", "bot_instructions": "B {init[shop]}"}
    script, says = [text("which?"), text("ok <DONE>")], ["that"]
    played = play(script, says, format_query=True, **asked)
    assert [m.content for m in played.player.opened[0][0]] == ["S", "B {'id': 7}", "Q 7"]
    assert played.customer.seen[0][0] == "K 7"
    played = play(script, says, **asked)
    assert played.player.opened[0][0][-1].content == "Q {init[shop][id]}"


@pytest.mark.parametrize("query", ["{init[shop][name]}", "{", "{0}", "{other}"])
def test_a_text_that_cannot_be_filled_in_is_the_users_to_mend(query: str) -> None:
    raised = play([text("x <DONE>")], query=query, format_query=True).raised
    assert isinstance(raised, UserError) and "t.py:test_1: query cannot be filled in" in str(raised)
