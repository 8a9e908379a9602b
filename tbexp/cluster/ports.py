"""Ports of a job on a node: a range by job and restart, and the next one if that is taken."""

from __future__ import annotations

from tbexp.cluster.nodes import JobFailed, Nodes
from tbexp.serving.ports import is_free

FIRST_PORT, PORTS, SLOTS = 20000, 200, 60  # below the ephemeral ports of Linux, which begin at 32768
NAMED = (
    *("node-manager-port", "object-manager-port", "dashboard-agent-grpc-port", "dashboard-agent-listen-port"),
    *("metrics-export-port", "runtime-env-agent-port"),
)


def free_range(nodes: Nodes, address: str) -> int:
    """First port of a range of PORTS that is free on this node: another job's Ray may be here, or a dying one's."""
    for turn in range(SLOTS):
        first = FIRST_PORT + PORTS * ((3 * nodes.number + nodes.restarts + turn) % SLOTS)
        if all(is_free(address, first + offset) for offset in range(2 + len(NAMED))):
            return first
    raise JobFailed(f"{nodes.host} has no free ports between {FIRST_PORT} and {FIRST_PORT + PORTS * SLOTS}")
