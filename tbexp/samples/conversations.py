"""Conversations to imitate: generated tasks, solved right or with a seeded mistake, on the real desk.

Decided here: how the steps of a situation become messages. No demonstration has the content of a shipped task, held
out or candidate. Tool answers are the desk's, user answers the scripted user's, tools as the MCP server lists them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tbexp.interpret.messages import Message, Reading, ToolCall, ToolSpec
from tbexp.samples.desk import Desk
from tbexp.samples.shapes import SHAPES, situation, steps
from tbexp.samples.shipped import contents
from tbexp.samples.situation import Call, Situation, Steps
from tbexp.samples.speech import POLICY, SYSTEM
from tbexp.samples.tools import TOOLS


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A whole conversation. mistake: the name of what goes wrong in it, "" when it is right."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    shape: str
    mistake: str


def demonstrations(seed: int, mistakes: float) -> Iterator[Demonstration]:
    """Demonstrations without end, the same for the same seed; every shape equally often.

    mistakes: as in `shapes.steps`; 0.5 shows mistakes as often as the table says.
    """
    rng = random.Random(seed)
    names = list(SHAPES)
    desk = Desk({})
    while True:
        rng.shuffle(names)
        for shape in names:
            of = situation(shape, rng)
            if of.content() not in contents():
                shown, mistake = steps(of, rng, mistakes)
                yield Demonstration(conversation(of, shown, rng, desk), TOOLS, shape, mistake)


def conversation(of: Situation, shown: Steps, rng: random.Random, desk: Desk) -> tuple[Message, ...]:
    """The messages of an agent that takes these steps at this desk, which is loaded anew."""
    from tbexp.episode.scripted_user import reply  # its room imports far more than the lookup of a solution needs

    desk.load(of.rows)
    messages = [Message("system", SYSTEM), Message("system", POLICY), Message("user", of.query)]
    for number, reading in enumerate(readings(shown)):
        messages.append(reading.message())
        for call in reading.calls:
            answer = desk.call(call.name, call.arguments)
            messages.append(Message("tool", answer, name=call.name, call_id=call.id))
        if not reading.calls and number < len(shown) - 1:
            messages.append(Message("user", reply(of.user_context, reading.text, rng)))
    return tuple(messages)


def readings(shown: Steps) -> list[Reading]:
    """The steps as what a policy's outputs say, one step an output."""
    return [
        Reading(calls=(ToolCall(step.tool, step.arguments, f"call_{number}"),))
        if isinstance(step, Call)
        else Reading(text=step.text)
        for number, step in enumerate(shown)
    ]
