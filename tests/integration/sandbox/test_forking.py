"""Which servers are forked, at which level, and that no process or file outlives its parent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tbexp.sandbox import Server, open_sandbox
from tbexp.sandbox.launch import Unfit, preloadable

FOLDER = Path(__file__).parent / "servers"


def open_once(config, server, tools=()):
    async def go():
        async with open_sandbox(config, {"it": server}) as sandbox:
            answers = []
            for _ in range(2):
                async with sandbox.session({"it": {}}, tools) as session:
                    answers.append([await session.call(tool, {}) for tool in tools])
            return sandbox.levels()["it"], answers

    return asyncio.run(go())


def test_a_server_without_the_sdk_is_forked_after_its_import(server, config):
    level, answers = open_once(config(), server("by_hand"), ["count", "count", "draw"])
    assert level == "import"
    assert [answer[:2] for answer in answers] == [["1", "2"], ["1", "2"]]
    one, other = (json.loads(answer[2]) for answer in answers)
    assert one[0] != other[0] and one[1] != other[1] and one[2] == other[2]


UNFIT = {
    "thread": "starts threads",
    "socket": "open files or sockets",
    "file": "open files or sockets",
    "temporary": "os.mkdir",
    "seed": "fixes the state of `random`",
    "draw": "random",
    "uuid": "urandom",
    "clock": "now",
    "time": "time",
    "stamp that is read": "time",
    "frozen clock": "replaces the clock",
    "monotonic": "takes monotonic",
    "counter": "takes perf_counter",
    "clock_gettime": "takes clock_gettime",
    "asctime": "takes asctime",
    "getrandom": "takes getrandom",
    "uuid1": "takes generate_time_safe",
    "raw thread": "starts threads outside",
    "drawn by sql": "SQLite draw",
    "time by sql": "SQLite draw",
    "written by sql": "it writes",
    "numpy generator": "random numbers of numpy (Generator, PCG64)",
    "numpy seed": "seeds numpy's random numbers",
    "numpy draw": "seeds numpy's random numbers, or draws",
    "profiler": "sets a profiler",
    "urandom": "(/dev/urandom)",
    "urandom as log": "2 (/dev/urandom)",
    "shared memory": "maps memory that forks share: /dev/zero",
    "time of C": "takes C's time",
    "seed of C": "takes C's srand",
}


@pytest.mark.parametrize("what", UNFIT)
def test_a_server_that_does_what_forks_would_share_gets_a_process_per_session_and_is_named(
    server, config, caplog, tmp_path, what
):
    with caplog.at_level(logging.WARNING):
        level, answers = open_once(config(), server("unfit", UNFIT=what, DATABASE=str(tmp_path / "sqlite")), ["count"])
    assert level == "exec"
    assert answers == [["1"], ["1"]]
    warnings = [record.getMessage() for record in caplog.records if "a process per session" in record.getMessage()]
    assert len(warnings) == 1
    assert UNFIT[what] in warnings[0]


@pytest.mark.parametrize("what", ["", "numpy", "private memory", "length of C"])
def test_a_server_of_the_same_shape_without_the_fault_is_forked(server, config, what):
    assert open_once(config(), server("unfit", UNFIT=what), ["count"])[0] == "import"


SHARED = {
    "import numpy\nRNG = numpy.random.default_rng()": "numpy",
    "import uuid\nRUN_ID = uuid.uuid4()": "shop_common.py:2 takes urandom",
    "import time\nOPENED = time.time()": "shop_common.py:2 takes time",
    "import time\nfrom dataclasses import dataclass, field\n@dataclass\nclass C:\n"
    "    at: float = field(default_factory=time.time)\nOPENED = C()": "takes time",
}


@pytest.mark.parametrize("text", SHARED)
def test_code_beside_the_servers_package_is_its_own_too(config, caplog, tmp_path, text):
    (tmp_path / "shop_common.py").write_text(text)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("import shop_common\n")
    (tmp_path / "shop" / "server.py").write_text((FOLDER / "by_hand.py").read_text())
    shop = Server("it", (sys.executable, "-m", "shop.server"), {"PYTHONPATH": str(tmp_path)}, str(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert open_once(config(), shop, ["count"])[0] == "exec"
    assert SHARED[text] in caplog.text


def test_what_is_installed_may_draw_and_take_the_time_at_its_import(config, tmp_path):
    site = tmp_path / "lib" / "site-packages"
    site.mkdir(parents=True)
    (site / "shop_common.py").write_text("import time, uuid\nOPENED = time.time()\nRUN_ID = uuid.uuid4()\n")
    by_hand = (FOLDER / "by_hand.py").read_text()
    (tmp_path / "shop.py").write_text(by_hand.replace("import json", "import json\nimport shop_common", 1))
    path = os.pathsep.join((str(tmp_path), str(site)))
    shop = Server("it", (sys.executable, "-m", "shop"), {"PYTHONPATH": path}, str(tmp_path))
    assert open_once(config(), shop, ["count"])[0] == "import"


def test_sqlite_draws_other_numbers_in_each_fork(server, config, tmp_path):
    drawn = tmp_path / "drawn"
    assert open_once(config(), server("unfit", UNFIT="full text", DRAWN=str(drawn)), ["count"])[0] == "import"
    numbers = drawn.read_text().split()
    assert len(numbers) == len(set(numbers)) > 1


def test_a_time_that_no_code_reads_is_taken_anew_by_each_fork(server, config):
    level, answers = open_once(config(), server("unfit", UNFIT="stamp"), ["count"])
    assert (level, answers) == ("import", [["1"], ["1"]])


def test_what_is_no_python_command_gets_a_process_per_session(config):
    shell = Server("it", ("/bin/sh", "-c", f"exec {sys.executable} {FOLDER / 'by_hand.py'}"), {}, str(FOLDER))
    assert open_once(config(), shell, ["count"]) == ("exec", [["1"], ["1"]])


def test_modules_and_console_scripts_are_forked_too(config, tmp_path):
    package = tmp_path / "teashop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "app.py").write_text((FOLDER / "shop.py").read_text().replace('"__main__"', '"__never__"') + "\n\n"
                                    "def main():\n    server.run()\n")  # fmt: skip
    (package / "__main__.py").write_text("from teashop.app import main\n\nmain()\n")
    script = tmp_path / "tea-shop"
    script.write_text(f"#!{sys.executable}\nimport sys\nfrom teashop.app import main\n"
                      "if __name__ == '__main__':\n    sys.exit(main())\n")  # fmt: skip
    script.chmod(0o755)
    for command in ((sys.executable, "-m", "teashop"), (str(script),)):
        tea = Server("it", command, {"PYTHONPATH": str(tmp_path)}, str(tmp_path))

        async def go(tea=tea):
            async with open_sandbox(config(), {"it": tea}) as sandbox:
                async with sandbox.session({"it": {"stock": {"oolong": 1}}}, ["restock"]) as session:
                    await session.call("restock", {"sku": "oolong", "n": 2})
                    assert await session.effects() == {"it": {"stock": {"oolong": 3}}}
                return sandbox.levels()["it"]

        assert asyncio.run(go()) == "ready", command


def test_commands_that_cannot_be_read_are_told_apart():
    assert preloadable(Server("s", (sys.executable, "-u", "-m", "a.b", "x")))["modules"] == ["a.b"]
    assert preloadable(Server("s", (sys.executable, "a.py", "x")))["args"] == ["x"]
    for command in ((sys.executable, "-c", "pass"), (sys.executable, "-X", "dev", "a.py"), ("node", "a.js")):
        with pytest.raises(Unfit):
            preloadable(Server("s", command))


def test_a_server_that_is_forked_ends_by_itself_when_its_session_does(server, config, tmp_path):
    end = tmp_path / "end"
    open_once(config(), server("by_hand", BY_HAND_END=str(end)))
    assert end.read_text() == "ended by itself"


LOW = """
import anyio
from mcp.server.stdio import stdio_server
async def serve():
    async with stdio_server() as (read, write):
        await server._mcp_server.run(read, write, server._mcp_server.create_initialization_options())
        {}
    {}
anyio.run(serve)
"""
SHOPS = {
    "at the end": ("def main():\n    server.run()\n\nif __name__ == '__main__':\n    main()\n", False),
    "before more": ("def main():\n    server.run()\n    END.write_text('x')\n\nmain()\n", True),
    "inside a try": ("try:\n    server.run()\nfinally:\n    END.write_text('x')\n", True),
    "before more at the top": ("def main():\n    server.run()\n\nmain()\nEND.write_text('x')\n", True),
    "with an exit handler": ("import atexit\natexit.register(END.write_text, 'x')\nserver.run()\n", True),
    "in the transport": (LOW.format("", ""), False),
    "in the transport before more": (LOW.format("END.write_text('x')", ""), True),
    "behind the transport": (LOW.format("", "END.write_text('x')"), True),
    "with a lifespan": ("server = FastMCP('it', lifespan=life)\nserver.run()\n", True),
}
HEAD = """
import contextlib, os, pathlib
from mcp.server.fastmcp import FastMCP
END = pathlib.Path(os.environ["END"])

@contextlib.asynccontextmanager
async def life(server):
    yield
    END.write_text("x")

server = FastMCP("it")
"""


def test_code_that_stands_after_the_servers_run_is_run(config, tmp_path):
    async def go():
        servers = {}
        for name, (text, _) in SHOPS.items():
            file = tmp_path / f"{name.replace(' ', '_')}.py"
            file.write_text(HEAD + text)
            servers[name] = Server(name, (sys.executable, str(file)), {"END": str(tmp_path / name)}, str(tmp_path))
        async with open_sandbox(config(), servers) as sandbox:
            for name in servers:
                async with sandbox.session({name: {}}, []):
                    pass
            return sandbox.levels()

    assert set(asyncio.run(go()).values()) == {"ready"}
    assert {name: (tmp_path / name).exists() for name in SHOPS} == {name: ends for name, (_, ends) in SHOPS.items()}


PARENT = """
import asyncio, sys
from tbexp.config.schema import SandboxConfig
from tbexp.grading import TestContext, open_grader
from tbexp.sandbox import Server, open_sandbox

async def main():
    config = SandboxConfig(name="x", kind=sys.argv[1])
    shop = Server("shop", (sys.executable, "by_hand.py" if sys.argv[1] == "process" else "shop.py"), {}, ".")
    async with open_sandbox(config, {"shop": shop}) as sandbox, open_grader(config) as grader:
        async with sandbox.session({"shop": {}}, ["hang"]) as session:
            grading = asyncio.create_task(grader.grade(LOOP, TestContext()))
            call = asyncio.create_task(session.call("hang", {}))
            print("busy", flush=True)
            await asyncio.gather(call, grading)

LOOP = "def t(x, judge):\\n    while True: pass\\n__tb_test_fn = t\\n"
asyncio.run(main())
"""


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            if parent == pid:
                found |= {int(entry.name)} | descendants(int(entry.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("kind", ["prefork", "process"])
def test_kill_9_of_the_parent_leaves_no_process_and_no_temporary_file(tmp_path, kind):
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, kind], stdout=subprocess.PIPE, text=True, env=env, cwd=FOLDER
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "busy\n"
    # Two launchers, a server, a grading: on a busy machine the last is there seconds after it was asked for.
    family: set[int] = set()
    for _ in range(6000):
        family = descendants(parent.pid)
        if len(family) >= 4 or parent.poll() is not None:
            break
        time.sleep(0.01)
    assert len(family) >= 4
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    for _ in range(6000):
        if not any(alive(pid) for pid in family):
            break
        time.sleep(0.01)
    assert [pid for pid in family if alive(pid)] == []
    assert list(tmp_path.iterdir()) == []


BEGETS = """
import subprocess, sys, time
subprocess.Popen(["sleep", sys.argv[1]], start_new_session=True)
time.sleep(float(sys.argv[2]))
"""


TRIES = """
import asyncio
from tbexp.config.schema import SandboxConfig
from tbexp.sandbox import Server, open_sandbox

async def main():
    async with open_sandbox(SandboxConfig(name="x", kind="prefork"), {{"it": {server!r}}}) as sandbox:
        async with sandbox.session({{"it": {{}}}}, []):
            pass

asyncio.run(main())
"""


def running(words: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and alive(int(entry.name)):
            with contextlib.suppress(OSError):
                found += (
                    [int(entry.name)] if (entry / "cmdline").read_bytes() == words.replace(" ", "\0").encode() else []
                )
    return found


def begetting(tmp_path: Path, seconds: float) -> tuple[Server, str]:
    """A server that starts a process at its import, which then takes so long; and that process's command line."""
    file = tmp_path / "begets.py"
    file.write_text(BEGETS + (FOLDER / "by_hand.py").read_text().partition("from __future__ import annotations")[2])
    length = f"{600 + os.getpid() % 100_000 / 100_000:.5f}"
    return Server("it", (sys.executable, str(file), length, str(seconds)), {}, str(tmp_path)), f"sleep {length}\0"


def test_what_a_server_starts_at_its_import_ends_with_the_sandbox(config, tmp_path):
    server, words = begetting(tmp_path, 0)
    assert open_once(config(), server, ["count"])[1] == [["1"], ["1"]]
    until_none(words)


def test_what_a_server_starts_at_its_import_ends_with_a_parent_that_is_killed_while_it_is_tried(tmp_path):
    server, words = begetting(tmp_path, 600)
    parent = subprocess.Popen([sys.executable, "-c", TRIES.format(server=server)])
    while not running(words):
        assert parent.poll() is None
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    until_none(words)


def until_none(words: str) -> None:
    for _ in range(6000):
        if not running(words):
            break
        time.sleep(0.01)
    left = running(words)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
