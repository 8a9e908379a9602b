from __future__ import annotations

from dataclasses import replace

import pytest

from tbexp.errors import UserError
from tbexp.tasks import Agent, Scenario, Task, benchmark, benchmark_uids, is_benchmark, refuse_benchmark

TASK = Task("mine.py:test_a", Agent("a", "s"), Scenario("s", {}), "A digger, please.", "You are Ada.")
UID = "sandbox_external_retail_group1.py:test_case_ST002_001"


def test_the_507_tasks_of_the_benchmark_are_known_by_uid():
    assert len(benchmark_uids()) == 507 and UID in benchmark_uids()
    assert is_benchmark(UID) and is_benchmark(replace(TASK, uid=UID))
    assert not is_benchmark(TASK) and not is_benchmark(TASK.uid)


def test_a_renamed_copy_is_known_by_its_content(monkeypatch):
    hashes = frozenset({benchmark._sha("A digger, please.\nYou are Ada.")})
    monkeypatch.setattr(benchmark, "_shipped", lambda: (frozenset(), hashes))
    assert is_benchmark(replace(TASK, query="  A digger, please.\n", user_context="You are Ada. "))
    assert not is_benchmark(replace(TASK, user_context="You are Bob."))
    monkeypatch.setattr(benchmark, "_shipped", lambda: (frozenset(), frozenset({benchmark._sha("A digger, please.")})))
    assert is_benchmark(replace(TASK, user_context=None))


def test_a_benchmark_task_among_others_stops_their_use_and_is_named():
    refuse_benchmark([TASK, "other.py:test"], use="training")
    with pytest.raises(UserError, match=f"1 of the tasks for training .*evaluation only: {UID}"):
        refuse_benchmark([TASK, UID], use="training")
    with pytest.raises(UserError, match="and 497 more"):
        refuse_benchmark(sorted(benchmark_uids()), use="imitation")


def test_what_is_shipped_holds_hashes_and_no_text():
    uids, hashes = benchmark._shipped()
    assert len(uids) == 507 and all(len(part) == 64 and int(part, 16) >= 0 for part in hashes)
