"""What two sets of tasks have in common."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbexp.tasks import Agent, Scenario, Task, ToolOverride, overlap
from tbexp.tasks.overlap import similarity

AGENT = Agent("agent", "S")
SHOP = Scenario(
    "shop",
    {"shop": {"sources": [{"name": "returns", "snippets": ["30 days"]}, {"name": "fees", "snippets": ["5 EUR"]}]}},
    (ToolOverride("sell"), ToolOverride("refund")),
    bot_instructions="Be kind.",
)
BANK = Scenario("bank", {"bank": {}, "mail": {}}, (ToolOverride("pay"), ToolOverride("refund")), "Be strict.")
POOL = [
    Task("a.py:t1", AGENT, SHOP, query="Please refund my order number 17, it came broken."),
    Task("a.py:t2", AGENT, SHOP, query="Sell me two teapots and a cup."),
]


def test_names_policies_and_queries_are_compared():
    held_out = [
        replace(POOL[0], uid="renamed.py:t1"),
        replace(POOL[0], uid="b.py:t1", query="please refund my ORDER number 18, it came broken", test_code="pass"),
        Task("b.py:t2", AGENT, BANK, query="Pay the rent."),
        Task("b.py:t3", AGENT, replace(SHOP, bot_instructions="Be quick."), query="sell me two teapots, and a cup!"),
    ]
    found = overlap(POOL, held_out)
    assert (found.servers.all, found.servers.shared) == (3, 1)
    assert (found.tools.all, found.tools.shared) == (3, 2)
    # Of "Be kind.", "Be strict.", "Be quick." and two documents.
    assert (found.policies.all, found.policies.shared) == (5, 3)
    assert (found.equal_tasks, found.equal_queries, found.near_queries, found.highest) == (1, 2, 2, 1.0)
    assert found.near == (("b.py:t3", "a.py:t2", 1.0), ("renamed.py:t1", "a.py:t1", 1.0))
    stored = json.loads(json.dumps(found.as_dict()))
    assert stored["near"][0] == ["b.py:t3", "a.py:t2", 1.0]
    assert "4 evaluation tasks share with 2 pool tasks 1 of 3 servers, 2 of 3 tools, 3 of 5 policies" in stored["text"]


def test_sets_that_share_nothing_say_so():
    found = overlap(POOL, [Task("b.py:t2", AGENT, BANK, query="Pay the rent.")])
    assert (found.servers.shared, found.policies.shared, found.equal_tasks) == (0, 0, 0)
    assert (found.near_queries, found.highest, found.near) == (0, 0.0, ())
    assert overlap([], []).highest == 0.0


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a b c d", "a b c d", 1.0),
        ("a b c d", "A, b; c! d", 1.0),
        ("a b c d", "a b c e", 1 / 3),
        ("a b", "a b", 1.0),
        ("a b", "b a", 0.0),
        ("", "a", 0.0),
    ],
)
def test_the_similarity_of_texts(one, other, expected):
    assert similarity(one, other) == pytest.approx(expected)


WORDS = st.lists(st.sampled_from("abcd"), max_size=9).map(" ".join)


@given(st.lists(WORDS, max_size=5), st.lists(WORDS, max_size=5))
def test_the_nearest_is_found_as_by_comparing_all_pairs(pool, held_out):
    one = [Task(f"p.py:t{i}", AGENT, SHOP, query=query) for i, query in enumerate(pool)]
    other = [Task(f"e.py:t{i}", AGENT, SHOP, query=query) for i, query in enumerate(held_out)]
    best = [max((similarity(a, b) for b in pool), default=0.0) for a in held_out]
    found = overlap(one, other)
    assert found.highest == pytest.approx(max(best, default=0.0), abs=1e-4)
    assert found.near_queries == sum(score >= 0.5 for score in best)
