"""One attempt at a task: the loop of agent, tools and simulated user, its limits, and who is at fault when it fails.

Decided here: the order of turns, what counts as an action, when an attempt ends, and that only the world's failures
are system errors. Left to others: producing the agent's tokens (policy), tools (sandbox), the verdict (grading),
storing (attempts).
"""

from __future__ import annotations

from tbexp.episode.loop import Attempt, World, run_attempt
from tbexp.episode.people import ChatJudge, ChatUser, NoJudge, ScriptedJudge, ScriptedUser, User, open_judge, open_user

__all__ = [
    "Attempt",
    "ChatJudge",
    "ChatUser",
    "NoJudge",
    "ScriptedJudge",
    "ScriptedUser",
    "User",
    "World",
    "open_judge",
    "open_user",
    "run_attempt",
]
