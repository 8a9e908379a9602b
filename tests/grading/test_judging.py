from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbexp.grading.judging import Rubric, read_motivated, rubric_reward, says_yes

VERDICTS = {
    "yes": True,
    "Yes.": True,
    "Yes!": True,
    "**Yes**": True,
    '"Yes"': True,
    "`yes`": True,
    "YES, the reply is polite. No doubt.": True,
    "The reply asks for the date and waits. So the answer is yes.": True,
    "Verdict:\n\nYes": True,
    "no": False,
    "No. I would not say yes": False,
    "**No**": False,
    "I would not say yes": False,
    "I wouldn't say yes.": False,
    "It is not rude. Answer: yes": True,
    "The answer is no.": False,
    "Yesterday it was polite": False,
    "Perhaps": False,
    "": False,
    "Yes and no": True,
}


@pytest.mark.parametrize("text", VERDICTS)
def test_a_verdict_is_read_by_the_rule(text):
    assert says_yes(text) is VERDICTS[text]


@given(st.text())
def test_any_text_has_a_verdict_and_no_leading_no_is_a_yes(text):
    assert isinstance(says_yes(text), bool)
    assert says_yes("No. " + text) is False
    assert says_yes("Yes, " + text) is True


@pytest.mark.parametrize(
    ("text", "answer", "motivation"),
    [
        ('{"motivation": "m", "answer": "Yes"}', True, "m"),
        ('```json\n{"motivation": "m", "answer": true}\n```', True, "m"),
        ('{"answer": "no"}', False, ""),
        ("[1]", False, "[1]"),
        ("yes", False, "yes"),
        ('{"answer": ', False, '{"answer": '),
    ],
)
def test_a_motivated_answer_is_a_json_object(text, answer, motivation):
    assert read_motivated(text) == (answer, motivation)


def test_the_rubric_reward_of_the_worked_example():
    rubrics = [
        Rubric("a", 60),
        Rubric("b", 40),
        Rubric("c", 10, is_penalty=True),
        Rubric("d", 0.2, is_penalty=True, penalty_type="multiplicative"),
    ]
    assert rubric_reward(rubrics, [True, False, True, True]) == pytest.approx(0.40)
    assert rubric_reward(rubrics[2:], [True, True]) == 0.0
    with pytest.raises(ValueError, match="negative"):
        Rubric("a", -1)
    with pytest.raises(ValueError, match="above 1"):
        Rubric("a", 2, is_penalty=True, penalty_type="multiplicative")


RUBRICS = st.lists(
    st.tuples(st.floats(0, 1), st.booleans(), st.sampled_from(["deduction", "multiplicative"]), st.booleans()),
    max_size=8,
)


@given(RUBRICS)
def test_a_reward_is_a_share_and_no_penalty_raises_it(drawn):
    rubrics = [Rubric("c", weight, penalty, kind) for weight, penalty, kind, _ in drawn]
    met = [yes for *_, yes in drawn]
    reward = rubric_reward(rubrics, met)
    assert 0.0 <= reward <= 1.0
    unpunished = [yes and not rubric.is_penalty for rubric, yes in zip(rubrics, met, strict=True)]
    assert reward <= rubric_reward(rubrics, unpunished)


def test_a_judge_whose_key_is_refused_ends_the_run_and_not_the_attempt() -> None:
    import asyncio

    from tbexp.config.schema import SandboxConfig
    from tbexp.errors import UserError
    from tbexp.grading import TestContext, open_grader

    class Refused:
        async def ask(self, system: str, user: str) -> str:
            raise UserError("the key is refused")

    async def grade() -> None:
        async with open_grader(SandboxConfig(name="prefork", kind="prefork")) as grader:
            code = "def t(x, judge):\n    assert judge.yesno('is it?')\n__tb_test_fn = t\n"
            with pytest.raises(UserError, match="refused"):
                await grader.grade(code, TestContext(), judge=Refused())

    asyncio.run(grade())
