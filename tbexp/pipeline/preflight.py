"""What is tried before anything is queued: the model's chat template against `model.format`, and who can be reached.

Decided here: of which models it is asked. Those of the sample domain bring a template of tbexp's own; of a folder one
round trip is made (`interpret.round_trip`) wherever its tokenizer is: by a submission, a dry run and a training. Of an
endpoint only a connection is made, by a submission: a request would need its key, which belongs to the nodes.
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
    """The endpoints and the tracking server of the stages at which nothing listens, as far as this machine can tell."""
    wanted: dict[str, str] = {}
    if {"probe", "train", "evaluate"} & set(config.stages):
        ours = started_here(config)
        for name, endpoint in chat_endpoints(config):
            if name not in ours and endpoint.base_url is not None:
                wanted[f"{name}.endpoint.base_url"] = endpoint.base_url
    if (config.tracking.uri or "").startswith("http"):
        wanted["tracking.uri"] = str(config.tracking.uri)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda url: no_connection(url, CONNECT_S), wanted.values()))
    fix = "start it, or launcher.check_endpoints=false if only the nodes can reach it"
    return [
        Problem(f"nothing can be reached at {url}: {why}", key, fix)
        for (key, url), why in zip(wanted.items(), found, strict=True)
        if why
    ]


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
