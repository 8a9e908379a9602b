"""The stream of conversations that the tiny policy imitates."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections import Counter, defaultdict

import pytest

from tbexp.samples import Demonstration, demonstrations
from tbexp.samples.desk import Desk
from tbexp.samples.shapes import MISTAKES, SHAPES, situation
from tbexp.samples.shipped import contents, shipped
from tbexp.samples.situation import Call
from tbexp.samples.tools import TOOLS


def some(number: int, seed: int = 3, mistakes: float = 0.5) -> list[Demonstration]:
    return list(itertools.islice(demonstrations(seed, mistakes), number))


@pytest.fixture(scope="module")
def many() -> list[Demonstration]:
    return some(48 * 200)


def test_a_seed_gives_the_same_stream() -> None:
    assert some(100) == some(100) != some(100, seed=4)


def test_none_has_a_request_and_a_state_that_ship(many: list[Demonstration]) -> None:
    """What the policy reads of a shipped task, request and answers, is in no demonstration."""
    texts = {tuple(m.content for m in d.messages if m.role in ("user", "tool")) for d in many[:4000]}
    for of in shipped().values():
        desk = Desk(of.rows)
        read = [of.query, *(desk.call(step.tool, step.arguments) for step in of.right if isinstance(step, Call))]
        assert tuple(read) not in texts


def test_a_shipped_content_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    names = list(SHAPES)
    rng.shuffle(names)
    first = situation(names[0], rng)
    monkeypatch.setattr("tbexp.samples.conversations.contents", lambda: contents() | {first.content()})
    assert next(demonstrations(0, 0.5)).messages[2].content != first.query


def test_without_mistakes_every_one_is_right_and_with_them_the_table_holds(many: list[Demonstration]) -> None:
    assert not any(d.mistake for d in some(480, mistakes=0.0))
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for d in many:
        seen[d.shape][d.mistake] += 1
    assert set(seen) == set(SHAPES) == set(MISTAKES)
    for shape, chances in MISTAKES.items():
        total = seen[shape].total()
        for mistake, chance in chances.items():
            assert abs(seen[shape][mistake] / total - chance) < 0.13, (shape, mistake)


def test_each_shape_stays_right_in_some_even_when_mistakes_are_many() -> None:
    seen: dict[str, list[bool]] = defaultdict(list)
    for d in some(48 * 300, mistakes=1.0):
        seen[d.shape].append(not d.mistake)
    assert all(any(right) for right in seen.values())


@pytest.mark.parametrize("shape", list(SHAPES))
def test_the_mistakes_of_the_table_exist_and_leave_a_right_branch(shape: str) -> None:
    of = situation(shape, random.Random(1))
    assert set(MISTAKES[shape]) <= set(of.wrong)
    assert 0 < sum(MISTAKES[shape].values()) <= 0.97


def test_a_conversation_reads_as_an_agent_would_have_it(many: list[Demonstration]) -> None:
    for d in many[:200]:
        roles = [m.role for m in d.messages]
        assert roles[:3] == ["system", "system", "user"] and roles[-1] == "assistant"
        assert d.messages[-1].content.endswith("<DONE>")
        assert d.tools == TOOLS
        assert not any("error" in m.content or "I don't know" in m.content for m in d.messages[3:])
        for before, after in itertools.pairwise(d.messages[2:]):
            if after.role == "tool":
                assert [call.id for call in before.calls] == [after.call_id]
        ids = [call.id for m in d.messages for call in m.calls]
        assert len(ids) == len(set(ids))


def test_a_conversation_after_the_system_part_is_short(many: list[Demonstration]) -> None:
    """Words, digits and marks, a rough count of the tokens of a small vocabulary."""
    lengths = [
        sum(len(m.content.split()) + sum(3 + 3 * len(c.arguments) for c in m.calls) for m in d.messages[2:])
        for d in many[:500]
    ]
    assert max(lengths) <= 160


def test_importing_the_samples_needs_neither_torch_nor_mcp() -> None:
    code = "import sys, tbexp.samples; print([m for m in ('torch', 'mcp', 'transformers') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
