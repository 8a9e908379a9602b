"""Web addresses in a config: what one has to have before anything is asked there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from tbexp.errors import Problem

_HOST = re.compile(r"[\w.-]+|[0-9a-fA-F:.]+(%\w+)?")  # a name or an IPv4 address, or an IPv6 address


def address_problems(url: str, key: str, named: str | None = None) -> Iterator[Problem]:
    """What makes `url` no address of a server. named: the config's key that names a secret, for an address with a
    query, which may hold one and is not repeated; None: a query is all right.
    """
    shown = repr(re.sub(r"//.*@", "//...@", url))  # of user and password nothing is repeated
    if named is not None and "?" in url:
        yield Problem("has a query", key, f"leave it out; a key is named: {named}=NAME")
    elif not url.startswith(("http://", "https://")):
        yield Problem(f"{shown} is no web address", key, "begin with http:// or https://")
    elif fault := host_fault(url):
        yield Problem(f"{shown} {fault}", key, "http://HOST:PORT/...: a host, and a port from 1 to 65535 or none")


def host_fault(url: str) -> str:
    """What is wrong with an address's host and port; empty: nothing."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:  # such as a bracket that is not closed
        return "names no host"
    if not host or not _HOST.fullmatch(host):
        return "names no host"
    try:
        port = parts.port
    except ValueError:
        return "has no valid port"
    return "has no valid port" if port == 0 else ""
