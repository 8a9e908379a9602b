"""Who produces the agent's tokens: a chat endpoint, weights by token ids, or a script.

Decided here: what a policy is to an episode, and how endpoints are treated. Left to others: what the tokens mean
(interpret) and what is done with them (episode). The engine, which needs torch, is imported by whoever needs it.
"""

from __future__ import annotations

from tbexp.policy.chat import ChatEndpoint, ChatPolicy
from tbexp.policy.kinds import Completion, OutOfContext, Policy, PolicySession, Usage
from tbexp.policy.scripted import ScriptedPolicy
from tbexp.policy.tokens import Generated, TokenPolicy, TokenSession

__all__ = [
    "ChatEndpoint",
    "ChatPolicy",
    "Completion",
    "Generated",
    "OutOfContext",
    "Policy",
    "PolicySession",
    "ScriptedPolicy",
    "TokenPolicy",
    "TokenSession",
    "Usage",
]
