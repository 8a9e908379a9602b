"""The people an attempt meets besides the agent: the simulated user, and the judge that a test may ask.

Decided here: what the user is told, and how its answer is cleaned. What a scripted user says stands in
`scripted_user.py`; how an endpoint is called in `policy`; what a judge's answer means in `grading`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from tbexp.config.schema import JudgeConfig, ModelPrice, Prices, UserConfig
from tbexp.errors import WorldError
from tbexp.grading import Judge
from tbexp.interpret.messages import Message
from tbexp.policy import ChatEndpoint

DONE = "<DONE>"
NOTHING_TO_SAY = "I don't know."

USER_SYSTEM = """You play the customer in a conversation with a service agent. You are given what you know and what
was said.
Answer only from what you know and from the conversation; never invent facts, and never tell more than you are asked.
Copy names, numbers and identifiers exactly as they are written. Ask nothing unless you cannot answer without it.
If you do not know the answer, say: I don't know.
If nothing is asked of you, say: Thank you, that is all.
Reply with the customer's next message alone."""

USER_MAY_END = "\nWhen the matter is settled, or cannot go on, end your message with <DONE>."


class User(Protocol):
    """may_end: whether it may end the conversation by a text that ends with `<DONE>`."""

    may_end: bool

    async def reply(self, user_context: str, visible: Sequence[Message], *, seed: int) -> str: ...


class ScriptedUser:
    """Answers from the user context alone, the same for the same seed; costs nothing."""

    may_end = False

    async def reply(self, user_context: str, visible: Sequence[Message], *, seed: int) -> str:
        from tbexp.episode.scripted_user import reply

        asked = visible[-1].content if visible and visible[-1].role == "assistant" else ""
        return reply(user_context, asked, random.Random(seed))


class ChatUser:
    """A model behind an OpenAI-compatible endpoint plays the user."""

    def __init__(self, config: UserConfig, price: ModelPrice | None = None):
        self.may_end = config.may_end
        self._config = config
        self.endpoint = ChatEndpoint(
            config.endpoint, role="user", spending_cap_usd=config.spending_cap_usd, price=price
        )
        self._system = USER_SYSTEM + (USER_MAY_END if config.may_end else "")

    async def reply(self, user_context: str, visible: Sequence[Message], *, seed: int) -> str:
        asked = visible[-1].content if visible and visible[-1].role == "assistant" else "(none)"
        history = "\n\n".join(
            f"{'Agent' if m.role == 'assistant' else 'Customer'}: {_escape(m.content)}" for m in visible
        )
        parts = [
            f"# What you know\n{_escape(user_context)}",
            f"# Conversation so far\n{history}",
            f"# The agent's last message\n{_escape(asked)}",
            "# Task\nWrite the customer's next message.",
        ]
        answer = await self.endpoint.text(
            [{"role": "system", "content": self._system}, {"role": "user", "content": "\n\n".join(parts)}],
            temperature=self._config.temperature,
            max_tokens=self._config.max_tokens,
            seed=seed,
        )
        return clean_reply(answer)

    async def close(self) -> None:
        await self.endpoint.close()


class ChatJudge:
    """A model behind an OpenAI-compatible endpoint answers a test's questions."""

    def __init__(self, config: JudgeConfig, price: ModelPrice | None = None):
        self.style, self.reading = config.style, config.reading
        self._config = config
        self.endpoint = ChatEndpoint(
            config.endpoint, role="judge", spending_cap_usd=config.spending_cap_usd, price=price
        )

    async def ask(self, system: str, user: str) -> str:
        return await self.endpoint.text(
            [{"role": "system", "content": system}, {"role": "user", "content": user}],
            temperature=0.0,
            max_tokens=self._config.max_tokens,
            seed=0,
        )

    async def close(self) -> None:
        await self.endpoint.close()


class ScriptedJudge:
    """Answers by a table, part of a question -> yes or no; a question that it does not have is a system error."""

    style = "legacy"

    def __init__(self, answers: Mapping[str, bool]):
        self._answers = dict(answers)

    async def ask(self, system: str, user: str) -> str:
        for part, yes in self._answers.items():
            if part in user:
                return "Yes" if yes else "No"
        raise WorldError("no_judge", "judge.answers has no entry for the question that the test asks")


class NoJudge:
    """A test that asks a judge where none is configured is a system error, never a failed attempt."""

    style = "legacy"

    async def ask(self, system: str, user: str) -> str:
        raise WorldError("no_judge", "the test asks a judge, but judge.kind is none")


def open_user(config: UserConfig, prices: Prices) -> User | None:
    """The user that the config names; None: nobody answers. prices: what a spending cap is counted by."""
    if config.kind == "none":
        return None
    return ScriptedUser() if config.kind == "scripted" else ChatUser(config, _price(config, prices))


def open_judge(config: JudgeConfig, prices: Prices) -> Judge:
    """The judge that the config names."""
    if config.kind == "chat":
        return ChatJudge(config, _price(config, prices))
    return ScriptedJudge(config.answers) if config.kind == "scripted" else NoJudge()


def _price(config: UserConfig | JudgeConfig, prices: Prices) -> ModelPrice | None:
    return prices.models.get(config.endpoint.model or "")


def clean_reply(text: str) -> str:
    """The user's message without one leading role label and one pair of quotes; an empty one is `I don't know.`"""
    text = re.sub(r"^\s*(?:user|customer)\s*:\s*", "", text.strip(), count=1, flags=re.IGNORECASE).strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1].strip()
    return text or NOTHING_TO_SAY


# What opens a part of the prompt, or a message in the conversation, at the start of a line.
_BREAK = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_OPENS = re.compile(rf"(^|[{_BREAK}])([^\S{_BREAK}]*)(?=#|(?:agent|customer)\s*:)", re.IGNORECASE)


def _escape(text: str) -> str:
    """Text of others cannot end the conversation, open a part of the prompt, or speak for another."""
    return _OPENS.sub(r"\1\2\\", text.replace(DONE, "<done>"))
