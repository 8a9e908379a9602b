"""The warm grader: forks one process per grading and runs a test in it. Standalone, standard library only.

Decided here: what separates a failed test from a broken one.

- The test returns None, True or 1: passed. False, or a number in [0, 1): failed, with that reward
  (`sandbox.grade_numbers=pass`: passed, with that reward, as in ThinkingBox). Else: broken.
- It raises AssertionError: failed.
- Its own code raises another exception while it reads what the agent left (the innermost frame, standard library
  aside, is in the test): failed. A missing name or module, an operating-system error, memory, recursion: broken. So is
  what the context, the judge or a module does not offer: no agent can leave that.
- Anything from elsewhere (fixtures, judge, import, syntax, time, memory, a process that dies): broken. So is a test
  whose metadata is no JSON.
"""

# ruff: noqa: PTH100, PTH118, PTH120, PTH123
from __future__ import annotations

import builtins
import contextlib
import ctypes
import gc
import importlib
import inspect
import io
import json
import math
import mmap
import os
import re
import resource
import sys
import sysconfig
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

# A test may replace what it finds in modules.
_dumps, _loads, _exit, _pid = json.dumps, json.loads, os._exit, os.getpid
TEST_FILE = "<test>"
PRINTS = 20_000  # characters kept of what a test prints
CODES = 2048  # compiled tests kept
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
MS_RDONLY, MS_REC, MS_PRIVATE = 1, 1 << 14, 1 << 18
BROKEN_TYPES = (NameError, ImportError, SyntaxError, MemoryError, RecursionError, OSError, NotImplementedError)
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
USUAL_IMPORTS = ("collections", "copy", "datetime", "decimal", "difflib", "functools", "hashlib", "itertools", "math",
                 "random", "re", "statistics", "string", "typing", "unicodedata", "zoneinfo")  # fmt: skip


def load(name: str, file: str) -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, os.path.join(os.path.dirname(os.path.abspath(__file__)), file))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from tbexp.grading import context, judging
    from tbexp.sandbox import nursery
else:
    nursery = load("tbexp_nursery", "../sandbox/nursery.py")
    context = load("tbexp_context", "context.py")
    judging = load("tbexp_judging", "judging.py")


class Broken(Exception):
    """The test could not decide; kind and message of the system error."""

    def __init__(self, kind: str, message: str):
        self.kind = kind
        self.message = message
        super().__init__(message)


# --- what test code may import


def install_names() -> None:
    """The modules of the reference framework that tests import, made of ours."""
    names: dict[str, dict[str, Any]] = {
        "thinkingbox": {},
        "thinkingbox.common": {"TestContext": context.TestContext, "Judge": judging.Judge},
        "thinkingbox.common.chat_types": {
            kind.__name__: kind
            for kind in (context.Text, context.ToolCall, context.ParallelToolCall, context.ToolResponse)
        },
        "thinkingbox.common.rubrics_judge": {"Rubric": judging.Rubric, "RubricsJudge": judging.RubricsJudge},
        "thinkingbox.fixtures": {"RubricsJudge": judging.RubricsJudge},
    }
    for name, content in names.items():
        module = ModuleType(name)
        module.__path__ = []
        module.__dict__.update(content)
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)


# --- limits


def block_network() -> str:
    """Leave the network behind; the reason why not, or nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNET) == 0:
        return ""
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        return os.strerror(ctypes.get_errno())
    for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with contextlib.suppress(OSError), open(f"/proc/self/{file}", "w") as out:
            out.write(text)
    return ""


def hide_processes() -> str:
    """Put an empty folder over /proc: the environments of other processes hold keys. The reason why not, or nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    private = libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) == 0 if libc.unshare(CLONE_NEWNS) == 0 else False
    if private and libc.mount(b"none", b"/proc", b"tmpfs", MS_RDONLY, b"size=4k") == 0:
        return ""
    return os.strerror(ctypes.get_errno())


def limits(memory_mib: int, seconds: float) -> list[tuple[int, tuple[int, int]]]:
    """What a grading may use besides what the warm process has: address space, CPU seconds, no core file.

    CPU seconds are whole ones. They end in SIGXCPU, which tells them from other ends; a test that ignores it is killed.
    """
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * mmap.PAGESIZE
    memory, cpu = used + memory_mib * 1024 * 1024, math.ceil(seconds)
    core = resource.RLIMIT_CORE, (0, 0)
    return [(resource.RLIMIT_AS, (memory, memory)), (resource.RLIMIT_CPU, (cpu, cpu + 2)), core]


class Bounded(io.TextIOBase):
    """Keeps the beginning of what is written."""

    def __init__(self) -> None:
        self.text = ""
        self.lost = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        kept = text[: PRINTS - len(self.text)]
        self.text += kept
        self.lost += len(text) - len(kept)
        return len(text)

    def content(self) -> str:
        return f"{self.text}\n[cut here: {self.lost} characters are not shown]" if self.lost else self.text


# --- one grading


class LiveContext(context.TestContext):  # type: ignore[misc, valid-type, unused-ignore]
    """The context of an attempt whose session still lives: calls of its servers go through our side."""

    __slots__ = ()
    channel: Channel

    def server_tool(self, server: str, tool: str, arguments: Mapping[str, Any] | None = None) -> str:
        self.channel.send({"tool": [server, tool, dict(arguments or {})]})
        answer = self.channel.receive()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return str(answer["answer"])


class Channel:
    """Length-prefixed JSON with the parent. What is sent has the token that the request came with."""

    token = ""

    def __init__(self, fd: int):
        self.fd = fd

    def receive(self) -> Any:
        return _loads(self._exactly(int.from_bytes(self._exactly(8), "big")))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = os.read(self.fd, size - len(data))
            if not part:
                _exit(0)  # nobody is waiting
            data += part
        return data

    def send(self, message: Mapping[str, Any]) -> None:
        self.write(self.encoded(message))

    def encoded(self, message: Mapping[str, Any]) -> bytes:
        data = _dumps({"token": self.token, **message}, default=str).encode()
        return len(data).to_bytes(8, "big") + data

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view) :]


def grade(request: Mapping[str, Any], known: tuple[CodeType, str] | None, channel: Channel) -> dict[str, Any]:
    """Run the test; the verdict as JSON."""
    prints = Bounded()
    kind = LiveContext if request["live"] else context.TestContext
    LiveContext.channel = channel
    x = kind(**request["context"])
    x.messages, x.tool_calls = context.records(x.messages), context.records(x.tool_calls)

    def ask(system: str, user: str) -> str:
        channel.send({"ask": [system, user]})
        answer = channel.receive()
        if "error" in answer:
            raise judging.JudgeError(answer["error"])
        return str(answer["answer"])

    judge = judging.Judge(ask, request["judge_style"], request["judge_reading"])
    source = known[1] if known else request["code"]
    verdict: dict[str, Any] = {
        "passed": None, "reward": 0.0, "error": None, "line": None, "line_content": "", "message": "",
    }  # fmt: skip
    try:
        sys.stdout = sys.stderr = prints
        numbers_pass = request["numbers"] == "pass"
        verdict |= run(known[0] if known else None, source, x, judge, request["fixtures"], numbers_pass)
    except Broken as error:
        verdict["error"] = {"kind": error.kind, "message": error.message}
        verdict |= place(error.__cause__ or error, source)
    except MemoryError:
        raise
    except BaseException as error:  # what it returns cannot be read, or what it is cannot be called
        verdict["error"] = {"kind": "test_code", "message": describe(error)}
    try:
        metadata = {**x.metadata, "judge_motivation": judge.decisions or None}
        _dumps(metadata, default=str)
    except MemoryError:
        raise
    except BaseException as error:
        what = f"what the test left in x.metadata cannot be kept: {describe(error)}"
        verdict["error"] = verdict["error"] or {"kind": "test_code", "message": what}
        metadata = {}
    verdict["prints"] = prints.content()
    verdict["metadata"] = metadata
    return verdict


def run(
    code: CodeType | None, source: str, x: Any, judge: Any, fixtures: Mapping[str, Any], numbers_pass: bool
) -> dict[str, Any]:
    """Passed, reward, line and message of a test that decides; raises Broken for one that does not."""
    names: dict[str, Any] = {"__name__": "__test__", "__builtins__": builtins}
    try:
        exec(code if code is not None else compile(source, TEST_FILE, "exec"), names)
    except BaseException as error:
        raise Broken("test_code", f"the test file does not load: {describe(error)}") from error
    test = names.get("__tb_test_fn")
    if not callable(test):
        raise Broken("test_code", "the test file binds no `__tb_test_fn`")
    stack = contextlib.ExitStack()
    value: Any = None
    failure: BaseException | None = None
    arguments = build_fixtures(test, x, judge, fixtures, stack)
    try:
        value = test(**arguments)
    except BaseException as error:
        if not fails(error):
            raise Broken(kind_of(error), describe(error)) from error
        failure = error
    try:
        stack.close()
    except BaseException as error:
        raise Broken("fixture", f"a fixture does not close: {describe(error)}") from error
    if failure is not None:
        return {"passed": False, "reward": 0.0, "message": describe(failure), **place(failure, source)}
    if value is None:
        return {"passed": True, "reward": 1.0}
    if isinstance(value, bool | int | float) and 0 <= value <= 1:
        passed = numbers_pass or value >= 1
        message = "" if passed else f"the test returned {value!r}"
        return {"passed": passed, "reward": float(value), "message": message}
    raise Broken("test_code", f"the test returned {value!r:.200}, which is no number from 0 to 1")


def build_fixtures(
    test: Callable[..., Any], x: Any, judge: Any, fixtures: Mapping[str, Any], stack: contextlib.ExitStack
) -> dict[str, Any]:
    """The arguments of the test: x, judge and the fixtures it names, each built once, after those it needs itself."""
    built: dict[str, Any] = {"x": x, "judge": judge}
    building: list[str] = []

    def value(name: str) -> Any:
        if name in built:
            return built[name]
        if name in building:
            raise Broken(
                "fixture", f"fixtures need each other: {' -> '.join([*building[building.index(name) :], name])}"
            )
        if name not in fixtures:
            raise Broken("fixture", f"there is no fixture `{name}`; declared are: {', '.join(fixtures) or 'none'}")
        building.append(name)
        given = dict(fixtures[name])
        try:
            make = imported(str(given.pop("type")))
            injected = {parameter: value(parameter) for parameter in needed(make) if parameter not in given}
            made = make(**given, **injected)
            if hasattr(made, "__enter__") and hasattr(made, "__exit__"):
                made = stack.enter_context(made)
        except Broken:
            raise
        except BaseException as error:
            raise Broken("fixture", f"fixture `{name}`: {describe(error)}") from error
        building.pop()
        built[name] = made
        return made

    names, accepts_any = parameters(test)
    arguments = {name: value(name) for name in names}
    for name in ("x", "judge"):
        if name not in arguments and not accepts_any:
            raise Broken("test_code", f"the test does not take `{name}`")
        arguments[name] = built[name]
    return arguments


def parameters(test: Callable[..., Any]) -> tuple[Sequence[str], bool]:
    """The positional parameters of a test, and whether it takes any keyword."""
    code = getattr(test, "__code__", None)
    if code is not None:  # a plain function, as nearly all are: `inspect` would cost 0.3 ms of CPU in a fresh fork
        return code.co_varnames[: code.co_argcount], bool(code.co_flags & inspect.CO_VARKEYWORDS)
    found = inspect.signature(test).parameters.values()
    return [p.name for p in found if p.kind in POSITIONAL], any(p.kind is p.VAR_KEYWORD for p in found)


def needed(make: Callable[..., Any]) -> list[str]:
    """The parameters without a default."""
    try:
        found = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in found if p.kind in POSITIONAL and p.default is p.empty]


def imported(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    if not callable(found):
        raise TypeError(f"{path} cannot be called")
    return found  # type: ignore[no-any-return]


# --- whose fault an exception is

LIBRARY = tuple({os.path.realpath(sysconfig.get_paths()[key]) + os.sep for key in ("stdlib", "platstdlib")})
PACKAGES = tuple({os.path.realpath(sysconfig.get_paths()[key]) + os.sep for key in ("purelib", "platlib")})


def fails(error: BaseException) -> bool:
    """Whether the exception of a test means that the agent failed."""
    if isinstance(error, AssertionError):
        return True
    if isinstance(error, BROKEN_TYPES) or not isinstance(error, Exception) or misuses(error):
        return False
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == TEST_FILE:
            return True
        path = os.path.realpath(frame.filename)
        passed_on = path.startswith(LIBRARY) and not path.startswith(PACKAGES)
        # Our Record stands for a plain object: a missing key is the reader's.
        if not passed_on and not frame.filename.startswith("<frozen") and frame.filename != context.__file__:
            return False
    return False


OURS = (context.TestContext, judging.Judge, judging.RubricsJudge, judging.Rubric)
OUR_NAMES = "|".join(kind.__name__ for kind in (*OURS, LiveContext))
MISUSE = re.compile(rf"({OUR_NAMES})\.\w+\(\) |'({OUR_NAMES})' object |type object '({OUR_NAMES})'")


def misuses(error: Exception) -> bool:
    """Whether it says that the context, the judge or a module is not what the test takes it for."""
    if isinstance(error, AttributeError):
        owner = error.obj
        if isinstance(owner, (ModuleType, *OURS)):
            return True
    return isinstance(error, AttributeError | TypeError) and MISUSE.match(said(error)) is not None


def kind_of(error: BaseException) -> str:
    if isinstance(error, judging.JudgeError):
        return "judge"
    if isinstance(error, MemoryError):
        return "grader_memory"
    return "test_code"


def said(error: BaseException) -> str:
    """The exception's text, which may be made by the test's own code."""
    try:
        return str(error)
    except Exception:
        return ""


def describe(error: BaseException) -> str:
    text = said(error)[:2000]
    if isinstance(error, AssertionError):
        return text or "assertion failed"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def place(error: BaseException, source: str) -> dict[str, Any]:
    """Number and text of the innermost line of the test that the exception passed."""
    line = None
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == TEST_FILE:
            line = frame.lineno
    if line is None and isinstance(error, SyntaxError) and error.filename == TEST_FILE:
        line = error.lineno
    lines = source.splitlines()
    text = lines[line - 1].strip()[:500] if line is not None and 0 < line <= len(lines) else ""
    return {"line": line, "line_content": text}


# --- the warm process


def main() -> NoReturn:
    control = nursery.connect()
    received = control.receive()
    if received is None:
        os._exit(0)
    hello = received[0]
    sys.path[:] = hello["path"]
    install_names()
    for name in USUAL_IMPORTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    codes: OrderedDict[str, tuple[CodeType, str]] = OrderedDict()

    def compile_ahead(message: dict[str, Any], fds: list[int]) -> None:
        """Compile, never run, a test that was seen a second time: its further gradings need not."""
        with os.fdopen(fds[0], "rb") as file:
            file.seek(0)
            source = file.read().decode()
        with contextlib.suppress(Exception):
            codes[message["hash"]] = (compile(source, TEST_FILE, "exec"), source)
            if len(codes) > CODES:
                codes.popitem(last=False)
            gc.freeze()

    def start(message: dict[str, Any]) -> NoReturn:
        os.dup2(0, channel.fd)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        request, me = channel.receive(), _pid()
        channel.token = request["token"]
        for kind, value in allowed:
            resource.setrlimit(kind, value)
        known = codes.get(message["hash"])
        if known is None and request["code"] is None:  # it was pushed out by others
            channel.send({"need": "code"})
            request["code"] = channel.receive()["code"]
        message_of_memory = f"the test needs more than {hello['memory_mib']} MiB"
        try:
            answer = channel.encoded({"verdict": grade(request, known, channel)})
        except MemoryError:
            answer = channel.encoded({"verdict": {"error": {"kind": "grader_memory", "message": message_of_memory}}})
        if _pid() == me:  # not one that the test forked, and that came back as well
            channel.write(answer)
        _exit(0)

    nothing = os.open(os.devnull, os.O_RDONLY)
    channel = Channel(os.dup(nothing))  # the number that a child's socket gets
    allowed = limits(hello["memory_mib"], hello["seconds"])
    born = nursery.Nursery(control, start, compile_ahead)
    born.most = born.memory(os.getpid()) + hello["memory_mib"] * 1024 * 1024, hello["over_memory"]
    network = block_network()
    nursery.settle()
    processes = hide_processes()
    nursery.look_at_nobody()
    control.send({"up": "grader", "network": network, "processes": processes})
    born.serve()
    raise AssertionError("a child came back")


if __name__ == "__main__":
    main()
