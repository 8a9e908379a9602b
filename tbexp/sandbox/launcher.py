"""Starts the processes of one server: a standalone script that needs nothing but the standard library.

It runs in the server's interpreter, which may know nothing of tbexp, at one of three levels. A server that does not fit
a level is reported; what to do then is the caller's to decide.

- `exec`: nothing is shared. Every session forks and executes the command.
- `import`: the server's module is imported once; a forked child runs what stands under `if __name__ == "__main__"`.
- `ready`: the server runs here up to the point where it has answered the MCP handshake and waits for the first request;
  each session is a fork of that moment. It needs a server on the mcp SDK, whose stdio transport is replaced
  (lean_stdio.py). What a session still costs is mostly memory that the first request touches;
  tests/benchmarks/bench_sandbox.py measures it.
"""

# ruff: noqa: PTH100, PTH109, PTH118, PTH120, PTH123
from __future__ import annotations

import _socket
import ast
import asyncio
import importlib
import importlib.util
import os
import random
import runpy
import selectors
import sys
import time
import traceback
from collections.abc import Callable
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn


def sibling(name: str) -> Any:
    """A module of this folder under a name that no server uses."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"tbexp_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from tbexp.sandbox import fitness, lean_stdio, nursery
    from tbexp.sandbox.fitness import Unfit
    from tbexp.sandbox.nursery import Control
else:
    nursery, fitness, lean_stdio = sibling("nursery"), sibling("fitness"), sibling("lean_stdio")
    Unfit = fitness.Unfit


def exit_status(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)  # noqa: T201 - what the interpreter does for sys.exit("text")
    return 1


class PollPolicy(asyncio.DefaultEventLoopPolicy):
    """Loops on poll(2): unlike epoll, it leaves nothing in the kernel that a fork would share."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(selectors.PollSelector())


def own_code(command: dict[str, Any]) -> str:
    """The folder or file that holds the server's own code."""
    if command["kind"] == "script":
        return os.path.dirname(os.path.abspath(str(command["target"]))) + os.sep
    top = command["modules"][0].partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None or (spec.origin is None and not spec.submodule_search_locations):
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


def serve_ready(command: dict[str, Any], control: Control) -> NoReturn:
    """Run the server up to its first wait, then fork it for each session."""
    prepare_path(command)
    home = own_code(command)
    forked = False
    watch: fitness.Watch

    def fork_here(tools: list[dict[str, Any]]) -> None:
        nonlocal forked
        loop: Any = asyncio.get_running_loop()
        if not hasattr(loop, "_ssock") or not hasattr(loop, "_csock"):
            raise Unfit("it does not run on asyncio's own loop")
        wakers = [loop._ssock.fileno(), loop._csock.fileno()]
        stamped = watch.stop(set(wakers))
        lean_stdio.quiet_request_log()
        if "TBEXP_SEARCH_ADDRESS" in os.environ:
            lean_stdio.prepare_http()
        schemas = [tool.get(key) for tool in tools for key in ("inputSchema", "outputSchema")]
        lean_stdio.remember_checked_schemas([schema for schema in schemas if schema])
        generators = fitness.generators(watch)
        born = nursery.Nursery(control, None)
        nursery.settle()
        control.send({"up": "ready"})
        born.serve()
        forked = True
        asyncio._set_running_loop(loop)  # it is remembered per process
        # The pair of sockets that wakes the loop is shared with the launcher: put another one in its place.
        for old, new in zip(wakers, _socket.socketpair(), strict=True):
            new.setblocking(False)
            os.dup2(new.fileno(), old, inheritable=False)
        reseed(generators, stamped, watch.sqlite)

    failure: list[BaseException] = []

    def guarded(tools: list[dict[str, Any]]) -> None:
        try:
            fork_here(tools)
        except BaseException as error:
            failure.append(error)
            raise SystemExit(70) from error

    def plain(frame: FrameType) -> bool:
        return fitness.nothing_follows(frame, home)

    sys.meta_path.insert(
        0, lean_stdio.StdioFinder(lambda original: lean_stdio.lean_stdio(original, guarded, plain, nursery.leave))
    )
    asyncio.set_event_loop_policy(PollPolicy())
    watch = fitness.Watch(home)
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
    """What stands under `if __name__ == "__main__"` at the end of a file, and the modules that the file imports."""
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
    watch = fitness.Watch(own_code(command))
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
    stdio: Any = sys.modules.get(lean_stdio.STDIO)
    if stdio is not None:
        lean_stdio.replace_everywhere(stdio.stdio_server, lean_stdio.lean_stdio(stdio.stdio_server, None))
        importlib.import_module("anyio._backends._asyncio")
        importlib.import_module("mcp.shared.message")
    stamped = watch.stop(set())
    lean_stdio.quiet_request_log()
    if "TBEXP_SEARCH_ADDRESS" in os.environ:
        lean_stdio.prepare_http()
    lean_stdio.remember_checked_schemas([])

    def start(message: dict[str, Any]) -> None:
        reseed(generators, stamped, watch.sqlite)
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

    generators = fitness.generators(watch)
    born = nursery.Nursery(control, start)
    nursery.settle()
    control.send({"up": "import"})
    born.serve()
    raise AssertionError("a child came back")


def reseed(generators: list[random.Random], stamped: list[tuple[dict[str, Any], str]], sqlite: bool) -> None:
    """What a process of its own would have drawn; `random` itself is seeded by every fork."""
    for attributes, name in stamped:
        attributes[name] = time.time()
    for generator in generators:
        generator.seed()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        numpy.random.seed()
    if sqlite:
        fitness.renew_sqlite()


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
    nursery.look_at_nobody()
    end = nursery.guard()
    command = received[0]
    try:
        LEVELS[command["level"]](command, control)
    except Unfit as error:
        control.send({"unfit": str(error)})
    except BaseException as error:
        control.send({"unfit": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-4000:]})
    end()


if __name__ == "__main__":
    main()
