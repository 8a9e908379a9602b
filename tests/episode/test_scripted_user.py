"""What the scripted user answers."""

from __future__ import annotations

import random

import pytest

from tbexp.episode.scripted_user import NOTHING_ASKED, UNKNOWN, reply

CONTEXT = """You are Ada Quist, customer C7 of a rental desk.
If asked about rental or contract: It is R12.
If asked about cost: 40 {euro}.
"""


@pytest.mark.parametrize(
    ("question", "parts"),
    [
        ("Which rental is it?", ["It is R12."]),
        ("Please tell me the contract number.", ["It is R12."]),
        ("Which RENTALS, and at what cost?", ["It is R12.", "40 {euro}."]),
        ("What is the cost?", ["40 {euro}."]),
        ("I need the rental.", ["It is R12."]),
    ],
)
def test_a_question_gets_the_answers_of_its_topics_in_the_order_of_the_context(question: str, parts: list[str]) -> None:
    said = reply(CONTEXT, question, random.Random(0))
    places = [said.index(part) for part in parts]
    assert places == sorted(places)
    assert [part for part in ("It is R12.", "40 {euro}.") if part in said] == parts


@pytest.mark.parametrize("question", ["What is your name?", "Which parental form?", "How are you?"])
def test_what_the_context_does_not_say_is_unknown(question: str) -> None:
    assert reply(CONTEXT, question, random.Random(0)) == UNKNOWN


@pytest.mark.parametrize("text", ["Your rental has ended.", "", "The cost is 40."])
def test_a_text_that_asks_nothing_is_thanked_for(text: str) -> None:
    assert reply(CONTEXT, text, random.Random(0)) == NOTHING_ASKED


def test_a_seed_says_the_same_and_seeds_differ() -> None:
    said = [reply(CONTEXT, "Which rental?", random.Random(seed)) for seed in range(40)]
    assert said == [reply(CONTEXT, "Which rental?", random.Random(seed)) for seed in range(40)]
    assert set(said) == {"It is R12.", "Sure. It is R12.", "It is R12. Thank you."}


def test_an_empty_context_knows_nothing() -> None:
    assert reply("", "Which rental?", random.Random(0)) == UNKNOWN
