"""Who produces the agent's outputs: local weights by tokens, a chat endpoint, or a script.

Decided here: sampling, what is kept between turns, and how endpoints are called. Left to others: what an output means
(interpret), and what it does (episode). Importing this room imports no torch: that is `tbexp.policy.engine`'s.
"""

from tbexp.policy.chat import ChatPolicy
from tbexp.policy.completions import TokenEndpoint
from tbexp.policy.endpoint import ChatEndpoint, cost_usd, metered
from tbexp.policy.own_time import OwnTime
from tbexp.policy.policy import Completion, OutOfContext, Policy, PolicySession, Usage
from tbexp.policy.scripted import ScriptedPolicy
from tbexp.policy.tokens import Generated, TokenPolicy, TokenSession

__all__ = [
    "ChatEndpoint",
    "ChatPolicy",
    "Completion",
    "Generated",
    "OutOfContext",
    "OwnTime",
    "Policy",
    "PolicySession",
    "ScriptedPolicy",
    "TokenEndpoint",
    "TokenPolicy",
    "TokenSession",
    "Usage",
    "cost_usd",
    "metered",
]
