"""What the scripted user says: a function of what it knows and of what it was asked.

Decided here: a user context is plain text, in which each line `If asked about <topic>: <answer>` is something the
user can tell (`<topic>` may name several words: `rental or contract`). A question that contains a topic's word gets
its answer, several topics get theirs in the order of the context. All other lines are for readers and for a user
played by a model.
"""

from __future__ import annotations

import random
import re

UNKNOWN = "I don't know."
NOTHING_ASKED = "Thank you, that is all."

_KNOWS = re.compile(
    r"^[\s\-*]*if asked about (?P<topic>[^:\n]+):[ \t]*(?P<answer>\S.*?)\s*$", re.IGNORECASE | re.MULTILINE
)
_REQUEST = re.compile(
    r"\?|\b(?:please (?:tell|give|send|name|confirm|provide|say)|tell me|let me know|i need)\b"
    r"|\b(?:which|what|how many|how much)\b",
    re.IGNORECASE,
)
_WAYS = ("{}", "{}", "Sure. {}", "{} Thank you.")


def reply(user_context: str, agent_text: str, rng: random.Random) -> str:
    """The user's next message; the same for the same state of `rng`, which chooses among a few phrasings only."""
    if not _REQUEST.search(agent_text):
        return NOTHING_ASKED
    known = [(match["topic"], match["answer"]) for match in _KNOWS.finditer(user_context)]
    answers = [answer for topic, answer in known if _mentions(agent_text, topic)]
    if not answers:
        return UNKNOWN
    return rng.choice(_WAYS).format(" ".join(dict.fromkeys(answers)))


def _mentions(text: str, topic: str) -> bool:
    words = [word.strip() for word in re.split(r"\bor\b|,", topic) if word.strip()]
    return any(re.search(rf"\b{re.escape(word)}(?:s|es)?\b", text, re.IGNORECASE) for word in words)
