"""Leads a server's connections to one address to another one: the folder of this file stands first in its PYTHONPATH.

Servers have the address of their search, 127.0.0.1:8108, in their code. Two runs on one machine could not both have it,
and a real Typesense could not be on another host. TBEXP_SEARCH_ADDRESS holds `FROM=TO`, both `host:port`, IPv4.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import socket
import sys
from typing import Any


def lead(entry: str) -> None:
    """Let every later connect of this process to the first address of `entry` go to the second one."""
    addresses = []
    for part in entry.split("="):
        host, _, port = part.rpartition(":")
        addresses.append((host, int(port)))
    wanted, actual = addresses
    plain: Any = {name: getattr(socket.socket, name) for name in ("connect", "connect_ex")}

    def led(sock: socket.socket, address: Any) -> Any:
        here = sock.family == socket.AF_INET and isinstance(address, tuple) and tuple(address[:2]) == wanted
        return actual if here else address

    def connect(self: socket.socket, address: Any) -> Any:
        return plain["connect"](self, led(self, address))

    def connect_ex(self: socket.socket, address: Any) -> Any:
        return plain["connect_ex"](self, led(self, address))

    for method in (connect, connect_ex):
        setattr(socket.socket, method.__name__, method)


def next_of_its_kind() -> None:
    """Run the sitecustomize that this one stands before, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - at every interpreter start
    paths = [path for path in sys.path if os.path.abspath(path) != here]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    if entry := os.environ.get("TBEXP_SEARCH_ADDRESS"):
        lead(entry)
    next_of_its_kind()
