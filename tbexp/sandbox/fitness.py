"""What a server must not have done before it is forked: standalone, standard library only, loaded by path.

A fork must not share what a process of its own would not. A server that starts a thread, leaves a file or socket open,
maps memory that forks share, writes a file, fixes or draws random numbers, or takes the time, before it is asked
anything, is unfit. So is one that looks up a function of C for time or chance (`ctypes`): whether it is called, and
when, is not seen. Draws of time and chance count in the server's own code only, which is all that is neither the
standard library nor installed (site-packages) beside the server: what libraries draw at import is hardly ever seen by a
session. What holds a state
that a fork would go on with counts whoever made it: numpy's generators, and threads, also those that Python's
`threading` knows nothing of. SQLite's own random state is renewed in each fork.
One use of the time is harmless: a statement `something.NAME = time.time()` where no code of the server reads an
attribute of this name. Each fork puts its own time there.
"""

# ruff: noqa: PTH100, PTH115, PTH120, PTH123, PTH208
from __future__ import annotations

import _random
import ast
import contextlib
import datetime
import gc
import os
import random
import re
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple


class Unfit(Exception):
    """The server cannot be forked at this level; the text says why."""


CLOCKS: tuple[Any, ...] = (
    time.time, time.time_ns, time.localtime, time.gmtime, time.strftime, time.ctime, time.asctime,
    time.monotonic, time.monotonic_ns, time.perf_counter, time.perf_counter_ns, time.clock_gettime,
    time.clock_gettime_ns, time.process_time, time.process_time_ns, time.thread_time, time.thread_time_ns, os.times,
)  # fmt: skip
DRAWS: tuple[Any, ...] = (os.urandom, os.getrandom, os.getpid, os.getppid, threading.get_native_id)
WATCHED = {*CLOCKS, *DRAWS}
# By name and module, which may be loaded later than this one.
C_DRAWS = {"time", "clock", "clock_gettime", "gettimeofday", "times", "rand", "srand", "random", "srandom", "initstate",
           "setstate", "drand48", "lrand48", "mrand48", "srand48", "seed48", "arc4random", "arc4random_buf",
           "arc4random_uniform", "getrandom", "getentropy", "getpid", "gettid", "getppid", "uuid_generate",
           "uuid_generate_random", "uuid_generate_time", "RAND_bytes"}  # fmt: skip
WATCHED_LATE = {"generate_time_safe": "_uuid", "RAND_bytes": "_ssl"}
NOW = {"now", "utcnow", "today"}
GENERATOR: Any = random.random.__self__  # type: ignore[attr-defined]
SQL_DRAWS = re.compile(
    r"\brandom(blob)?\s*\(|\bcurrent_(time|date|timestamp)\b|'now'|\b(date|time|datetime|julianday|unixepoch)\s*\(\s*\)",
    re.IGNORECASE,
)
SQL_READS = {"", "--", "select", "with", "pragma", "begin", "commit", "end", "rollback", "explain", "attach", "detach"}
STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
INSTALLED = ("site-packages", "dist-packages")
# Of the standard library: what draws for its caller.
WRAPPERS = {STDLIB + name.replace("/", os.sep) for name in (
    "uuid.py", "secrets.py", "random.py", "tempfile.py", "_pydatetime.py", "datetime.py", "os.py", "ssl.py",
    "statistics.py", "email/utils.py", "ctypes/__init__.py",
)}  # fmt: skip
TOUCHING = {"os.exec", "os.fork", "os.link", "os.mkdir", "os.posix_spawn", "os.remove", "os.rename", "os.symlink",
            "os.system", "socket.bind", "socket.connect", "subprocess.Popen"}  # fmt: skip


class Watch:
    """Notes what a server does before it is asked anything that forks of it would wrongly share."""

    def __init__(self, home: str):
        """home: the folder (or file) of the server's command, which is its own code also where it is installed."""
        self.home = home
        self.owned: dict[str, bool] = {}
        self.on = True
        self.reasons: list[str] = []
        self.threads = set(threading.enumerate())
        self.tasks = tasks()
        self.databases: set[int] = set()  # connections of SQLite that are looked into
        self.sqlite = False  # it was used, and may have drawn
        self.files = open_files()
        self.shared = shared_memory()
        self.fixed: set[int] = set()  # generators of a fixed seed: a process of its own would have the same
        self.clock = (time.time, datetime.datetime, datetime.date)
        self.stamps: list[tuple[Stamp, float, float]] = []  # with the times before and after it was taken
        self._taken: tuple[Stamp, float] | None = None
        sys.addaudithook(self._audit)  # audit hooks stay for good, hence `on`
        self.profile = self._profile
        threading.setprofile(self.profile)
        sys.setprofile(self.profile)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in TOUCHING and not any("__pycache__" in str(argument) for argument in args):
            self.reasons.append(f"it calls {event} before it is asked anything")
        elif event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            name = os.fsdecode(args[0]) if isinstance(args[0], str | bytes) else ""  # a number: opened already
            if name and "__pycache__" not in name and name != os.devnull:
                self.reasons.append(f"it writes {name} before it is asked anything")
        elif event == "ctypes.dlsym" and args[1] in C_DRAWS:
            if (caller := self._caller(sys._getframe(1))) is not None:
                place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
                self.reasons.append(f"{place} takes C's {args[1]}, which all sessions would share")
        elif event == "sqlite3.connect":
            self.sqlite = True
        elif event == "sqlite3.connect/handle":  # it may have the number of one that is gone
            self.databases.discard(id(args[0]))

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_return" and self._taken is not None and arg is self.clock[0]:
            self.stamps.append((*self._taken, time.time()))
            self._taken = None
        if event != "c_call":
            return
        owner = getattr(arg, "__self__", None)
        if self.sqlite and arg.__name__ in ("execute", "executemany", "executescript"):
            self._look_into(owner)
        if isinstance(owner, _random.Random):
            if arg.__name__ == "seed" and frame.f_locals.get("a") is None:
                return  # seeded by chance: every fork does that again
            if arg.__name__ in ("seed", "setstate"):
                if owner is GENERATOR:
                    self.reasons.append("it fixes the state of `random`")
                self.fixed.add(id(owner))
                return
            if owner is not GENERATOR and id(owner) in self.fixed:
                return
        elif not (arg.__name__ in NOW and isinstance(owner, type) and issubclass(owner, datetime.date)):
            try:
                if arg not in WATCHED and WATCHED_LATE.get(arg.__name__, "") != arg.__module__:
                    return
            except TypeError:
                return
        caller = self._caller(frame)
        if caller is not None:
            place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
            if arg is self.clock[0] and caller is frame and (name := stored_attribute(frame)):
                self._taken = Stamp(name, place), time.time()
                return
            self.reasons.append(f"{place} takes {getattr(arg, '__qualname__', arg)}, which all sessions would share")

    def _caller(self, frame: FrameType | None) -> FrameType | None:
        """Who draws in `frame`, if that is the server's own code."""
        while frame is not None and (not (file := file_of(frame)) or file in WRAPPERS):
            frame = frame.f_back
        return frame if frame is not None and self._own(file_of(frame)) else None

    def _look_into(self, owner: Any) -> None:
        """Have SQLite tell what it runs for a connection, or a cursor of one, that was not seen before."""
        sqlite: Any = sys.modules["_sqlite3"]
        connection = getattr(owner, "connection", owner)
        if not isinstance(connection, sqlite.Connection) or id(connection) in self.databases:
            return
        self.databases.add(id(connection))
        try:
            look = sqlite.Connection.cursor(connection)
            look.row_factory = None
            files = [file for _, _, file in look.execute("PRAGMA database_list") if file]
        except sqlite.Error:  # it is closed, or of another thread: what is asked of it fails too
            return

        def told(statement: str) -> None:
            if not self.on:
                return
            if SQL_DRAWS.search(statement):
                self.reasons.append("it has SQLite draw random numbers or the time, which all sessions would share")
            first = statement.split(None, 1)[0].lower() if statement.strip() else ""
            if files and first not in SQL_READS:
                self.reasons.append(f"it writes {files[0]} before it is asked anything")

        connection.set_trace_callback(told)

    def _own(self, path: str) -> bool:
        known = self.owned.get(path)
        if known is None:
            full = os.path.abspath(path)
            inside = full[len(self.home) :] if full.startswith(self.home) else full
            known = not full.startswith(HERE) and not any(name in inside for name in INSTALLED)
            known = known and (inside is not full or not full.startswith(STDLIB))
            self.owned[path] = known
        return known

    def _harmless(self, target: str) -> bool:
        """As a standard file, which each session gets anew: nothing, or what another one was."""
        return target == os.devnull or target in self.files.values()

    def _own_sources(self) -> Iterator[bytes]:
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if path and path.endswith(".py") and self._own(path):
                with open(path, "rb") as file:
                    yield file.read()

    def _stamped(self, reasons: list[str]) -> list[tuple[dict[str, Any], str]]:
        """Where times stand that each fork takes for itself; a time that may be read is one more reason."""
        if not self.stamps:
            return []
        read = {name for text in self._own_sources() for name in names_read(text)}
        for stamp, _, _ in self.stamps:
            if stamp.name in read:
                reasons.append(f"{stamp.place} takes time, which all sessions would share")
        found = []
        own: dict[type, bool] = {}
        for thing in gc.get_objects():
            kind = type(thing)
            if kind not in own:
                module = sys.modules.get(kind.__module__)
                path = getattr(module, "__file__", None)
                own[kind] = bool(path) and self._own(str(path))
            held: Any = getattr(thing, "__dict__", None) if own[kind] else None
            for stamp, before, after in self.stamps:
                value = held.get(stamp.name) if type(held) is dict else None
                if type(value) is float and before <= value <= after:
                    found.append((held, stamp.name))
        return found

    def stop(self, own_files: set[int]) -> list[tuple[dict[str, Any], str]]:
        """Raise Unfit with all that was seen. own_files: those that this script opened meanwhile.

        Returns the places (attributes, name) where each fork has to put its own time.
        """
        watched = sys.getprofile() is self.profile
        sys.setprofile(None)
        threading.setprofile(None)
        self.on = False
        if self.databases:
            kind = sys.modules["_sqlite3"].Connection
            for thing in gc.get_objects():
                if issubclass(type(thing), kind) and id(thing) in self.databases:
                    with contextlib.suppress(Exception):  # it is closed, or of another thread
                        thing.set_trace_callback(None)
        reasons = list(dict.fromkeys(self.reasons))
        if not watched:
            reasons.append("it sets a profiler, so that nothing is known of what it draws")
        stamped = self._stamped(reasons)
        threads = [thread.name for thread in threading.enumerate() if thread not in self.threads]
        if threads:
            reasons.append(f"it starts threads: {', '.join(threads)}")
        elif len(tasks()) > len(self.tasks) and len(tasks_that_stay()) > len(self.tasks):
            reasons.append("it starts threads outside of Python's `threading`")
        files = [
            f"{fd} ({target})"
            for fd, target in open_files().items()
            if fd not in own_files and self.files.get(fd) != target and not (fd < 3 and self._harmless(target))
        ]
        if files:
            reasons.append(f"it holds open files or sockets: {', '.join(files)}")
        if mapped := shared_memory().items() - self.shared.items():
            reasons.append(f"it maps memory that forks share: {', '.join(sorted(name for _, name in mapped))}")
        reasons += numpy_states()
        if (time.time, datetime.datetime, datetime.date) != self.clock:
            reasons.append("it replaces the clock")
        if reasons:
            raise Unfit("; ".join(reasons[:5]))
        return stamped


class Stamp(NamedTuple):
    """An attribute that was given the time, and the line that did it."""

    name: str
    place: str


def stored_attribute(frame: FrameType) -> str:
    """NAME, where the statement that runs in `frame` is `something.NAME = time.time()`; "" for any other."""
    try:
        with open(frame.f_code.co_filename, "rb") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError):
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.lineno == frame.f_lineno:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if len(targets) == 1 and isinstance(targets[0], ast.Attribute) and isinstance(node.value, ast.Call):
                return targets[0].attr
    return ""


def names_read(source: bytes) -> set[str]:
    """The attributes that code reads, and all texts in it, which may name one for `getattr`."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
            found.add(node.target.attr)
    return found


SDK = {"mcp", "fastmcp", "anyio", "asyncio", "contextlib", "runpy"}


def nothing_follows(frame: FrameType | None, home: str) -> bool:
    """Whether the server's own code does nothing more once the calls that led to `frame` return.

    Own code is what is under `home`; of the rest, the SDK and what it runs on are known to do nothing that a process
    that ends would miss.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    while frame is not None:
        file = frame.f_code.co_filename
        known = str(frame.f_globals.get("__name__", "")).partition(".")[0] in SDK or file.startswith("<frozen")
        if not known and os.path.dirname(os.path.abspath(file)) != here:
            if not os.path.abspath(file).startswith(home):
                return False
            try:
                with open(file, "rb") as source:
                    tree = ast.parse(source.read())
            except (OSError, SyntaxError):
                return False
            if not _at_the_end(tree, frame):
                return False
        frame = frame.f_back
    return True


def _at_the_end(tree: ast.Module, frame: FrameType) -> bool:
    body: list[ast.stmt] = tree.body
    if frame.f_code.co_name != "<module>":
        functions = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and min(part.lineno for part in (node, *node.decorator_list)) == frame.f_code.co_firstlineno
        ]
        if len(functions) != 1:
            return False
        body = functions[0].body
    while body:
        last = body[-1]
        if not last.lineno <= frame.f_lineno <= (last.end_lineno or 0):
            return False
        if isinstance(last, ast.AsyncWith) and all(_is_transport(item.context_expr) for item in last.items):
            return len(last.body) == 1 and isinstance(last.body[0], ast.Expr | ast.Return)
        if not isinstance(last, ast.If):
            return isinstance(last, ast.Expr | ast.Return)
        body = last.orelse if last.orelse and frame.f_lineno >= last.orelse[0].lineno else last.body
    return False


def _is_transport(node: ast.expr) -> bool:
    """Whether it is a call of the SDK's stdio transport, whose end is the end of the process here."""
    name = node.func if isinstance(node, ast.Call) else None
    return (name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")) == "stdio_server"


def file_of(frame: FrameType) -> str:
    """The file of the code, or of the module for which code was made up; "" where there is none."""
    path = frame.f_code.co_filename
    return str(frame.f_globals.get("__file__") or "") if path.startswith("<") else path


def tasks() -> list[str]:
    """The kernel's threads of this process."""
    return os.listdir("/proc/self/task")


def tasks_that_stay() -> list[str]:
    """The threads left by a fork: linear algebra libraries end theirs before one, and start them again when needed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks with threads, from 3.12 on
        child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    for _ in range(100):  # a thread that was waited for goes a moment later
        if len(tasks()) == 1:
            break
        time.sleep(0.001)
    return tasks()


def numpy_states() -> list[str]:
    """What numpy holds of random numbers that a fork would go on with, but for its global state, which forks renew."""
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is None:
        return []
    found = []
    shared = numpy.mtrand._rand
    kinds = (numpy.Generator, numpy.RandomState, numpy.BitGenerator)
    known = {id(shared), id(shared._bit_generator)}
    held = {
        type(thing).__name__ for thing in gc.get_objects() if issubclass(type(thing), kinds) and id(thing) not in known
    }
    if held:
        found.append(f"it holds random numbers of numpy ({', '.join(sorted(held))})")
    fresh, now = numpy.RandomState().get_state(legacy=False), shared.get_state(legacy=False)
    if (
        now["bit_generator"] != "MT19937"
        or any(now[k] != fresh[k] for k in ("has_gauss", "gauss"))
        or (now["state"]["pos"] != fresh["state"]["pos"])
    ):
        found.append("it seeds numpy's random numbers, or draws of them")
    return found


def renew_sqlite() -> None:
    """Let SQLite seed its random numbers anew, as it does when it opens its first file after a fork.

    One state serves all databases of a process, those in memory too, and building a full-text index seeds it.
    """
    sqlite: Any = sys.modules["sqlite3"]
    nothing = sqlite.connect("file:/dev/null?mode=ro", uri=True)
    nothing.execute("PRAGMA schema_version")
    nothing.close()


def generators(watch: Watch) -> list[random.Random]:
    """The random generators that were seeded by chance and must be again in every fork, besides `random`'s own."""
    found = [thing for thing in gc.get_objects() if isinstance(thing, random.Random)]
    secure = random.SystemRandom
    return [g for g in found if g is not GENERATOR and not isinstance(g, secure) and id(g) not in watch.fixed]


def shared_memory() -> dict[str, str]:
    """Address -> what is mapped there, of the memory that a fork does not get as a copy of its own and may write to."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        lines = [line.split(maxsplit=5) for line in maps]
    return {line[0]: line[5].strip() if len(line) > 5 else "" for line in lines if line[1][1] + line[1][3] == "ws"}


def open_files() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return {fd: target for fd, target in found.items() if "/proc/" not in target}
