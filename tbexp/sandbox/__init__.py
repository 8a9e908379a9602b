"""One isolated backend per attempt: MCP servers as processes, their tools, and the effects they report.

Decided here: how servers are started, shared and ended, which tools a session shows, and which of a server's faults is
the world's. Left to others: what the agent is told about unknown tools and bad arguments (episode), and what effects
mean (grading).
"""

from __future__ import annotations

from tbexp.sandbox.pool import Sandbox, open_sandbox
from tbexp.sandbox.servers import Server, WrongServers, read_servers, servers_file, servers_of
from tbexp.sandbox.session import Session
from tbexp.sandbox.sources import servers_digest

__all__ = [
    "Sandbox",
    "Server",
    "Session",
    "WrongServers",
    "open_sandbox",
    "read_servers",
    "servers_digest",
    "servers_file",
    "servers_of",
]
