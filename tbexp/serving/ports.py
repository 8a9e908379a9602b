"""Ports of this machine."""

from __future__ import annotations

import socket


def free_port(address: str) -> int:
    """One at which nothing listens now, chosen by the kernel, so that two who ask at once are told different ones."""
    with socket.socket() as place:
        place.bind((address, 0))
        port: int = place.getsockname()[1]
        return port


def is_free(address: str, port: int) -> bool:
    """Whether nothing listens there; connections that are still closing do not count."""
    with socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            place.bind((address, port))
        except OSError:
            return False
    return True
