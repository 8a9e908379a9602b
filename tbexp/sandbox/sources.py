"""What a server is, as a hash: its entry in servers.yaml and the files that its command runs.

Decided here: which files count. Of a module in a package all files of the module's folder and below, of a single module
the file, of a script it and the modules beside it, of an installed console script the modules it starts, of any other
program nothing but its command. Interpreters and folders are places on one machine, so they do not count. Left to
others: which results a hash belongs to (pipeline).
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from tbexp.sandbox.launch import Unfit, preloadable
from tbexp.sandbox.servers import Server, allowed_environment

FIND_S = 30.0
FINDER = """
import importlib.util, json, sys
found = {}
for name in sys.argv[1:]:
    spec = importlib.util.find_spec(name)
    if spec is not None:
        found[name] = next(iter(spec.submodule_search_locations or [spec.origin]))
print(json.dumps(found))
"""


def servers_digest(servers: Mapping[str, Server], names: Iterable[str]) -> str:
    """Hash of the named servers, 16 hex digits; of a name that `servers` lacks only the name counts."""
    read: dict[Path, str] = {}  # servers of one package share its files
    found = [(name, server_digest(servers[name], read) if name in servers else None) for name in sorted(set(names))]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]


def server_digest(server: Server, read: dict[Path, str] | None = None) -> str:
    """Hash of one server's command, own environment and source files. read: hashes of files that are known already."""
    known = {} if read is None else read
    if server.remote is not None:
        return hashlib.sha256(server.remote.endpoint.encode()).hexdigest()
    try:
        command = preloadable(server)
    except Unfit:
        parts: list[object] = ["other", list(server.command)]
        files: list[tuple[str, Path]] = []
    else:
        target = command["target"] if command["kind"] == "module" else Path(command["target"]).name
        parts = [command["kind"], target, list(command["args"])]
        files = _files(server, command["kind"], command["target"], command["modules"], command["python"])
    hashed = hashlib.sha256(json.dumps([*parts, dict(server.env)], sort_keys=True).encode())
    for name, path in sorted(files):
        if path not in known:
            known[path] = hashlib.sha256(path.read_bytes()).hexdigest()
        hashed.update(f"{name}\0{known[path]}\0".encode())
    return hashed.hexdigest()


def _files(
    server: Server, kind: str, target: str, modules: Sequence[str], python: Sequence[str]
) -> list[tuple[str, Path]]:
    """Source files under names that do not depend on the place."""
    if kind == "script":
        script = Path(server.cwd or ".") / target
        return [(path.name, path) for path in script.parent.glob("*.py") if path.is_file()]
    found: list[tuple[str, Path]] = []
    tops = {module: module.partition(".")[0] for module in modules}
    origins = _origins(server, tuple(sorted(set(tops.values()))), tuple(python))
    for module, top in tops.items():
        if top not in origins:
            continue
        # Not by its own spec: to find that of `a.b`, Python would run `a`.
        place = origins[top].joinpath(*module.split(".")[1:-1])
        if place.is_file():
            found.append((module, place))
            continue
        found += [
            (f"{module}/{path.relative_to(place)}", path)
            for path in place.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
        ]
    return found


def _origins(server: Server, tops: tuple[str, ...], python: tuple[str, ...]) -> dict[str, Path]:
    """Folder of each package and file of each module, as the server's interpreter finds them, without running them."""
    env = tuple(sorted(allowed_environment((), server.env).items()))
    return {name: Path(server.cwd or ".") / path for name, path in _found(tops, python, server.cwd, env).items()}


@cache
def _found(
    tops: tuple[str, ...], python: tuple[str, ...], cwd: str | None, env: tuple[tuple[str, str], ...]
) -> dict[str, str]:
    try:
        done = subprocess.run(
            [*python, "-c", FINDER, *tops], cwd=cwd, env=dict(env), capture_output=True, timeout=FIND_S, check=True
        )
        found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return {}  # what is wrong with it is told when it is started
    return found
