from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbexp.policy.policy import Usage
from tbexp.training.failures import Failure
from tbexp.training.groups import (
    Ledger,
    attempt_metrics,
    covered,
    kind_of,
    note_groups,
    note_others,
    note_validation,
    others_of,
    others_spent,
    read_others,
    read_validations,
)

KINDS = st.sampled_from(["mixed", "flat", "failed"])


def play(outcomes: list[str], order: list[int], wanted: int, rounds: int) -> Ledger:
    """An update whose n-th generated group ends as outcomes[n]; `order` decides which running group ends next."""
    ledger = Ledger(wanted=wanted, limit=rounds * wanted, dispatched=wanted)
    running = list(range(wanted))
    turn = 0
    while True:
        if more := ledger.missing(len(running)):
            running += range(ledger.dispatched, ledger.dispatched + more)
            ledger.dispatched += more
            continue
        if not running:
            return ledger
        draw = running.pop(order[turn % len(order)] % len(running))
        turn += 1
        ledger.kinds[f"g{draw}"] = outcomes[draw]
        ledger.draws[f"g{draw}"] = draw


@given(
    st.lists(KINDS, min_size=40, max_size=40),
    st.lists(st.integers(0, 20), min_size=1, max_size=30),
    st.integers(1, 8),
    st.integers(1, 5),
)
def test_an_update_is_the_shortest_prefix_of_the_stream_whatever_ends_first(
    outcomes: list[str], order: list[int], wanted: int, rounds: int
) -> None:
    ledger = play(outcomes, order, wanted, rounds)
    limit = wanted * rounds
    mixed = [n for n, kind in enumerate(outcomes[:limit]) if kind == "mixed"]
    needed = mixed[wanted - 1] + 1 if len(mixed) >= wanted else limit
    assert ledger.dispatched == max(needed, wanted)
    assert set(ledger.draws.values()) == set(range(ledger.dispatched))
    assert ledger.chosen() == play(outcomes, [0], wanted, rounds).chosen()
    assert not {ledger.kinds[uid] for uid in ledger.chosen()} & {"failed"}
    if len(mixed) >= wanted:
        assert ledger.chosen() == [f"g{n}" for n in mixed[:wanted]]


@pytest.mark.parametrize(
    ("outcomes", "chosen", "metrics"),
    [
        # 2 wanted, at most 3 x 2 generated
        ("mm", "g0 g1", {"generated": 2, "zero_variance": 0, "failed": 0, "used": 0}),
        ("mfm", "g0 g2", {"generated": 3, "zero_variance": 1, "failed": 0, "used": 0}),
        ("xmm", "g1 g2", {"generated": 3, "zero_variance": 0, "failed": 1, "used": 0}),
        ("fffffm", "g5 g0", {"generated": 6, "zero_variance": 4, "failed": 0, "used": 1}),
        ("ffffff", "g0 g1", {"generated": 6, "zero_variance": 4, "failed": 0, "used": 2}),
        ("xxxxxm", "g5", {"generated": 6, "zero_variance": 0, "failed": 5, "used": 0}),
        ("xxxxxx", "", {"generated": 6, "zero_variance": 0, "failed": 6, "used": 0}),
    ],
)
def test_what_an_update_is_made_of_and_counted_as(outcomes: str, chosen: str, metrics: dict[str, int]) -> None:
    words = {"m": "mixed", "f": "flat", "x": "failed"}
    ledger = play([words[c] for c in outcomes] + ["mixed"] * 10, [0], wanted=2, rounds=3)
    counted = ledger.metrics()
    assert " ".join(ledger.chosen()) == chosen
    assert {
        "generated": counted["train/groups/generated"],
        "zero_variance": counted["train/refilled/zero_variance"],
        "failed": counted["train/refilled/system_error_groups"],
        "used": counted["train/groups/zero_variance_used"],
    } == metrics


def test_rates_are_over_clean_groups_and_rewards_over_all_attempts_that_have_one() -> None:
    ledger = Ledger(wanted=1, limit=4, dispatched=3, kinds={"a": "mixed", "b": "flat", "c": "failed"})
    ledger.attempts = [
        {"reward": 1.0, "tokens": 10, "surprise": 5.0, "retried": 2},
        {"reward": 0.0, "tokens": 30, "surprise": 15.0, "retried": 0},
    ]
    metrics = ledger.metrics()
    assert metrics["train/mixed_group_rate"] == 0.5
    assert metrics["train/reward_mean"] == 0.5
    assert metrics["train/entropy_of_samples"] == 0.5
    assert metrics["train/refilled/system_error"] == 2


def test_what_is_thrown_away_is_counted_in_attempts_tokens_and_seconds() -> None:
    ledger = Ledger(wanted=1, limit=4, dispatched=3, kinds={"a": "mixed", "b": "flat", "c": "failed"})
    spent = {"tokens": 10, "prompt_tokens": 100, "seconds": {"total": 2.0, "tools": 1.0}}
    ledger.attempts = [{"reward": 1.0, "surprise": 0.0, "group": group, **spent} for group in "aabbc"]
    ledger.failures = [Failure("t", "world", "tool_timeout", "late", tokens=5, prompt_tokens=40, seconds=1.5)]
    found = {name.rpartition("/")[2]: value for name, value in ledger.metrics().items() if "thrown_away" in name}
    assert found == {
        **{"attempts": 3, "failed_tries": 1, "tokens": 35, "prompt_tokens": 340, "attempt_seconds": 7.5},
        "token_share": pytest.approx(35 / 55),
    }


def test_what_user_and_judge_spend_is_counted_over_all_attempts_and_failed_tries(tmp_path: Path) -> None:
    spent = others_of({"user": Usage(10, 4, 2, 1), "judge": Usage(5, 0, 1, 0)})
    assert spent == {
        "user_prompt_tokens": 10,
        "user_cached_tokens": 4,
        "user_completion_tokens": 2,
        "user_reasoning_tokens": 1,
        "judge_prompt_tokens": 5,
        "judge_completion_tokens": 1,
    }
    ledger = Ledger(wanted=1, limit=4, dispatched=2, kinds={"a": "mixed", "b": "flat"})
    ledger.attempts = [{"reward": 1.0, "group": group, "others": spent} for group in "ab"] + [{"reward": 0.0}]
    ledger.failures = [Failure("t", "world", "tool_timeout", "late", others={"user_prompt_tokens": 7})]
    metrics = ledger.metrics()
    assert metrics["train/others/user_prompt_tokens"] == 27 and metrics["train/others/judge_completion_tokens"] == 2
    assert metrics["train/others/user_cached_tokens"] == 8
    file = tmp_path / "others.jsonl"
    assert read_others(file) == {}
    note_others(file, 3, "update", 4, ledger.others())
    note_others(file, 3, "validation", 2, others_spent([], []))
    note_others(file, 3, "update", 5, {"user_prompt_tokens": 1})  # made again after a restart
    with file.open("a") as stream:
        stream.write('{"step": 4, "kind": "upd')
    kept = {(3, "update"): (5, {"user_prompt_tokens": 1}), (3, "validation"): (2, {})}
    assert read_others(file) == kept
    note_others(file, 4, "update", 6, {})
    assert read_others(file) == {**kept, (4, "update"): (6, {})}


def test_what_a_validation_s_attempts_got_is_noted_and_the_last_line_of_a_step_counts(tmp_path: Path) -> None:
    file = tmp_path / "validations.jsonl"
    assert read_validations(file) == {}
    note_validation(file, 0, [1.0, 0.0, 1.0])
    note_validation(file, 5, [1.0])
    with file.open("a") as stream:
        stream.write('{"step": 5, "att')
    assert read_validations(file) == {0: (3, 2.0), 5: (1, 1.0)}
    note_validation(file, 5, [0.0, 0.5])
    assert read_validations(file) == {0: (3, 2.0), 5: (2, 0.5)}


def test_seconds_are_means_over_attempts_and_finish_reasons_are_shares() -> None:
    attempts = [
        {"finish_reason": "done", "seconds": {"tools": 1.0}},
        {"finish_reason": "token_limit", "seconds": {"tools": 3.0, "user": 1.0}},
    ]
    assert attempt_metrics(attempts) == {
        "train/attempt_seconds/tools": 2.0,
        "train/attempt_seconds/user": 0.5,
        "train/finish/done": 0.5,
        "train/finish/token_limit": 0.5,
    }


def test_the_share_of_time_waiting_for_tools_is_of_all_attempts_seconds_together() -> None:
    attempts = [{"seconds": {"total": 8.0, "tools": 1.0}}, {"seconds": {"total": 2.0, "tools": 1.5}}]
    assert attempt_metrics(attempts)["train/tool_wait_share"] == 0.25
    assert "train/tool_wait_share" not in attempt_metrics([{"seconds": {"tools": 1.0}}])


def test_seconds_with_a_request_or_an_attempt_under_way_count_what_overlaps_once() -> None:
    attempts = [
        {"span": (9.0, 17.0), "asked": [(10.0, 12.0), (15.0, 16.0)]},
        {"span": (10.0, 14.0), "asked": [(11.0, 13.0)]},
        {},
    ]
    metrics = attempt_metrics(attempts)
    assert (metrics["train/seconds/requests"], metrics["train/seconds/attempts"]) == (4.0, 8.0)
    assert "train/seconds/requests" not in attempt_metrics([{"span": (9.0, 17.0), "asked": []}])


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15))))
def test_the_union_of_spans_is_as_long_as_the_moments_in_some_span(spans: list[tuple[int, int]]) -> None:
    moments = {moment for begin, length in spans for moment in range(begin, begin + length)}
    assert covered([(begin, begin + length) for begin, length in spans]) == len(moments)


@pytest.mark.parametrize(("rewards", "kind"), [([1, 1, 1], "flat"), ([0, 0], "flat"), ([0, 1], "mixed")])
def test_a_group_is_flat_when_all_its_rewards_are_equal(rewards: list[float], kind: str) -> None:
    assert kind_of(rewards) == kind


def test_each_groups_rewards_are_noted_with_what_became_of_it(tmp_path: Path) -> None:
    ledger = play(["mixed", "flat", "mixed"], [0], wanted=2, rounds=2)
    ledger.attempts = [
        {"group": f"g{i}", "task": f"t{i}", "reward": reward}
        for i, rewards in enumerate([(1.0, 0.0), (0.0, 0.0), (0.0, 1.0)])
        for reward in rewards
    ]
    note_groups(tmp_path / "groups.jsonl", ledger, 7)
    rows = [json.loads(line) for line in (tmp_path / "groups.jsonl").read_text().splitlines()]
    assert [(r["step"], r["task"], r["kind"], r["used"], r["rewards"]) for r in rows] == [
        (7, "t0", "mixed", True, [1.0, 0.0]),
        (7, "t1", "flat", False, [0.0, 0.0]),
        (7, "t2", "mixed", True, [0.0, 1.0]),
    ]
