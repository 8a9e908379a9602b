"""Reads servers.yaml: which MCP servers there are and how each is started.

All problems of the file are reported at once, each with its line. Braces are part of the format: `{python}` is the
configured interpreter, `{env[NAME]}` a variable of this process that the configuration allows; `{{`, `}}` are braces.
In the values of `env` only `{env[NAME]}` means anything.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tbexp.config.addresses import address_problems
from tbexp.config.schema import SandboxConfig
from tbexp.config.secrets import USER_AND_PASSWORD
from tbexp.errors import Problem, UserError
from tbexp.tasks import blocks

PROCESS_KEYS = ("type", "command", "env", "cwd", "transport")
REMOTE_KEYS = ("type", "endpoint", "headers", "timeout", "transport", "credential")
BRACES = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|[{}]")

# What a server gets of this process's environment; everything else, keys above all, must be allowed by name.
BASE_ENV = ("PATH", "HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH")

# fastmcp looks for a newer version of itself on the network at every start, and prints a banner. Each failed tool call
# is drawn by rich with its traceback: 60 ms of CPU, for a log that no one sees in colour.
QUIET_ENV = {
    "FASTMCP_CHECK_FOR_UPDATES": "off",
    "FASTMCP_SHOW_SERVER_BANNER": "false",
    "FASTMCP_ENABLE_RICH_LOGGING": "false",
    "FASTMCP_ENABLE_RICH_TRACEBACKS": "false",
}


HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

# Names of headers whose values are secrets, or may be.
SECRET = re.compile(r"auth|cookie|key|token|secret|credential|password", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a server is that is not started here. `timeout_s`: of one request, besides sandbox.call_timeout_s."""

    endpoint: str
    transport: str = "streamable-http"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Server:
    """How one MCP server is started: `command` in folder `cwd`, with `env` added to the allowed environment.

    remote: where it is, if it is not started here.
    """

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    remote: Remote | None = None


class WrongServers(UserError):
    """What is wrong with servers.yaml. names: the servers that it has, right or wrong."""

    def __init__(self, problems: Iterable[Problem] | Problem | str, names: Iterable[str] = ()):
        super().__init__(problems)
        self.names = tuple(names)


def read_servers(
    file: Path | str, *, python: str, allow_env: Sequence[str] = (), remote_env: Sequence[str] = ()
) -> dict[str, Server]:
    """The servers of `file` by name. A relative `cwd` starts at the file's own folder, which is also the default
    (see `hides_installed` for when it is the folder above).

    allow_env: names that `{env[NAME]}` may have in a command. remote_env: in a remote server's headers. Raises
    UserError with every problem found.
    """
    file = Path(file)
    try:
        root = yaml.compose(file.read_text(encoding="utf-8-sig"), Loader=yaml.SafeLoader)
    except OSError as error:
        fix = "write it, or name another with sandbox.servers=FILE"
        raise UserError(Problem(f"cannot be read: {error.strerror}", str(file), fix)) from error
    except UnicodeDecodeError as error:
        raise UserError(Problem(f"cannot be read: {error}", str(file), "save it as UTF-8 text")) from error
    except RecursionError as error:
        raise UserError(Problem("is nested too deeply", str(file))) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        raise UserError(Problem(f"is no YAML: {getattr(error, 'problem', error)}", f"{file}:{line}")) from error
    reader = _Reader(file, python, frozenset(allow_env), frozenset(remote_env))
    servers = reader.servers(root)
    if reader.problems:
        raise WrongServers(reader.problems, servers)
    return servers


def servers_file(config: SandboxConfig, root: Path) -> Path:
    """servers.yaml of a dataset; where that is a file of rows, in the folder that holds it."""
    folder = root.parent if root.suffix == ".jsonl" else root
    return Path(config.servers) if config.servers else folder / "servers" / "servers.yaml"


def servers_of(config: SandboxConfig, root: Path, python: str | None) -> dict[str, Server]:
    """The servers of the dataset in `root`, or of sandbox.servers; none with a session proxy or an environment
    server, which has its own.

    python: what `{python}` means; None: this interpreter. Raises UserError.
    """
    if config.kind in ("proxy", "openenv"):
        return {}
    return read_servers(
        servers_file(config, root),
        python=python or sys.executable,
        allow_env=config.allow_env,
        remote_env=config.remote_env,
    )


def allowed_environment(allow_env: Sequence[str], own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server: the base names and the allowed ones that are set, then the server's own."""
    names = (*BASE_ENV, *allow_env)
    taken = {name: os.environ[name] for name in names if name in os.environ}
    if "PYTHONPATH" in taken:  # the server runs in a folder of its own
        taken["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, taken["PYTHONPATH"].split(os.pathsep)))
    return QUIET_ENV | taken | dict(own)


def hides_installed(folder: Path, command: Sequence[str]) -> bool:
    """Whether `python -m PACKAGE.MODULE`, run in `folder`, would find a folder that only holds the package's project.

    Python looks in its working directory first, and takes any folder for a package: the one of the public benchmark's
    servers, installed with `pip install -e`, would then hide the package itself.
    """
    if "-m" not in command[1:-1]:
        return False
    package = command[command.index("-m") + 1].partition(".")[0]
    return (folder / package / package / "__init__.py").is_file() and not (folder / package / "__init__.py").exists()


def _is(asked: Callable[[], bool]) -> bool:
    """What a path answers; no, where the system does not even take its name."""
    try:
        return asked()
    except OSError:
        return False


def _encodes(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


class _Reader:
    def __init__(self, file: Path, python: str, allowed: frozenset[str], in_headers: frozenset[str]):
        self.file = file
        self.python = python
        self.allowed = {"sandbox.allow_env": allowed, "sandbox.remote_env": in_headers}
        self.problems: list[Problem] = []

    def wrong(self, node: yaml.Node, what: str, fix: str = "") -> None:
        self.problems.append(Problem(what, f"{self.file}:{node.start_mark.line + 1}", fix))

    def pairs(self, node: yaml.Node, what: str) -> list[tuple[str, yaml.Node, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            self.wrong(node, f"{what} must be a mapping")
            return []
        seen = set()
        for key, _ in node.value:
            if str(key.value) in seen and key.tag != blocks.MERGE:
                self.wrong(key, f"{what} has `{key.value}` twice")
            seen.add(str(key.value))
        try:
            found = [(self.text(key, f"a key of {what}"), key, value) for key, value in blocks.pairs(node)]
        except ValueError as problem:
            self.wrong(node, f"{what} {problem}")
            return []
        return list({name: (name, key, value) for name, key, value in found}.values())

    def unknown(self, key: yaml.Node, name: str, known: Sequence[str]) -> None:
        near = difflib.get_close_matches(name, known, 1)
        self.wrong(key, f"unknown key `{name}`", f"did you mean `{near[0]}`?" if near else f"known: {', '.join(known)}")

    def servers(self, root: yaml.Node | None) -> dict[str, Server]:
        found: dict[str, Server] = {}
        if root is None:
            self.problems.append(Problem("is empty", str(self.file), "name at least one server under `servers:`"))
            return found
        for name, key, value in self.pairs(root, "the file"):
            if name == "servers":
                for server, _, entry in self.pairs(value, "`servers`"):
                    found[server] = self.server(server, entry)
            elif name != "use_internal_servers":
                self.unknown(key, name, ("servers", "use_internal_servers"))
        return found

    def server(self, name: str, node: yaml.Node) -> Server:
        pairs = self.pairs(node, f"server `{name}`")
        values = {key: value for key, _, value in pairs}
        kind = self.text(values["type"], "type") if "type" in values else ""
        if kind not in ("mcp-process", "mcp-remote"):
            where = values.get("type", node)
            self.wrong(where, f"server `{name}` has type `{kind}`", "use mcp-process or mcp-remote")
            return Server(name)
        keys = PROCESS_KEYS if kind == "mcp-process" else REMOTE_KEYS
        for key_name, key, _ in pairs:
            if key_name not in keys:
                self.unknown(key, key_name, keys)
        if kind == "mcp-remote":
            if "endpoint" not in values:
                self.wrong(node, f"server `{name}` has no `endpoint`")
                return Server(name)
            return Server(name, remote=self.remote(name, values))
        return self.process(name, node, values)

    def remote(self, name: str, values: Mapping[str, yaml.Node]) -> Remote:
        endpoint = self.text(values["endpoint"], "endpoint")
        for problem in address_problems(endpoint, "endpoint"):
            self.wrong(values["endpoint"], problem.what, problem.fix)
        if USER_AND_PASSWORD.search(endpoint):
            self.wrong(values["endpoint"], "`endpoint` holds a password", "use headers, with {env[NAME]}")
        transport = self.text(values["transport"], "transport") if "transport" in values else "streamable-http"
        if transport not in ("streamable-http", "sse"):
            self.wrong(values["transport"], f"an mcp-remote does not speak `{transport}`", "streamable-http or sse")
        if "credential" in values:
            fix = "use a header whose value is {env[NAME]}"
            self.wrong(values["credential"], "`credential` is not supported", fix)
        headers = {}
        for key, _, value in self.pairs(values["headers"], "`headers`") if "headers" in values else ():
            text = self.text(value, f"headers.{key}")
            headers[key] = self.formatted(value, text, "sandbox.remote_env")
            if not HEADER.fullmatch(key):
                self.wrong(value, f"{key!r} cannot be the name of a header")
            if not (headers[key].isascii() and headers[key].isprintable()):
                self.wrong(value, f"header `{key}` holds a character that no header can have")
            if SECRET.search(key) and "{env[" not in text:
                self.wrong(value, f"header `{key}` holds what looks like a secret", "name it: {env[NAME]}")
        timeout = 60.0
        if "timeout" in values:
            try:
                timeout = float(self.text(values["timeout"], "timeout"))
            except ValueError:
                timeout = 0.0
            if not 0 < timeout < float("inf"):
                self.wrong(values["timeout"], "`timeout` must be a number of seconds above 0")
        return Remote(endpoint, transport, headers, timeout)

    def process(self, name: str, node: yaml.Node, values: Mapping[str, yaml.Node]) -> Server:
        if "transport" in values and values["transport"].value != "stdio":
            self.wrong(values["transport"], "an mcp-process speaks `stdio` only")
        command: list[str] = []
        given = values.get("command")
        if not isinstance(given, yaml.SequenceNode) or not given.value:
            self.wrong(given or node, f"server `{name}` needs `command`, a list that is not empty")
        else:
            if given.value[0].value == "":
                self.wrong(given, f"the first part of server `{name}`'s `command` is empty")
            command = [self.formatted(part, self.text(part, "a part of `command`")) for part in given.value]
        env = {}
        for key, at, value in self.pairs(values["env"], "`env`") if "env" in values else ():
            if not key or "=" in key or "\0" in key:
                self.wrong(at, f"{key!r} cannot be the name of an environment variable")
            env[key] = self.with_variables(value, self.text(value, f"env.{key}"))
        cwd = self.file.parent.resolve()
        if "cwd" not in values and hides_installed(cwd, command):
            cwd = cwd.parent
        if "cwd" in values:
            cwd = cwd / self.text(values["cwd"], "cwd")
            if not _is(cwd.is_dir):
                self.wrong(values["cwd"], f"folder {cwd} does not exist")
        script = command[1] if len(command) > 1 and command[0] == self.python else ""
        if script.endswith(".py") and _is(cwd.is_dir) and not _is((cwd / script).is_file):
            self.wrong(given or node, f"there is no file {cwd / script}")
        return Server(name, tuple(command), env, str(cwd))

    def text(self, node: yaml.Node, what: str) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self.wrong(node, f"{what} must be a text")
            return ""
        text = str(node.value)
        if "\0" in text or (not text.isascii() and not _encodes(text)):
            self.wrong(node, f"{what} holds a character that no command and no variable can have")
            return ""
        return text

    def formatted(self, node: yaml.Node, text: str, key: str = "sandbox.allow_env") -> str:
        def value(match: re.Match[str]) -> str:
            whole, name = match.group(0), match.group("name")
            if whole in ("{{", "}}"):
                return whole[0]
            if name == "python":
                return self.python
            variable = re.fullmatch(r"env\[(.+)\]", name or "")
            if variable is None:
                self.wrong(node, f"`{text}`: `{whole}` means nothing here", "write {{ and }} for braces")
                return ""
            return self.variable(node, variable.group(1), key)

        return BRACES.sub(value, text)

    def with_variables(self, node: yaml.Node, text: str) -> str:
        """`{env[NAME]}` filled in and every other brace as it stands: a value of `env` may well be JSON."""
        return re.sub(r"\{env\[([^\]{}]+)\]\}", lambda match: self.variable(node, match[1], "sandbox.allow_env"), text)

    def variable(self, node: yaml.Node, name: str, key: str) -> str:
        if name not in self.allowed[key]:
            self.wrong(node, f"environment variable {name} is not allowed", f"add {name} to {key}")
            return ""
        if name not in os.environ:
            self.wrong(node, f"environment variable {name} is not set")
            return ""
        return os.environ[name]
