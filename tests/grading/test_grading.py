from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tbexp.config.schema import SandboxConfig
from tbexp.errors import WorldError
from tbexp.grading import TestContext, Verdict, open_grader

CONTEXT = TestContext(
    response="Done: 7 teapots.",
    effects={"shop": {"stock": {"TP-1": 7}}},
    tool_calls=[{"tool_call": {"name": "restock", "arguments": {"n": 5}}, "tool_response": {"content": "ok"}}],
    messages=[
        {"T": "Text", "role": "system", "content": "You sell tea.", "metadata": {}},
        {"T": "Text", "role": "user", "content": "Five more teapots.", "metadata": {}},
        {"T": "Text", "role": "assistant", "content": "Which?", "metadata": {"tag": "think"}},
        {"T": "Text", "role": "assistant", "content": "Which ones?", "metadata": {}},
        {"T": "Text", "role": "user", "content": "TP-1.", "metadata": {}},
        {"T": "ParallelToolCall", "tool_calls": [], "metadata": {}},
        {"T": "Text", "role": "assistant", "content": "Done: 7 teapots.", "metadata": {}},
    ],
    metadata={"repetition": 3},
)


class SaysYes:
    def __init__(self, answer: str = "Yes.", style: str = "legacy"):
        self.answer = answer
        self.style = style
        self.asked: list[tuple[str, str]] = []

    async def ask(self, system: str, user: str) -> str:
        self.asked.append((system, user))
        return self.answer


class Dies:
    async def ask(self, system: str, user: str) -> str:
        raise WorldError("judge_endpoint", "503 after 5 tries")


def grade(body: str, *, judge: Any = None, fixtures: Any = None, times: int = 1, **settings: Any) -> Verdict:
    code = textwrap.dedent(body)
    if "__tb_test_fn" not in code:
        code = "def test(x, judge):\n" + textwrap.indent(code, "    ") + "\n__tb_test_fn = test\n"

    async def go() -> Verdict:
        config = SandboxConfig(name="x", kind="prefork", **settings)
        async with open_grader(config) as grader:
            verdicts = [await grader.grade(code, CONTEXT, judge=judge, fixtures=fixtures) for _ in range(times)]
        assert all(verdict == verdicts[0] for verdict in verdicts)
        return verdicts[0]

    return asyncio.run(go())


# what the test does -> (passed, reward, kind of the system error, line, a part of the message)
OUTCOMES: dict[str, tuple[str, tuple[bool | None, float, str | None, int | None, str]]] = {
    "returns nothing": ("pass", (True, 1.0, None, None, "")),
    "returns True": ("return True", (True, 1.0, None, None, "")),
    "returns one": ("return 1", (True, 1.0, None, None, "")),
    "returns False": ("return False", (False, 0.0, None, None, "returned False")),
    "returns zero": ("return 0.0", (False, 0.0, None, None, "returned 0.0")),
    "returns a half": ("return 0.5", (False, 0.5, None, None, "returned 0.5")),
    "returns two": ("return 2", (None, 0.0, "test_code", None, "returned 2")),
    "returns no number": ("return float('nan')", (None, 0.0, "test_code", None, "returned nan")),
    "returns a text": ("return 'yes'", (None, 0.0, "test_code", None, "returned 'yes'")),
    "asserts in vain": ("a = 1\nassert a == 2, 'stock is wrong'", (False, 0.0, None, 3, "stock is wrong")),
    "asserts without words": ("assert x.effects['shop'] == {}", (False, 0.0, None, 2, "assertion failed")),
    "misses a row": ("x.effects['shop']['stock']['TP-2']", (False, 0.0, None, 2, "KeyError: 'TP-2'")),
    "misses a call": ("x.tool_calls[5]", (False, 0.0, None, 2, "IndexError")),
    "misses a field by its name": ("x.tool_calls[0].tool_call.total", (False, 0.0, None, 2, "AttributeError")),
    "reads a text that is no JSON": ("import json\njson.loads(x.response)", (False, 0.0, None, 3, "JSONDecodeError")),
    "adds what cannot be added": ("x.response + 1", (False, 0.0, None, 2, "TypeError")),
    "names what is not there": ("stok = 1\nstock", (None, 0.0, "test_code", 3, "NameError")),
    "imports what is not there": ("import nowhere", (None, 0.0, "test_code", 2, "ModuleNotFoundError")),
    "opens a missing file": ("open('/nowhere')", (None, 0.0, "test_code", 2, "FileNotFoundError")),
    "recurses for ever": ("def f(): f()\nf()", (None, 0.0, "test_code", 2, "RecursionError")),
    "exits": ("raise SystemExit(0)", (None, 0.0, "test_code", 2, "SystemExit")),
    "exits at once": ("import os\nos._exit(0)", (None, 0.0, "grader_crashed", None, "exit status 0")),
    "replaces json": ("import json\njson.dumps = lambda *a, **k: '{}'\nassert False", (False, 0.0, None, 4, "")),
    "speaks for itself": (
        "import os, struct\nfor fd in range(3, 64):\n    try:\n        os.write(fd, (2).to_bytes(8, 'big') + b'[]')\n"
        "    except OSError:\n        pass",
        (None, 0.0, "grader_crashed", None, "cannot be understood"),
    ),
    "gives its own verdict": (
        "import json, os\ntold = json.dumps({'verdict': {'passed': True, 'reward': 1.0}}).encode()\n"
        "for fd in range(3, 64):\n    try:\n        os.write(fd, len(told).to_bytes(8, 'big') + told)\n"
        "    except OSError:\n        pass\nos._exit(0)",
        (None, 0.0, "grader_crashed", None, "cannot be understood"),
    ),
    "closes its pipe": ("import os\nos.closerange(3, 64)", (None, 0.0, "grader_crashed", None, "without a verdict")),
    "lets a fork come back": (
        "import os\nif not os.fork():\n    return True\nos.wait()\nassert False, 'the first one decides'",
        (False, 0.0, None, 6, "the first one decides"),
    ),
    "kills its group": ("import os\nos.killpg(0, 9)", (None, 0.0, "grader_crashed", None, "SIGKILL")),
    "is killed": ("import os\nos.kill(os.getpid(), 11)", (None, 0.0, "grader_crashed", None, "SIGSEGV")),
    "uses the network": ("import socket\nsocket.create_connection(('127.0.0.1', 9))",
                         (None, 0.0, "test_code", 3, "Error")),
    "asks a judge there is none of": ("judge.yesno('?')", (None, 0.0, "judge", 2, "none is configured")),
    "allocates 10 GB": ("a = bytearray(10**10)", (None, 0.0, "grader_memory", 2, "MemoryError")),
    "is no Python": ("def test(x, judge:\n    pass\n__tb_test_fn = test", (None, 0.0, "test_code", 1, "SyntaxError")),
    "fails at its import": ("a = {}['b']\n__tb_test_fn = 1", (None, 0.0, "test_code", 1, "does not load")),
    "is not bound": ("__tb_test_fn = None", (None, 0.0, "test_code", None, "binds no")),
    "takes no judge": ("def t(x): pass\n__tb_test_fn = t", (None, 0.0, "test_code", None, "`judge`")),
    "misspells a field of the context": ("x.efects['shop']", (None, 0.0, "test_code", 2, "efects")),
    "gives the context a field": ("x.total = 1", (None, 0.0, "test_code", 2, "total")),
    "takes the context for a dict": ("x['effects']", (None, 0.0, "test_code", 2, "not subscriptable")),
    "misspells a question of the judge": ("judge.yes_no('?')", (None, 0.0, "test_code", 2, "yes_no")),
    "puts too little to the judge": ("judge.text_yesno('?')", (None, 0.0, "test_code", 2, "question")),
    "reads a field that a class lacks": ("type(x).efects", (None, 0.0, "test_code", 2, "efects")),
    "misspells a function of a module": ("import json\njson.lods('1')", (None, 0.0, "test_code", 3, "lods")),
    "reads an attribute of nothing": ("x.effects.get('till').total", (False, 0.0, None, 2, "'NoneType' object")),
    "keeps a tuple as a key": ("x.metadata[(1, 2)] = 3", (None, 0.0, "test_code", None, "x.metadata cannot be kept")),
    "keeps a circle": ("x.metadata['x'] = x.metadata", (None, 0.0, "test_code", None, "x.metadata cannot be kept")),
    "keeps no mapping": ("x.metadata = 3", (None, 0.0, "test_code", None, "x.metadata cannot be kept")),
    "keeps what cannot be told": ("class A:\n  def __str__(self): 1 / 0\nx.metadata['a'] = A()",
                                  (None, 0.0, "test_code", None, "ZeroDivisionError")),
    "fails with what cannot be told": ("class A:\n  def __str__(self): 1 / 0\nassert False, A()",
                                       (False, 0.0, None, 4, "assertion failed")),
    "returns what cannot be told": ("class A:\n  def __repr__(self): 1 / 0\nreturn A()",
                                    (None, 0.0, "test_code", None, "ZeroDivisionError")),
    "has no parameters to read": ("__tb_test_fn = dict", (None, 0.0, "test_code", None, "signature")),
    "is empty": ("\n\n__tb_test_fn = lambda x, judge: None", (True, 1.0, None, None, "")),
}  # fmt: skip


def test_what_a_test_does_decides_between_passed_failed_and_broken():
    async def go() -> dict[str, Verdict]:
        async with open_grader(SandboxConfig(name="x", kind="prefork", grade_memory_mib=256)) as grader:
            found = {}
            for name, (body, _) in OUTCOMES.items():
                code = body
                if "__tb_test_fn" not in code:
                    code = "def test(x, judge):\n" + textwrap.indent(code, "    ") + "\n__tb_test_fn = test\n"
                found[name] = await grader.grade(code, CONTEXT)
            return found

    verdicts = asyncio.run(go())
    for name, (_, (passed, reward, kind, line, words)) in OUTCOMES.items():
        verdict = verdicts[name]
        error = verdict.system_error
        got = (verdict.passed, verdict.reward, error.kind if error else None, verdict.line)
        assert got == (passed, reward, kind, line), name
        assert words in verdict.message, name


@pytest.mark.parametrize("body", ["while True: pass", "import os\nos.fork()\nwhile True: pass"])
def test_a_test_that_loops_for_ever_is_ended_by_its_cpu_time(monkeypatch, body):
    monkeypatch.setattr("tbexp.grading.grader.WALL", 1000)
    verdict = grade(body, grade_timeout_s=0.3)
    assert verdict.passed is None and verdict.system_error is not None
    assert verdict.system_error.kind == "grader_timeout" and "more than 1 s of CPU" in verdict.message


def test_a_test_that_sleeps_for_ever_is_ended():
    verdict = grade("import time\ntime.sleep(3600)", grade_timeout_s=0.3)
    assert verdict.passed is None and verdict.system_error is not None
    assert verdict.system_error.kind == "grader_timeout" and "did not end within 4 s" in verdict.message


def test_time_that_a_test_does_not_compute_in_counts_a_quarter():
    assert grade("import time\ntime.sleep(1.5)", grade_timeout_s=1).passed


CHILDREN = """
import os, time
for _ in range(6):
    if not os.fork():
        {leave}
        held = bytearray({mib} << 20)
        held[::4096] = b"x" * len(held[::4096])
        time.sleep(3600)
time.sleep({seconds})
"""


@pytest.mark.parametrize("leave", ["pass", "os.fork() and os._exit(0)"])
def test_the_memory_of_a_test_is_that_of_all_its_processes(leave):
    verdict = grade(CHILDREN.format(leave=leave, mib=50, seconds=3600), grade_memory_mib=64)
    assert verdict.system_error is not None and verdict.system_error.kind == "grader_memory"
    assert "processes that it started" in verdict.message


def test_a_test_may_start_processes_that_need_less():
    assert grade(CHILDREN.format(leave="pass", mib=5, seconds=0.5), grade_memory_mib=64).passed


def test_an_exception_from_elsewhere_is_not_the_agents():
    body = """
    import functools, tempfile, sys, types
    def test(x, judge, clock):
        clock.read()
    __tb_test_fn = test
    """
    verdict = grade(body, fixtures={"clock": {"type": "clock_of_the_tests.Clock"}})
    assert verdict.system_error is not None and verdict.system_error.kind == "fixture"


def test_the_line_is_the_innermost_one_inside_the_test():
    body = """
    def stock(x, sku):
        return x.effects["shop"]["stock"][sku]

    def test(x, judge):
        assert stock(x, "TP-1") == 7
        assert stock(x, "TP-9") == 1
    __tb_test_fn = test
    """
    verdict = grade(body, times=3)
    assert (verdict.line, verdict.line_content) == (3, 'return x.effects["shop"]["stock"][sku]')


def test_prints_are_kept_up_to_a_bound():
    assert grade("import sys\nprint('a', 1)\nprint('b', file=sys.stderr)").prints == "a 1\nb\n"
    prints = grade("print('x' * 30000)").prints
    assert prints == "x" * 20_000 + "\n[cut here: 10001 characters are not shown]"


def test_the_context_is_as_the_format_says():
    body = """
    from thinkingbox.common import Judge, TestContext
    from thinkingbox.common.rubrics_judge import Rubric
    import thinkingbox.fixtures
    def test(x: TestContext, judge: Judge):
        assert x.query() == "Five more teapots."
        assert x.transcript(1) == "User: TP-1.\\n\\nAssistant: Done: 7 teapots."
        full = x.transcript()
        assert full.startswith("User: Five more") and full.count("Assistant: ") == 2 and "Which?" not in full
        assert x.transcript(2) == x.transcript(9) == full
        assert x.tool_calls[0]["tool_call"]["name"] == x.tool_calls[0].tool_call.name == "restock"
        assert x.messages[0].role == "system" and isinstance(x.effects["shop"], dict)
        x.metadata["seen"] = [1]
    __tb_test_fn = test
    """
    verdict = grade(body)
    assert verdict.passed, verdict
    assert verdict.metadata == {"repetition": 3, "seen": [1], "judge_motivation": None}


def test_messages_are_of_the_kinds_that_tests_import():
    body = """
    from thinkingbox.common.chat_types import ParallelToolCall, Text, ToolCall, ToolResponse
    kinds = [[kind.__name__ for kind in (Text, ParallelToolCall, ToolCall, ToolResponse) if isinstance(m, kind)]
             for m in x.messages]
    assert kinds == [["Text"]] * 5 + [["ParallelToolCall"], ["Text"]], kinds
    made = Text(role="user", content="hi")
    assert isinstance(made, Text) and made.content == "hi" and not isinstance("Text", Text)
    """
    assert grade(body).passed


def test_a_judge_is_asked_in_tags_and_its_decisions_are_kept():
    judge = SaysYes()
    verdict = grade("assert judge.text_yesno('a </text> b', 'Is it <b>polite</b>?')", judge=judge)
    assert verdict.passed
    assert "a &lt;/text&gt; b" in judge.asked[0][1] and "&lt;b&gt;" in judge.asked[0][1]
    question = "Is it <b>polite</b>?"
    assert verdict.metadata["judge_motivation"] == [{"question": question, "answer": True, "motivation": ""}]


def test_every_question_can_be_put_to_the_judge():
    body = """
    assert judge.compare_yesno("a", "b", "Same?") and judge.yesno("Well?") and judge.no_repeat("a", ["b", "c"])
    assert judge.evaluate_bool("system", "user")
    assert judge.text_yesno_with_motivation("a", "Polite?")[0]
    """
    judge = SaysYes()
    assert grade(body, judge=judge).passed
    assert len(judge.asked) == 5 and judge.asked[3] == ("system", "user")


def test_a_judge_that_gives_reasons_is_read_as_json():
    judge = SaysYes('Here you are: {"motivation": "It is rude.", "answer": "No"}', style="motivation")
    verdict = grade("assert judge.text_yesno('a', 'Polite?'), 'rude'", judge=judge)
    assert verdict.passed is False and verdict.message == "rude"
    assert verdict.metadata["judge_motivation"] == [
        {"question": "Polite?", "answer": False, "motivation": "It is rude."}
    ]
    assert grade("assert judge.text_yesno('a', 'Polite?')", judge=SaysYes("yes", "motivation")).passed is False


@pytest.mark.parametrize("body", ["judge.yesno('?')", "try:\n    judge.yesno('?')\nexcept Exception:\n    pass"])
def test_a_judge_that_dies_is_a_system_error_even_when_the_test_hides_it(body):
    verdict = grade(body, judge=Dies())
    assert verdict.passed is None and verdict.system_error is not None
    assert verdict.system_error.kind == "judge" and "503" in verdict.system_error.message


def test_the_judges_time_is_not_the_tests():
    class Slow:
        async def ask(self, system: str, user: str) -> str:
            await asyncio.sleep(5)
            return "yes"

    assert grade("assert judge.yesno('?')", judge=Slow(), grade_timeout_s=0.6).passed


def test_the_rubric_judge_weighs_as_the_format_says():
    body = """
    from thinkingbox.common.rubrics_judge import RubricsJudge
    def test(x, judge):
        rubrics = [{"criterion": "yes one", "weight": 60}, {"criterion": "two", "weight": 40},
                   {"criterion": "yes three", "weight": 10, "is_penalty": True},
                   {"criterion": "yes four", "weight": 0.2, "is_penalty": True, "penalty_type": "multiplicative"}]
        return RubricsJudge(judge, x).evaluate(x.response, rubrics)
    __tb_test_fn = test
    """

    class Rates:
        async def ask(self, system: str, user: str) -> str:
            return "yes" if "of the text? yes" in user else "no"

    verdict = grade(body, judge=Rates())
    assert verdict.reward == pytest.approx(0.4) and verdict.passed is False
    assert verdict.metadata["rubric_reward"] == pytest.approx(0.4)
    assert [score["rating"] for score in verdict.metadata["rubric_scores"]] == ["yes", "no", "yes", "yes"]
    empty = grade(body.replace("x.response, rubrics", "'', rubrics"), judge=Rates())
    assert empty.system_error is not None and "needs a response" in empty.message


FIXTURES = """
import contextlib

class Shelf:
    def __init__(self, size, x):
        self.size, self.x = size, x

class Shop:
    def __init__(self, shelf, judge, name="corner"):
        self.shelf, self.name = shelf, name

@contextlib.contextmanager
def door(x):
    x.metadata["door"] = "open"
    yield "door"
    x.metadata["door"] = "closed"

@contextlib.contextmanager
def trapdoor():
    yield
    raise OSError("the hinge is broken")

def jammed(x):
    raise KeyError("x")

def chicken(egg):
    pass

def egg(chicken):
    pass
"""

DECLARED = {
    "shop": {"type": "tea_fixtures.Shop"},
    "shelf": {"type": "tea_fixtures.Shelf", "size": 3},
    "door": {"type": "tea_fixtures.door"},
    "trapdoor": {"type": "tea_fixtures.trapdoor"},
    "jammed": {"type": "tea_fixtures.jammed"},
    "chicken": {"type": "tea_fixtures.chicken"},
    "egg": {"type": "tea_fixtures.egg"},
    "lost": {"type": "tea_fixtures.lost"},
}


def test_fixtures_are_built_in_order_injected_and_closed(tmp_path, monkeypatch):
    (tmp_path / "tea_fixtures.py").write_text(FIXTURES)
    monkeypatch.syspath_prepend(tmp_path)
    body = """
    def test(x, judge, shop, door, shelf):
        assert shop.name == "corner" and shop.shelf is shelf and shelf.size == 3 and shelf.x is x and door == "door"
        assert x.metadata["door"] == "open"
    __tb_test_fn = test
    """
    verdict = grade(body, fixtures=DECLARED)
    assert verdict.passed, verdict
    assert verdict.metadata["door"] == "closed"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("jammed", "KeyError"),
        ("trapdoor", "hinge"),
        ("chicken", "chicken -> egg -> chicken"),
        ("lost", "lost"),
        ("unknown", "no fixture"),
    ],
)
def test_a_fixture_that_fails_is_a_system_error(tmp_path, monkeypatch, name, words):
    (tmp_path / "tea_fixtures.py").write_text(FIXTURES)
    monkeypatch.syspath_prepend(tmp_path)
    verdict = grade(f"def test(x, judge, {name}): pass\n__tb_test_fn = test", fixtures=DECLARED)
    assert verdict.system_error is not None and verdict.system_error.kind == "fixture"
    assert words in verdict.message


class Till:
    """A live session that a fixture may call."""

    async def server_tool(self, server: str, tool: str, arguments: Any) -> str:
        if server != "shop":
            raise KeyError(server)
        if tool == "burn":
            raise WorldError("server_crashed", "the till is on fire")
        return f"{tool} {json.dumps(arguments)}"


LIVE = """
class Counter:
    def __init__(self, x):
        self.left = x.server_tool("shop", "__reserved__count", {"sku": "TP-1"})
"""


def live(body: str, servers: Any = None, fixtures: Any = None) -> Verdict:
    async def go() -> Verdict:
        async with open_grader(SandboxConfig(name="x", kind="prefork")) as grader:
            return await grader.grade(textwrap.dedent(body), CONTEXT, servers=servers, fixtures=fixtures)

    return asyncio.run(go())


def test_fixtures_and_tests_reach_the_live_session(tmp_path, monkeypatch):
    (tmp_path / "live_fixtures.py").write_text(LIVE)
    monkeypatch.syspath_prepend(tmp_path)
    body = """
    def test(x, judge, counter):
        assert counter.left == '__reserved__count {"sku": "TP-1"}'
        assert x.server_tool("shop", "open") == "open {}"
    __tb_test_fn = test
    """
    declared = {"counter": {"type": "live_fixtures.Counter"}}
    assert live(body, Till(), declared).passed
    without = live(body, None, declared)
    assert without.system_error is not None and "no live session" in without.message


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        ("'shop', 'burn'", "server_crashed", "on fire"),
        ("'bakery', 'open'", "test_code", "no server `bakery`"),
    ],
)
def test_a_server_that_fails_a_test_is_a_system_error_even_when_the_test_hides_it(call, kind, says):
    body = f"""
    def test(x, judge):
        try:
            x.server_tool({call})
        except Exception:
            {"return" if kind == "server_crashed" else "raise"}
    __tb_test_fn = test
    """
    verdict = live(body, Till())
    assert verdict.system_error is not None and verdict.system_error.kind == kind
    assert says in verdict.message


def test_a_returned_number_passes_where_the_config_says_so():
    for returned, reward in (("0.0", 0.0), ("False", 0.0), ("0.25", 0.25)):
        verdict = grade(f"return {returned}", grade_numbers="pass")
        assert (verdict.passed, verdict.reward) == (True, reward)


def test_a_judge_is_read_by_the_rule_of_the_reference_where_the_config_says_so():
    judge = SaysYes("No. I would not say yes")
    assert grade("assert not judge.yesno('?')", judge=judge).passed
    judge.reading = "reference"
    assert grade("assert judge.yesno('?')", judge=judge).passed


def test_a_test_sees_no_secret_and_no_network(monkeypatch, caplog):
    monkeypatch.setenv("PLANTED_KEY", "sk-planted")
    monkeypatch.setenv("SHOP_CURRENCY", "EUR")
    with caplog.at_level(logging.WARNING):
        verdict = grade("import os, json\nprint(json.dumps(dict(os.environ)))", allow_env=["SHOP_CURRENCY"])
    seen = json.loads(verdict.prints)
    assert "PLANTED_KEY" not in seen and seen["SHOP_CURRENCY"] == "EUR"


def test_a_test_sees_no_other_process(caplog):
    with caplog.at_level(logging.WARNING):
        verdict = grade("import os\nprint(os.listdir('/proc'))")
    assert verdict.prints == "[]\n" or "tests can see other processes" in caplog.text


FENCED = """
import asyncio
from tbexp.config.schema import SandboxConfig
from tbexp.pipeline.doctor import checks
print(asyncio.run(checks(SandboxConfig(name="x", kind="prefork"))))
"""


@pytest.mark.parametrize(
    ("kinds", "says"),
    [
        ("", "without network and without a view of other processes"),
        ("net mnt", "tests can reach the network: "),
        ("mnt", "tests can see other processes: "),
    ],
)
def test_what_a_container_does_not_let_us_take_from_tests_is_said(kinds, says):
    forbid = "".join(f"echo 0 > /proc/sys/user/max_{kind}_namespaces; " for kind in kinds.split())
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
    if subprocess.run([*inside, f"mount -t tmpfs x /mnt; {forbid}"], capture_output=True).returncode:
        pytest.skip("no user namespace can be made here")
    done = subprocess.run([*inside, f'{forbid}exec "$@"', "sh", sys.executable, "-c", FENCED], capture_output=True)
    assert says in done.stdout.decode(), done


def test_what_a_test_leaves_running_is_ended_with_it():
    async def go() -> None:
        async with open_grader(SandboxConfig(name="x", kind="prefork")) as grader:
            code = (
                "def t(x, judge):\n    import subprocess\n"
                "    print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)\n__tb_test_fn = t\n"
            )
            left = int((await grader.grade(code, CONTEXT)).prints)
            for _ in range(500):
                if not Path(f"/proc/{left}").exists():
                    return
                await asyncio.sleep(0.01)
        raise AssertionError(f"process {left} lives on")

    asyncio.run(go())


def test_many_gradings_at_once_all_come_to_their_own_end():
    async def go() -> None:
        async with open_grader(SandboxConfig(name="x", kind="prefork")) as grader:
            code = "def t(x, judge):\n    assert x.effects['n'] % 3\n__tb_test_fn = t\n"
            verdicts = await asyncio.gather(*(grader.grade(code, TestContext(effects={"n": n})) for n in range(90)))
        assert [verdict.passed for verdict in verdicts] == [bool(n % 3) for n in range(90)]

    asyncio.run(go())


def test_the_grader_is_started_again_when_it_died():
    async def go() -> None:
        async with open_grader(SandboxConfig(name="x", kind="prefork")) as grader:
            code = "def t(x, judge): pass\n__tb_test_fn = t\n"
            for _ in range(3):
                assert (await grader.grade(code, CONTEXT)).passed
                assert grader._launcher is not None and grader._launcher._process is not None
                grader._launcher._process.kill()
                grader._launcher._process.wait()
                await asyncio.sleep(0.05)

    asyncio.run(go())


def written(body: str) -> str:
    return "def test(x, judge):\n" + textwrap.indent(body, "    ") + "\n__tb_test_fn = test\n"


FORKS = "import os, time\ngrader = os.getppid()\nif not os.fork():\n    "
KILLERS = {
    "kills it": "import os\nos.kill(os.getppid(), 9)",
    "kills it and waits for that": "import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(3600)",
    "tells it to end": "import os\nos.kill(os.getppid(), 15)",
    "kills its group": "import os\nos.killpg(os.getpgid(os.getppid()), 9)",
    "has a process kill it": f"{FORKS}os.kill(grader, 9)\ntime.sleep(3600)",
    "has one kill it that leaves": f"{FORKS}os.setsid()\n    os.kill(grader, 9)\n    time.sleep(3)\ntime.sleep(99)",
}


@pytest.mark.parametrize("how", KILLERS)
def test_a_test_that_ends_the_grader_is_the_only_one_that_suffers(how):
    async def go() -> None:
        async with open_grader(SandboxConfig(name="x", kind="prefork")) as grader:
            assert (await grader.grade(written("pass"), CONTEXT)).passed
            first = grader._launcher
            assert first is not None
            asked = asyncio.Event()

            class Waits:
                times = 0

                async def ask(self, system: str, user: str) -> str:
                    self.times += 1
                    if self.times == 2:
                        asked.set()
                    while not first.dead:
                        await asyncio.sleep(0.01)
                    return "yes"

            judge = Waits()
            code = written("assert judge.yesno('?') and x.effects['n'] % 2, 'even'")
            others = [
                asyncio.create_task(grader.grade(code, TestContext(effects={"n": n}), judge=judge)) for n in (1, 2)
            ]
            await asked.wait()
            culprit = await grader.grade(written(KILLERS[how]), CONTEXT)
            assert (culprit.passed, culprit.reward) == (None, 0.0) and culprit.system_error is not None
            assert culprit.system_error.kind == "grader_crashed"
            assert "the task's test killed its grader: it ended" in culprit.message
            one, two = await asyncio.gather(*others)
            assert (one.passed, one.system_error) == (True, None)
            assert (two.passed, two.system_error, two.message) == (False, None, "even")
            assert (await grader.grade(written("pass"), CONTEXT)).passed
            second = grader._launcher
            again = await grader.grade(written(KILLERS[how]), CONTEXT)
            assert again.message == culprit.message
            assert grader._launcher is second and second is not None and not second.dead

    asyncio.run(go())


def test_a_test_that_stops_the_grader_holds_no_other_up(monkeypatch):
    async def go() -> None:
        async with open_grader(SandboxConfig(name="x", kind="prefork")) as grader:
            with monkeypatch.context() as patch:
                patch.setattr("tbexp.grading.grader.ANSWER_S", 0.5)
                culprit = await grader.grade(written("import os\nos.kill(os.getppid(), 19)"), CONTEXT)
            assert culprit.passed is None and "killed its grader: it did not answer" in culprit.message
            assert (await grader.grade(written("pass"), CONTEXT)).passed

    asyncio.run(go())


def test_a_test_that_is_killed_by_another_is_run_again():
    async def go() -> None:
        async with open_grader(SandboxConfig(name="x", kind="prefork")) as grader:
            pids: list[int] = []

            class Kills:
                async def ask(self, system: str, user: str) -> str:
                    pids.append(int(user.partition("PID ")[2].partition(" ")[0]))
                    if len(pids) == 1:
                        os.kill(pids[0], 9)
                    return "yes"

            code = written("import os\nassert judge.evaluate_bool('s', f'PID {os.getpid()} ')")
            assert (await grader.grade(code, CONTEXT, judge=Kills())).passed
            assert len(set(pids)) == 2

    asyncio.run(go())


def test_a_killed_test_that_has_called_the_live_session_is_not_run_again():
    async def go() -> None:
        async with open_grader(SandboxConfig(name="x", kind="prefork")) as grader:
            calls = []

            class Shop:
                async def server_tool(self, server: str, tool: str, arguments: Any) -> str:
                    calls.append(tool)
                    assert grader._launcher is not None and grader._launcher._process is not None
                    grader._launcher._process.kill()
                    return "sold"

            verdict = await grader.grade(written("x.server_tool('shop', 'sell')"), CONTEXT, servers=Shop())
            assert verdict.passed is None and verdict.system_error is not None and calls == ["sell"]
            assert verdict.system_error.kind == "grader_crashed" and "live session" in verdict.message

    asyncio.run(go())


HOPS = """
import os, subprocess, sys
hop = "import os\\nfor _ in range(10**6):\\n    if os.fork(): os._exit(0)\\n    os.setsid(); os.write(2, b'.')"
with open({file!r}, "wb") as out:
    subprocess.Popen([sys.executable, "-c", hop], stderr=out)
while not os.path.getsize({file!r}):
    pass
"""


def test_what_runs_from_one_process_into_the_next_is_ended_with_its_test(tmp_path):
    async def go() -> None:
        file = tmp_path / "hops"
        async with open_grader(SandboxConfig(name="x", kind="prefork")) as grader:
            assert (await grader.grade(written(HOPS.format(file=str(file))), CONTEXT)).passed
            seen, still = 0, 0
            for _ in range(600):
                await asyncio.sleep(0.02)
                still = still + 1 if file.stat().st_size == seen else 0
                seen = file.stat().st_size
                if still == 25:
                    return
        raise AssertionError(f"{seen} processes, and it goes on")

    asyncio.run(go())


def test_a_test_that_was_pushed_out_of_the_warm_process_is_sent_again():
    async def go() -> None:
        async with open_grader(SandboxConfig(name="x", kind="prefork")) as grader:
            code = "def t(x, judge): pass\n__tb_test_fn = t\n"
            assert (await grader.grade(code, CONTEXT)).passed
            for key in grader._seen:
                grader._seen[key] = 5  # as if it had been compiled there
            assert (await grader.grade(code, CONTEXT)).passed

    asyncio.run(go())


def test_no_test_code_means_no_grading():
    assert grade("__tb_test_fn = lambda x, judge: None").passed

    async def go() -> Verdict:
        async with open_grader(SandboxConfig(name="x", kind="prefork")) as grader:
            return await grader.grade("", CONTEXT)

    assert asyncio.run(go()).passed
