"""Starts server processes for the sandbox: a standalone script that needs nothing but the standard library.

It runs in the interpreter of the server, which may know nothing of tbexp. Its argument is the number of a SOCK_SEQPACKET
socket; over it come JSON messages, with open files attached, and go answers and the exits of its children. It works at
one of three levels, and says so when a level does not fit; what to do then is decided by its caller.

- `exec`: nothing is shared. Every session forks and executes the command.
- `import`: the server's module is imported once; a forked child runs what stands under `if __name__ == "__main__"`.
- `ready`: the server runs here up to the point where it has answered the MCP handshake and waits for the first request;
  each session is a fork of that moment. It needs a server on the mcp SDK, whose stdio transport is replaced by one without
  threads. (A server with 15 tools: 33 ms of CPU for open, init, close when forked after the import, 6 ms when forked ready.)

A fork must not share what a process of its own would not: a server that starts a thread, leaves a file or socket open,
writes a file, seeds or draws random numbers, or takes the time, before it is asked anything, is reported as unfit.
"""

from __future__ import annotations

import _socket
import ast
import asyncio
import contextlib
import datetime
import gc
import importlib
import importlib.abc
import importlib.util
import json
import os
import random
import runpy
import selectors
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn


def _load_nursery() -> Any:
    spec = importlib.util.spec_from_file_location(
        "tbexp_nursery", os.path.join(os.path.dirname(__file__), "nursery.py")
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from tbexp.sandbox import nursery
    from tbexp.sandbox.nursery import Control
else:
    nursery = _load_nursery()


class Unfit(Exception):
    """The server cannot be forked at this level; the text says why."""


def exit_status(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)  # noqa: T201 - what the interpreter does for sys.exit("text")
    return 1


# --- what must not have happened before a fork ---------------------------------------------------------------------------

CLOCKS: tuple[Any, ...] = (time.time, time.time_ns, time.localtime, time.gmtime, time.strftime, time.ctime)
DRAWS: tuple[Any, ...] = (os.urandom, os.getpid)
WATCHED = {*CLOCKS, *DRAWS}
NOW = {"now", "utcnow", "today"}
GENERATOR: Any = random.random.__self__  # type: ignore[attr-defined]
WRAPPERS = {"uuid.py", "secrets.py", "random.py", "tempfile.py", "_pydatetime.py", "os.py"}
TOUCHING = {"os.mkdir", "os.rename", "os.remove", "os.symlink", "os.link", "subprocess.Popen", "os.posix_spawn", "os.fork",
            "os.exec", "os.system", "socket.connect", "socket.bind", "tempfile.mkstemp", "tempfile.mkdtemp"}  # fmt: skip


class Watch:
    """Notes what a server does before it is asked anything that forks of it would wrongly share."""

    def __init__(self, home: str):
        """home: the folder (or file) of the server's own code; only its own draws of time and chance count."""
        self.home = home
        self.on = True
        self.reasons: list[str] = []
        self.threads = set(threading.enumerate())
        self.files = open_files()
        self.clock = (time.time, datetime.datetime, datetime.date)
        sys.addaudithook(self._audit)  # audit hooks stay for good, hence `on`
        sys.setprofile(self._profile)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in TOUCHING and not (event == "os.mkdir" and "__pycache__" in str(args[0])):
            if (
                event in ("os.rename", "os.remove")
                and str(args[0]).endswith((".pyc", ".pyc."))
                or ".pyc." in str(args[:1])
            ):
                return
            self.reasons.append(f"it calls {event} before it is asked anything")
        elif event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            if isinstance(args[0], str | bytes | os.PathLike) and ".pyc" not in str(args[0]) and args[0] != os.devnull:
                self.reasons.append(f"it writes {args[0]} before it is asked anything")

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event != "c_call":
            return
        owner = getattr(arg, "__self__", None)
        if owner is GENERATOR:
            if arg.__name__ in ("seed", "setstate"):
                self.reasons.append("it fixes the state of `random`")
                return
        elif not (arg.__name__ in NOW and isinstance(owner, type) and issubclass(owner, datetime.date)):
            try:
                if arg not in WATCHED:
                    return
            except TypeError:
                return
        caller: FrameType | None = frame
        while caller is not None and os.path.basename(caller.f_code.co_filename) in WRAPPERS:
            caller = caller.f_back
        if caller is not None and os.path.abspath(caller.f_code.co_filename).startswith(self.home):
            place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
            self.reasons.append(f"{place} takes {getattr(arg, '__qualname__', arg)}, which all sessions would share")

    def _own_sources(self) -> Iterator[bytes]:
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if path and path.endswith(".py") and os.path.abspath(path).startswith(self.home):
                with open(path, "rb") as file:
                    yield file.read()

    def stop(self, own_files: set[int]) -> None:
        """Raise Unfit with all that was seen. own_files: those that this script opened meanwhile."""
        sys.setprofile(None)
        self.on = False
        reasons = list(dict.fromkeys(self.reasons))
        threads = [thread.name for thread in threading.enumerate() if thread not in self.threads]
        if threads:
            reasons.append(f"it starts threads: {', '.join(threads)}")
        files = [
            f"{fd} ({target})" for fd, target in open_files().items() if fd not in self.files and fd not in own_files
        ]
        if files:
            reasons.append(f"it holds open files or sockets: {', '.join(files)}")
        if "numpy.random" in sys.modules and any(b"random.seed(" in text for text in self._own_sources()):
            reasons.append("it may fix the state of numpy's random numbers")
        if (time.time, datetime.datetime, datetime.date) != self.clock:
            reasons.append("it replaces the clock")
        if reasons:
            raise Unfit("; ".join(reasons[:5]))


def open_files() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return {fd: target for fd, target in found.items() if "/proc/" not in target}


# --- the mcp SDK without threads -----------------------------------------------------------------------------------------


class Writer:
    """Stands for the SDK's stream of outgoing messages: one line, one write."""

    def __init__(self, put: Callable[[bytes], None]):
        self.put = put

    async def send(self, message: Any) -> None:
        self.put(message.message.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n")

    def clone(self) -> Writer:
        return self

    def close(self) -> None:
        pass

    async def aclose(self) -> None:
        pass

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    async def __aenter__(self) -> Writer:
        return self

    async def __aexit__(self, *exception: object) -> None:
        pass


def write_all(line: bytes) -> None:
    view = memoryview(line)
    while view:
        view = view[os.write(1, view) :]


class Lines:
    """Reads requests from standard input without a thread and hands them to the SDK."""

    def __init__(self, send: Any, parse: Callable[[bytes], Any]):
        self.send = send
        self.parse = parse
        self.rest = bytearray()
        self.loop = asyncio.get_running_loop()

    def listen(self) -> None:
        self.loop.add_reader(0, self._readable)

    def _readable(self) -> None:
        data = os.read(0, 1 << 18)
        if not data:
            self.loop.remove_reader(0)
            self.send.close()
            return
        self.rest += data
        if b"\n" in data:
            *lines, rest = self.rest.split(b"\n")
            self.rest = rest
            for line in lines:
                self.feed(bytes(line))

    def feed(self, line: bytes) -> None:
        if line.strip():
            try:
                self.send.send_nowait(self.parse(line))
            except Exception as error:
                self.send.send_nowait(error)


HANDSHAKE = (
    {"jsonrpc": "2.0", "id": "handshake", "method": "initialize",
     "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "tbexp", "version": "1"}}},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": "tools", "method": "tools/list", "params": {}},
)  # fmt: skip


def lean_stdio(original: Any, fork_here: Callable[[list[dict[str, Any]]], None] | None) -> Any:
    """A stand-in for `mcp.server.stdio.stdio_server`, which hops to a thread for each line.

    fork_here: called once with the listed tools, after the handshake was answered, when nothing is left to do; None: no
    handshake is made here.
    """
    anyio: Any = importlib.import_module("anyio")  # the server's, whatever its version
    types: Any = importlib.import_module("mcp.types")
    message_type: Any = importlib.import_module("mcp.shared.message").SessionMessage

    def parse(line: bytes) -> Any:
        return message_type(types.JSONRPCMessage.model_validate_json(line))

    @contextlib.asynccontextmanager
    async def stdio_server(stdin: Any = None, stdout: Any = None) -> AsyncIterator[Any]:
        if stdin is not None or stdout is not None:
            async with original(stdin, stdout) as streams:
                yield streams
            return
        send, receive = anyio.create_memory_object_stream(float("inf"))
        lines = Lines(send, parse)
        if fork_here is None:
            lines.listen()
            yield receive, Writer(write_all)
            return
        waiting = [json.dumps(message).encode() for message in HANDSHAKE]
        writer = Writer(write_all)

        def answered(line: bytes) -> None:
            answer = json.loads(line)
            if "error" in answer:
                raise Unfit(f"it answered the handshake with {line.decode()}")
            if answer.get("id") == "handshake":
                lines.feed(waiting[1])
                lines.feed(waiting[2])
            elif answer.get("id") == "tools":
                # Twice round: the tasks of the answered requests end first.
                lines.loop.call_later(0.02, settled, answer["result"]["tools"])

        def settled(tools: list[dict[str, Any]]) -> None:
            writer.put = write_all
            fork_here(tools)
            lines.listen()

        writer.put = answered
        lines.feed(waiting[0])
        yield receive, writer

    return stdio_server


def replace_everywhere(original: Any, replacement: Any) -> None:
    """Modules that imported a function by name hold it themselves."""
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is original:
                setattr(module, name, replacement)


def remember_checked_schemas(schemas: list[dict[str, Any]]) -> None:
    """`jsonschema.validate` checks the schema itself on every call (1 ms of each tool call of an SDK server): do it once."""
    jsonschema = sys.modules.get("jsonschema")
    if jsonschema is None:
        return
    from jsonschema.validators import validator_for

    original = jsonschema.validate
    known: dict[str, Any] = {}

    def validate(instance: Any, schema: Any, cls: Any = None, *args: Any, **kwargs: Any) -> None:
        if cls is not None or args or kwargs or not isinstance(schema, dict):
            return original(instance, schema, cls, *args, **kwargs)  # type: ignore[no-any-return]
        text = repr(schema)
        validator = known.get(text)
        if validator is None:
            kind = validator_for(schema)
            kind.check_schema(schema)
            validator = known[text] = kind(schema)
        error = next(iter(validator.iter_errors(instance)), None)
        if error is not None:
            return original(instance, schema)  # type: ignore[no-any-return]
        return None

    for schema in schemas:
        with contextlib.suppress(Exception):
            validate({}, schema)
    replace_everywhere(original, validate)


def quiet_request_log() -> None:
    """The SDK logs each request through rich: 0.8 ms a call for a line nobody reads."""
    import logging

    for name in ("mcp", "fastmcp", "FastMCP"):
        if logging.getLogger(name).level in (logging.NOTSET, logging.INFO, logging.DEBUG):
            logging.getLogger(name).setLevel(logging.WARNING)


# --- the levels ----------------------------------------------------------------------------------------------------------


STDIO = "mcp.server.stdio"


class PollPolicy(asyncio.DefaultEventLoopPolicy):
    """Loops on poll(2): unlike epoll, it leaves nothing in the kernel that a fork would share."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(selectors.PollSelector())


def own_code(command: dict[str, Any]) -> str:
    """The folder or file that holds the server's own code."""
    if command["kind"] == "script":
        return os.path.dirname(os.path.abspath(command["target"])) + os.sep
    top = command["modules"][0].partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None and not spec.submodule_search_locations:
        raise Unfit(f"module {top} is not found")
    if spec.submodule_search_locations:
        return os.path.abspath(next(iter(spec.submodule_search_locations))) + os.sep
    return os.path.abspath(str(spec.origin))


def prepare_path(command: dict[str, Any]) -> None:
    """What the interpreter does with sys.argv and sys.path for such a command."""
    if command["kind"] == "module":
        sys.path[0] = os.getcwd()
        sys.argv = [command["target"], *command["args"]]
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(command["target"]))
        sys.argv = [command["target"], *command["args"]]


def run_main(command: dict[str, Any]) -> None:
    if command["kind"] == "module":
        runpy.run_module(command["target"], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(command["target"], run_name="__main__")


class StdioFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Puts `replace(stdio_server)` in the place of the SDK's as soon as a server imports it, before any name is bound to it."""

    def __init__(self, replace: Callable[[Any], Any]):
        self.replace = replace
        self.loader: Any = None

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != STDIO:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self.loader.exec_module(module)
        module.stdio_server = self.replace(module.stdio_server)


def serve_ready(command: dict[str, Any], control: Control) -> NoReturn:
    """Run the server up to its first wait, then fork it for each session."""
    prepare_path(command)
    home = own_code(command)
    forked = False
    watch: Watch

    def fork_here(tools: list[dict[str, Any]]) -> None:
        nonlocal forked
        loop: Any = asyncio.get_running_loop()
        if not hasattr(loop, "_ssock") or not hasattr(loop, "_csock"):
            raise Unfit("it does not run on asyncio's own loop")
        wakers = [loop._ssock.fileno(), loop._csock.fileno()]
        watch.stop(set(wakers))
        quiet_request_log()
        schemas = [tool.get(key) for tool in tools for key in ("inputSchema", "outputSchema")]
        remember_checked_schemas([schema for schema in schemas if schema])
        born = nursery.Nursery(control, None)
        gc.collect()
        gc.freeze()
        control.send({"up": "ready"})
        born.serve()
        forked = True
        asyncio._set_running_loop(loop)  # it is remembered per process
        # The pair of sockets that wakes the loop is shared with the launcher: put another one in its place.
        for old, new in zip(wakers, _socket.socketpair(), strict=True):
            new.setblocking(False)
            os.dup2(new.fileno(), old, inheritable=False)
        reseed()

    failure: list[BaseException] = []

    def guarded(tools: list[dict[str, Any]]) -> None:
        try:
            fork_here(tools)
        except BaseException as error:
            failure.append(error)
            raise SystemExit(70) from error

    sys.meta_path.insert(0, StdioFinder(lambda original: lean_stdio(original, guarded)))
    asyncio.set_event_loop_policy(PollPolicy())
    watch = Watch(home)
    status = 0
    try:
        run_main(command)
    except SystemExit as error:
        status = 0 if failure else exit_status(error)
    except BaseException as error:
        if not forked:
            failure.append(error)
        traceback.print_exc()
        status = 1
    if forked:
        nursery.leave(status)
    raise failure[0] if failure else Unfit("it ended, or read its input, without the mcp SDK's stdio transport")


def main_block(path: str) -> tuple[CodeType | None, list[str]]:
    """What stands under `if __name__ == "__main__"` at the end of a file, and the modules the file imports at its top."""
    with open(path, "rb") as file:
        tree = ast.parse(file.read(), path)
    imports: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports.append(node.module)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.If) and not last.orelse and ast.unparse(last.test) in MAIN_TESTS:
        return compile(ast.Module(last.body, []), path, "exec"), imports
    return None, imports


MAIN_TESTS = {"__name__ == '__main__'", "'__main__' == __name__"}


def serve_import(command: dict[str, Any], control: Control) -> NoReturn:
    """Import the server's module once; a child runs its main block, or the whole of a file without one."""
    prepare_path(command)
    watch = Watch(own_code(command))
    block: CodeType | None = None
    module: ModuleType | None = None
    if command["kind"] == "console":
        for name in command["modules"]:
            importlib.import_module(name)
    else:
        path = command["target"]
        if command["kind"] == "module":
            spec = importlib.util.find_spec(command["target"])
            if spec is not None and spec.submodule_search_locations:
                spec = importlib.util.find_spec(command["target"] + ".__main__")
            if spec is None or spec.origin is None:
                raise Unfit(f"module {command['target']} is not found")
            path = spec.origin
        block, imports = main_block(path)
        if block is None:
            for name in imports:
                importlib.import_module(name)
        elif command["kind"] == "module":
            module = importlib.import_module(command["target"])
        else:
            spec = importlib.util.spec_from_file_location("__tbexp_server__", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[module.__name__] = module
            spec.loader.exec_module(module)
    stdio: Any = sys.modules.get(STDIO)
    if stdio is not None:
        replace_everywhere(stdio.stdio_server, lean_stdio(stdio.stdio_server, None))
        importlib.import_module("anyio._backends._asyncio")
        importlib.import_module("mcp.shared.message")
    watch.stop(set())
    quiet_request_log()
    remember_checked_schemas([])

    def start(message: dict[str, Any]) -> None:
        reseed()
        status = 0
        try:
            if block is not None and module is not None:
                module.__name__ = "__main__"
                sys.modules["__main__"] = module
                exec(block, module.__dict__)
            else:
                run_main(command)
        except SystemExit as error:
            status = exit_status(error)
        except BaseException:
            traceback.print_exc()
            status = 1
        nursery.leave(status)

    born = nursery.Nursery(control, start)
    gc.collect()
    gc.freeze()
    control.send({"up": "import"})
    born.serve()
    raise AssertionError("a child came back")


def reseed() -> None:
    """`random` itself is seeded by every fork."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        numpy.random.seed()


def serve_exec(command: dict[str, Any], control: Control) -> NoReturn:
    def start(message: dict[str, Any]) -> None:
        if message["cwd"]:
            os.chdir(message["cwd"])
        try:
            os.execvpe(message["argv"][0], message["argv"], message["env"])
        except OSError as error:
            os.write(2, f"{message['argv'][0]}: {error.strerror}\n".encode())
            os._exit(127)

    control.send({"up": "exec"})
    nursery.Nursery(control, start).serve()
    raise AssertionError("a child came back")


LEVELS: dict[str, Callable[[dict[str, Any], Control], NoReturn]] = {
    "ready": serve_ready,
    "import": serve_import,
    "exec": serve_exec,
}


def main() -> NoReturn:
    control = nursery.connect()
    received = control.receive()
    if received is None:
        os._exit(0)
    command = received[0]
    try:
        LEVELS[command["level"]](command, control)
    except Unfit as error:
        control.send({"unfit": str(error)})
    except BaseException as error:
        control.send({"unfit": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-4000:]})
    os._exit(0)


if __name__ == "__main__":
    main()
