"""What is tried before anything is queued: the model's chat template against `model.format`, and who can be reached.

Decided here: of which models it is asked. Those of the sample domain bring a template of tbexp's own; of a folder one
round trip is made (`interpret.round_trip`) wherever its tokenizer is: by a submission, a dry run and a training. Of an
endpoint only a connection is made, by a submission: a request would need its key, which belongs to the nodes. An
address of the loopback is refused there and told by a dry run: a node would ask itself.
"""

from __future__ import annotations

import importlib.util
import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from tbexp.config.checks import chat_endpoints, started_here
from tbexp.config.schema import Config
from tbexp.errors import Problem

log = logging.getLogger(__name__)

CONNECT_S = 5.0


def template_problems(config: Config) -> list[Problem]:
    """What is wrong between the base model's template and `model.format`; none if the folder is not on this machine.

    Loads the tokenizer, no weights. UserError: the folder has no tokenizer, or it has no template.
    """
    path = config.model.path
    if config.policy.kind != "local" or config.model.kind != "folder" or path is None or not Path(path).is_dir():
        return []
    if not {"probe", "train", "evaluate"} & set(config.stages):
        return []
    if importlib.util.find_spec("transformers") is None:
        log.warning("model.format was not tried on %s: transformers is not installed here", path)
        return []
    from tbexp.interpret.round_trip import round_trip

    return round_trip(path, format=config.model.format)


def unreachable(config: Config) -> list[Problem]:
    """The addresses at which nothing listens, as far as this machine can tell, and those that nodes cannot mean."""
    themselves = asked_of_themselves(config)
    known = {problem.where for problem in themselves}
    wanted = {key: url for key, url in addresses(config).items() if key not in known}
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda url: no_connection(url, CONNECT_S), wanted.values()))
    fix = "start it, or launcher.check_endpoints=false if only the nodes can reach it"
    return themselves + [
        Problem(f"nothing can be reached at {url}: {why}", key, fix)
        for (key, url), why in zip(wanted.items(), found, strict=True)
        if why
    ]


def asked_of_themselves(config: Config) -> list[Problem]:
    """Addresses that mean the machine that asks. Here that is this one, in a job of Slurm it would be the node."""
    if config.launcher.kind != "slurm" or not config.launcher.check_endpoints:
        return []
    from tbexp.policy.endpoint import is_loopback

    fix = "name this machine as the nodes reach it, or launcher.check_endpoints=false if each node has one of its own"
    return [
        Problem(f"a node that asks {url} asks itself", key, fix)
        for key, url in addresses(config).items()
        if is_loopback(host_of(url))
    ]


def addresses(config: Config) -> dict[str, str]:
    """What the stages ask that somebody else has started, by config key: endpoints, what attempts are made with, the
    tracking server. Not the search of a sandbox, which each node may have at the address that servers look for.
    """
    found: dict[str, str | None] = {}
    if {"probe", "train", "evaluate"} & set(config.stages):
        ours, sandbox = started_here(config), config.sandbox
        for name, endpoint in chat_endpoints(config):
            if name not in ours:
                found[f"{name}.endpoint.base_url"] = endpoint.base_url
        if sandbox.kind == "openenv":
            found["sandbox.environment.url"] = sandbox.environment.url
        elif sandbox.kind == "proxy":
            found["sandbox.proxy.url"] = sandbox.proxy.url
    if config.tracking.kind == "mlflow" and (config.tracking.uri or "").startswith("http"):
        found["tracking.uri"] = config.tracking.uri
    return {key: url for key, url in found.items() if url}


def host_of(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def no_connection(url: str, seconds: float) -> str:
    """Why no connection to a web address is made; "" if one is, or if a proxy of the environment makes it."""
    from urllib.request import getproxies, proxy_bypass

    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or {"https": 443}.get(parts.scheme, 80)
    except ValueError as error:
        return str(error)
    if parts.scheme in getproxies() and not proxy_bypass(host):
        return ""
    try:
        socket.create_connection((host, port), seconds).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""
