from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbexp.errors import UserError
from tbexp.tasks import Tags, Task, dump_tests, load_tasks, merged, read_selectors, write_selectors

AGENT = """
system_instructions: You help.
builtin_tools:
  - {name: report, description: Report an attack, input_schema: {type: object}, is_end_turn: true}
parallel_tool_calls: false
"""
SCENARIO = """
world_state:
  desk: {sources: [a], limits: {days: 7, fee: 2.5}}
  empty:
tools:
  - name: rent
    override_description: Rent it
  - {name: give_back, is_end_turn: true}
bot_instructions: Be brief.
tags: [domain:Rental, base]
fixtures:
  clock: {type: sample.Clock, hour: 9}
metadata: {owner: desk}
"""
PYTHON = '''import json

def helper(x):
    return x.effects["desk"]

"""!
scenario: shop
tags: [smoke]
max_agent_sim_turns: 30
init: {desk: {limits: {days: 1}}}
"""


def test_one(x, judge):
    """!
    query: Rent me a digger.
    user_context: You are Ada.
    tags: ["category:User"]
    init:
      desk: {sources: [b], limits: {fee: null}, since: 2024-05-01}
      extra: {n: 1}
    """
    assert helper(x)


def test_two(x, judge, clock):
    """!
    query: Give it back.
    bot_instructions: Hurry.
    max_agent_sim_turns: 5
    """


def test_three(x, judge):
    """! {query: skipped, tags: [Skip]}"""
'''


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "dataset" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.fixture
def root(tmp_path):
    return write(
        tmp_path,
        {"agent/helper.yaml": AGENT, "scenario/shop.yaml": SCENARIO, "test_case/shop_orders_v2.py": PYTHON},
    )


def problems(root: Path, *selectors: str, agent: str = "helper") -> list[str]:
    with pytest.raises(UserError) as caught:
        load_tasks(root, agent, list(selectors) or None)
    return [str(problem).replace(str(root / "dataset") + "/", "") for problem in caught.value.problems]


def test_a_python_file_becomes_hydrated_tasks(root):
    one, two = load_tasks(root, "helper")
    assert (one.uid, two.uid) == ("shop_orders_v2.py:test_one", "shop_orders_v2.py:test_two")
    assert one.query == "Rent me a digger." and one.user_context == "You are Ada." and two.user_context is None
    assert (one.max_user_sim_turns, one.max_agent_sim_turns, two.max_agent_sim_turns) == (10, 30, 5)
    assert one.tags == Tags(labels=("base", "smoke"), category=("user",), domain="rental") and one.domain == "rental"
    assert one.system_messages() == ("You help.", "Be brief.")
    assert two.system_messages() == ("You help.", "Be brief.\nHurry.")
    assert [tool.name for tool in one.scenario.tools] == ["rent", "give_back"] and one.scenario.tools[1].is_end_turn
    assert one.agent.builtin_tools[0].is_end_turn and one.history is None and one.format_query is False
    assert two.fixtures == {"clock": {"type": "sample.Clock", "hour": 9}}
    assert one.metadata == {
        "scenario": "shop",
        "agent": "helper",
        "test_case_file": str(root / "dataset/test_case/shop_orders_v2.py"),
        "test_case_name": "test_one",
    }


def test_the_server_configuration_is_the_scenarios_with_the_tasks_merged_in(root):
    one, two = load_tasks(root, "helper")
    # The function's init replaces the module's as a whole; only scenario and task are merged deeply.
    desk = {"sources": ["a", "b"], "limits": {"days": 7, "fee": None}, "since": "2024-05-01"}
    assert one.server_config() == {"desk": desk, "empty": {}, "extra": {"n": 1}}
    assert list(one.server_config()) == ["desk", "empty", "extra"]
    assert two.server_config()["desk"]["limits"] == {"days": 1, "fee": 2.5}
    one.server_config()["desk"]["sources"].append("mine")
    assert one.server_config()["desk"] == desk


def test_the_code_of_a_test_keeps_its_line_numbers_and_no_other_test(root):
    one, two = load_tasks(root, "helper")
    lines, source = one.test_code.split("\n"), PYTHON.split("\n")
    assert (
        lines[: source.index("def test_two(x, judge, clock):")]
        == source[: source.index("def test_two(x, judge, clock):")]
    )
    assert "test_two" not in one.test_code and "test_one" not in two.test_code and "helper" in two.test_code
    assert one.test_code.endswith("\n__tb_test_fn = test_one\n")
    compile(two.test_code, "x", "exec")


def test_nothing_of_a_test_file_is_executed_when_it_is_loaded(root):
    write(root, {"test_case/evil.py": "raise SystemExit(1)\n" + PYTHON})
    assert len(load_tasks(root, "helper", ["evil.py:test_one"])) == 1


def test_selectors_keep_their_order_and_a_named_test_must_exist(root):
    two, one = load_tasks(root, "helper", ["shop_orders_v2.py:test_two", "shop_orders_v2.py:test_one"])
    assert (two.uid[-3:], one.uid[-3:]) == ("two", "one")
    assert problems(root, "shop_orders_v2.py:test_on", "shop_order_v2.py:test_one", "nonsense", "a:b:c") == [
        "shop_orders_v2.py:test_on: no test test_on in test_case/shop_orders_v2.py\n"
        "      fix: did you mean shop_orders_v2.py:test_one or shop_orders_v2.py:test_two?",
        "shop_order_v2.py:test_one: no file shop_order_v2.py under test_case\n"
        "      fix: did you mean shop_orders_v2.py?",
        "nonsense: 'nonsense' is not of the form <file>:<test>",
        "a:b:c: 'a:b:c' is not of the form <file>:<test>",
    ]
    assert "skip" in problems(root, "shop_orders_v2.py:test_three")[0]
    assert "selected twice" in problems(root, *["shop_orders_v2.py:test_one"] * 2)[0]


def test_all_tests_of_a_file_or_a_folder_can_be_taken(root):
    write(root, {"test_case/more/other.py": PYTHON, "test_case/more/deep/third.py": PYTHON})
    folder = root / "dataset" / "test_case"

    def found(place):
        return [task.uid for task in load_tasks(root, "helper", within=folder / place)]

    assert found("more/other.py") == ["other.py:test_one", "other.py:test_two"]
    assert found("more") == [f"{file}.py:test_{name}" for file in ("other", "third") for name in ("one", "two")]
    with pytest.raises(UserError, match="no test is here"):
        found("shop.py")


def test_a_selector_is_reported_where_its_list_has_it(root, tmp_path):
    listed = tmp_path / "list.yaml"
    listed.write_text("# first\n- shop_orders_v2.py:test_one\n- shop_orders_v2.py:test_nine\n")
    assert problems(root, *read_selectors(listed))[0].startswith(f"{listed}:3: no test test_nine")
    listed.write_text("- a.py:x\n- 7\n- b.py\n")
    with pytest.raises(UserError) as caught:
        read_selectors(listed)
    assert [p.where for p in caught.value.problems] == [f"{listed}:2", f"{listed}:3"]
    with pytest.raises(UserError, match="is a YAML list"):
        read_selectors(write(tmp_path, {"x.yaml": "a: b"}) / "dataset/x.yaml")
    with pytest.raises(UserError, match="cannot be read"):
        read_selectors(tmp_path / "none.yaml")


def test_written_selectors_are_sorted_and_read_back(tmp_path):
    file = tmp_path / "deep" / "pool.yaml"
    write_selectors(file, ["b.py:y", "a.py:x", f"a.py:{'long_' * 60}"])
    assert read_selectors(file) == ["a.py:" + "long_" * 60, "a.py:x", "b.py:y"]
    assert [path.name for path in file.parent.iterdir()] == ["pool.yaml"]


@pytest.mark.parametrize(
    "place",
    ["", "shop_orders/", "shop/", "shop_orders_v2/", "a/b/c/"],
    ids=["top", "two parts", "one part", "named like the stem", "nested"],
)
def test_a_file_name_is_found_wherever_the_format_allows_and_deeper(tmp_path, place):
    files = {"agent/helper.yaml": AGENT, "scenario/shop.yaml": SCENARIO, f"test_case/{place}shop_orders_v2.py": PYTHON}
    tasks = load_tasks(write(tmp_path, files), "helper", ["shop_orders_v2.py:test_one"])
    assert tasks[0].metadata["test_case_file"] == str(tmp_path / f"dataset/test_case/{place}shop_orders_v2.py")


def test_the_places_of_the_format_come_first_and_others_must_be_unique(root):
    write(
        root,
        {"test_case/shop/shop_orders_v2.py": PYTHON, "test_case/p/other.py": PYTHON, "test_case/q/other.py": PYTHON},
    )
    (task,) = load_tasks(root, "helper", ["shop_orders_v2.py:test_one"])
    assert task.metadata["test_case_file"].endswith("test_case/shop_orders_v2.py")
    assert "other.py may be any of p/other.py, q/other.py" in problems(root, "other.py:test_one")[0]
    assert sum("is also that of" in problem for problem in problems(root)) == 6


def test_all_problems_of_a_dataset_are_reported_at_once_with_their_lines(root):
    write(
        root,
        {
            "agent/broken.yaml": "system_instructions: 5\nbuiltin_tools:\n- {name: a}\nbuiltin_tool: []\n",
            "scenario/bad.yaml": "world_state: {desk: 7}\ntools: [{name: rent, direct_respons: x}, {name: rent},\n"
            "  {name: swap, override_arg_description: {sku: 7}}]\n",
            "test_case/one.yaml": "test_cases:\n- uid: a\n  query: q\n  scenario: shp\n  test_code: ''\n"
            "- uid: a\n  qery: q\n",
            "test_case/two.py": '"""!\nscenario: bad\nqueri: x\n"""\n\n'
            'def test_a(x):\n    """!\n    query: 7\n    tags: smoke\n    init: [1]\n    """\n\n'
            'async def test_b(x, judge):\n    """! {query: q}"""\n\n'
            'def test_c(x, judge, clok):\n    """! {query: q, scenario: shop, max_user_sim_turns: -1}"""\n'
            'def test_c(x, judge):\n    """!\n    query: [\n    """\n',
            "test_case/three.py": "a = 1; b = 2\n",
            "test_case/four.py": "def test_(:\n",
        },
    )
    found = problems(root, agent="broken")
    wanted = [
        "agent/broken.yaml:1: system_instructions must be a text, is a number",
        "agent/broken.yaml:4: unknown key builtin_tool of an agent\n      fix: did you mean builtin_tools?",
        "agent/broken.yaml:3: an entry of builtin_tools needs the key description",
        "agent/broken.yaml:3: an entry of builtin_tools needs the key input_schema",
        "test_case/one.yaml:6: a test needs the key query",
        "test_case/one.yaml:6: a test needs the key test_code",
        "test_case/one.yaml:7: unknown key qery of a test\n      fix: did you mean query?",
        "test_case/one.yaml:6: uid one.yaml:a is given twice in this file",
        "test_case/two.py:3: unknown key queri of the module block\n      fix: did you mean query?",
        "test_case/two.py:6: test_a must take the arguments judge",
        "test_case/two.py:8: query must be a text, is a number",
        "test_case/two.py:9: tags must be a list, is a text",
        "test_case/two.py:10: init must be an object, is a list",
        "test_case/two.py:13: test_b is async, so it cannot be a test",
        "test_case/two.py:18: uid two.py:test_c is given twice in this file",
        "test_case/three.py:1: two statements on one line cannot be told apart",
        "test_case/four.py:1: not valid Python: invalid syntax",
        "scenario/bad.yaml:1: world_state desk must be an object, is a number",
        "scenario/bad.yaml:3: override_arg_description sku must be a text",
        "scenario/bad.yaml:2: unknown key direct_respons of an entry of tools\n"
        "      fix: did you mean direct_response?",
        "scenario/bad.yaml:2: tool rent is listed twice",
    ]
    assert [problem for problem in wanted if problem not in found] == []
    assert any(problem.startswith("test_case/two.py:20: not valid YAML") or "two.py:21" in problem for problem in found)


def test_what_a_test_refers_to_must_exist(root):
    assert problems(root, "shop_orders_v2.py:test_one", agent="helpr") == [
        "tasks.agent: no agent helpr: agent/helpr.yaml does not exist\n      fix: did you mean helper?"
    ]
    write(
        root,
        {
            "test_case/refers.py": 'def test_a(x, judge, clok):\n    """!\n    query: q\n'
            '    scenario: shop\n    history: "g:0:"\n    """\n'
            'def test_b(x, judge):\n    """!\n    query: q\n    scenario: shpo\n    """\n'
            'def test_c(x, judge):\n    """!\n    query: q\n    """\n'
        },
    )
    assert problems(root, "refers.py:test_a", "refers.py:test_b", "refers.py:test_c") == [
        "test_case/refers.py:5: history refers to test_case/refers.meta.yaml, which does not exist",
        "test_case/refers.py:3: test test_a asks for the fixture clok\n      fix: did you mean clock?",
        "test_case/refers.py:10: no scenario shpo: scenario/shpo.yaml does not exist\n      fix: did you mean shop?",
        "test_case/refers.py:14: test test_c needs the key scenario",
    ]
    assert problems(root.parent / "nowhere") == [
        f"{root.parent / 'nowhere'}: no dataset here: it needs dataset/test_case/"
    ]


def test_a_tool_that_is_both_built_in_and_offered_is_reported_before_anything_starts(root):
    write(root, {"scenario/shop.yaml": SCENARIO.replace("give_back", "report")})
    assert "tool report is both built into agent helper and offered by shop" in problems(root)[0]


def test_the_yaml_form_carries_code_and_metadata(root):
    code = "def check(x, judge, clock):\n  assert x\n__tb_test_fn = check\n"
    case = {
        "uid": "t",
        "scenario": "shop",
        "query": "q {init}",
        "test_code": code,
        "metadata": {"k": 1},
        "format_query": True,
    }
    write(root, {"test_case/forms.yaml": json.dumps({"test_cases": [case, {**case, "uid": "free", "test_code": ""}]})})
    one, free = load_tasks(root, "helper", ["forms.yaml:t", "forms.yaml:free"])
    assert one.test_code == code and one.metadata["k"] == 1 and one.format_query and free.test_code == ""
    bad = [{**case, "test_code": "def f("}, {**case, "uid": "u", "test_code": "x = 1"}]
    write(root, {"test_case/bad.yaml": json.dumps({"test_cases": bad}, indent=1)})
    found = problems(root, "bad.yaml:t", "bad.yaml:u")
    assert "test_code is not valid Python" in found[0] and "must bind __tb_test_fn" in found[1]


def test_fixtures_come_from_conftest_files_down_to_the_test_and_then_the_scenario(root):
    write(
        root,
        {
            "test_case/conftest.yaml": "clock: {type: top.Clock}\nmail: {type: top.Mail, box: 1}\n"
            "log: {type: top.Log}\n",
            "test_case/deep/conftest.yaml": "fixtures: {mail: {type: deep.Mail}}\n",
            "test_case/deep/inner.py": PYTHON,
        },
    )
    (task,) = load_tasks(root, "helper", ["inner.py:test_two"])
    assert task.fixtures == {
        "clock": {"type": "sample.Clock", "hour": 9},
        "mail": {"type": "deep.Mail"},
        "log": {"type": "top.Log"},
    }
    write(root, {"test_case/deep/conftest.yaml": "mail: 7\n"})
    assert "fixture mail must be an object with type" in problems(root, "inner.py:test_two")[0]


META = """
$history:
  talk:
    - {T: Text, role: user, content: hi, message_id: m0}
    - {T: ParallelToolCall, tool_calls: [{name: rent, arguments: {days: 1}, id: c}], message_id: m1}
    - {T: ToolResponse, name: rent, content: ok, id: c, message_id: 7}
  a:b: [{T: Text, role: user, content: x}]
  "#draft": [nonsense]
  empty:
"""


@pytest.mark.parametrize(
    ("reference", "result"),
    [
        ("talk:0:", 3),
        ("talk:1:", 2),
        ("talk:m1:", 2),
        ("talk:0:m1", 1),
        ("talk:0:7", 2),
        ("a:b:0:", 1),
        ("{key: talk, start: 0, end: m1}", 1),
        ("talk:3:", "start '3' is neither"),
        ("talk:-1:", "start '-1' is neither"),
        ("talk:m9:", "start 'm9' is neither"),
        ("talk:0:2", "end '2' is no message_id"),
        ("talk:m1:m0", "is not after its start"),
        ("talc:0:", "group talc is not in"),
        ("empty:0:", "group empty is not in"),
        ("#draft:0:", "group #draft is not in"),
        ("talk", "not of the form key:start:end"),
        (":0:", "not of the form key:start:end"),
        ("{key: talk, begin: 0}", "unknown key begin"),
    ],
)
def test_a_history_reference_means_these_messages_or_is_reported(root, reference, result):
    written = reference if reference.startswith("{") else json.dumps(reference)
    test = f'def test_h(x, judge):\n    """!\n    query: q\n    scenario: shop\n    history: {written}\n    """\n'
    write(root, {"test_case/hist.py": test, "test_case/hist.meta.yaml": META})
    if isinstance(result, int):
        (task,) = load_tasks(root, "helper", ["hist.py:test_h"])
        assert task.history is not None and len(task.history) == result
    else:
        (found,) = problems(root, "hist.py:test_h")
        assert result in found and "hist.py:5" in found


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ("[{T: Txt}]", "T 'Txt'"),
        ("[{T: Text, role: user}]", "a Text without content"),
        ("7", "is no list"),
        ("[7]", "no object"),
        ("[{T: [a]}]", "T ['a']"),
        ("[{T: Text, role: bob, content: x}]", "a Text whose role is 'bob', not one of system, user, assistant"),
        ("[{T: Text, role: user, content: 5}]", "a Text whose content must be a text"),
        ("[{T: Text, role: user, content: x, metadata: 5}]", "a Text whose metadata must be an object"),
        ("[{T: ToolCall, name: a, arguments: x, id: c}]", "a ToolCall whose arguments must be an object"),
        ("[{T: ToolCall, name: 5, arguments: {}, id: c}]", "a ToolCall whose name must be a text"),
        ("[{T: ToolCall, name: a, arguments: {}, id: [c]}]", "a ToolCall whose id must be a text"),
        ("[{T: ToolResponse, name: a, content: [x], id: c}]", "a ToolResponse whose content must be a text"),
        ("[{T: ParallelToolCall, tool_calls: x}]", "tool_calls must be a list"),
        ("[{T: ParallelToolCall, tool_calls: [7]}]", "no object"),
        ("[{T: ParallelToolCall, tool_calls: [{T: Text, role: user, content: x}]}]", "with a Text in it"),
    ],
)
def test_a_history_group_that_is_no_conversation_is_reported(root, messages, why):
    test = 'def test_h(x, judge):\n    """! {query: q, scenario: shop, history: "g:0:"}"""\n'
    write(root, {"test_case/hist.py": test, "test_case/hist.meta.yaml": f"$history:\n  g: {messages}\n"})
    found = problems(root, "hist.py:test_h")
    assert any(why in problem and "hist.meta.yaml:1" in problem for problem in found)


def test_dumped_tasks_load_as_they_were(root, tmp_path):
    write(root, {"test_case/hist.meta.yaml": META})
    write(
        root,
        {"test_case/hist.py": 'def test_h(x, judge):\n    """! {query: q, scenario: shop, history: "talk:0:"}"""\n'},
    )
    tasks = load_tasks(root, "helper")
    rows = tmp_path / "tasks.jsonl"
    dump_tests(tasks, rows)
    assert load_tasks(rows, "") == tasks
    assert load_tasks(rows, "", [tasks[1].uid]) == [tasks[1]]
    assert [task.content_hash() for task in load_tasks(rows, "")] == [task.content_hash() for task in tasks]
    with pytest.raises(UserError, match=r"did you mean hist.py:test_h"):
        load_tasks(rows, "", ["hist.py:test_j"])
    rows.write_text(rows.read_text() + rows.read_text().splitlines()[0] + '\n{"uid": 7}\n[1]\n{broken\n')
    with pytest.raises(UserError) as caught:
        load_tasks(rows, "")
    assert sorted({p.where.rsplit(":")[-1] for p in caught.value.problems}) == ["4", "5", "6", "7"]


CODE = "def t(x, judge):\n    pass\n__tb_test_fn = t\n"
ROWS = {
    "an unknown key": ({"qery": "q"}, "unknown key qery of a hydrated task"),
    "an unknown key of the agent": ({"agent.tool": 1}, "unknown key agent.tool of an agent"),
    "an unknown key of the scenario": ({"scenario.tols": 1}, "unknown key scenario.tols of a scenario"),
    "an unknown key of a tool": ({"scenario.tools": [{"name": "a", "x": 1}]}, "unknown key scenario.tools[0].x of an"),
    "a tool that is none": ({"agent.builtin_tools": [7]}, "agent.builtin_tools[0] must be an object with keys"),
    "a tool without a name": ({"scenario.tools": [{}]}, "an entry of tools needs the key scenario.tools[0].name"),
    "a tool twice": ({"scenario.tools": [{"name": "a"}, {"name": "a"}]}, "tool a is listed twice"),
    "a tool both built in and offered": ({"scenario.tools": [{"name": "report"}]}, "tool report is both built into"),
    "an agent that is none": ({"agent": "x"}, "agent must be an object, is a text"),
    "a context that is none": ({"user_context": 5}, "user_context must be a text or null, is a number"),
    "a limit that is none": ({"max_user_sim_turns": "ten"}, "max_user_sim_turns must be a whole number, is a text"),
    "a limit that is null": ({"max_agent_sim_turns": None}, "max_agent_sim_turns must be a whole number, is empty"),
    "a state that is none": ({"scenario.world_state": [1]}, "scenario.world_state must be an object, is a list"),
    "a server's state that is none": ({"scenario.world_state": {"s": 1}}, "scenario.world_state s must be an object"),
    "an init that is none": ({"init": [1]}, "init must be an object, is a list"),
    "a history of what is no message": ({"history": [{"T": "Nope"}]}, "history has a message with T 'Nope'"),
    "a history that is none": ({"history": "abc"}, "history is no list"),
    "fixtures that are none": ({"fixtures": [1]}, "fixtures must be an object, is a list"),
    "a fixture without type": ({"fixtures": {"clock": {}}}, "fixture clock must be an object with type"),
    "a fixture that nobody declares": ({"fixtures": {"clok": {"type": "a.B"}}}, "asks for the fixture clock"),
    "code that is none": ({"test_code": "def f("}, "test_code is not valid Python"),
    "code that is empty": ({"test_code": " \n"}, "test_code is empty, so every attempt would pass"),
    "code whose test is async": ({"test_code": CODE.replace("def", "async def")}, "t in test_code is async"),
    "code whose test yields": ({"test_code": CODE.replace("pass", "yield")}, "t in test_code yields"),
    "code without a test": ({"test_code": "x = 1"}, "test_code must bind __tb_test_fn"),
    "tags that are none": ({"tags": {"labels": 7}}, "tags labels must be a list, is a number"),
    "metadata that are none": ({"metadata": {"scenario": 7}}, "metadata.scenario must be a text or null"),
    "a uid that is no selector": ({"uid": "a"}, "uid is 'a', which is not of the form <file>:<test>"),
    "half a character": ({"query": "\ud800"}, "not a hydrated task: 'utf-8' codec can't encode"),
    "not a number": ({"init": {"s": {"a": float("nan")}}}, "not a hydrated task: NaN is no number in JSON"),
}


@pytest.mark.parametrize("wrong", ROWS)
def test_a_hydrated_row_is_checked_as_the_files_are(root, tmp_path, wrong):
    rows = tmp_path / "tasks.jsonl"
    dump_tests(load_tasks(root, "helper"), rows)
    lines = rows.read_text().splitlines()
    row = json.loads(lines[1])
    change, said = ROWS[wrong]
    for path, value in change.items():
        *above, key = path.split(".")
        (row[above[0]] if above else row)[key] = value
    rows.write_text(f"{lines[0]}\n{json.dumps(row)}\n")
    with pytest.raises(UserError) as caught:
        load_tasks(rows, "")
    assert any(p.where == f"{rows}:2" and said in p.what for p in caught.value.problems), str(caught.value)


def test_all_that_is_wrong_with_hydrated_rows_is_told_at_once(root, tmp_path):
    rows = tmp_path / "tasks.jsonl"
    dump_tests(load_tasks(root, "helper"), rows)
    row = json.loads(rows.read_text().splitlines()[0]) | {"user_context": 5, "history": "abc", "uid": "a"}
    rows.write_text(f'{json.dumps(row)}\n{{"uid": "f.py:a", "uid": "f.py:b"}}\n')
    with pytest.raises(UserError) as caught:
        load_tasks(rows, "")
    assert [p.where.rsplit(":")[-1] for p in caught.value.problems] == ["1", "1", "1", "2"]
    assert "key uid is given twice" in str(caught.value)


def test_a_row_that_is_no_text_hides_no_other(root, tmp_path):
    rows = tmp_path / "tasks.jsonl"
    dump_tests(load_tasks(root, "helper"), rows)
    one, two = rows.read_bytes().splitlines()
    rows.write_bytes(one + b"\r\n" + one[:-2] + b"\xe9" + b"\n{\n" + two.replace(b'"query"', b'"qery"') + b"\n")
    with pytest.raises(UserError) as caught:
        load_tasks(rows, "")
    found = [problem.short.replace(str(rows), "rows") for problem in caught.value.problems]
    assert [what[:6] for what in found] == ["rows:2", "rows:3", "rows:4", "rows:4"], found
    assert "can't decode byte 0xe9" in found[0]


@pytest.mark.parametrize("text", ["", "\n\n"])
@pytest.mark.parametrize("selectors", [None, ["a.py:b", "a.py:c"]])
def test_a_file_without_rows_is_one_mistake(tmp_path, text, selectors):
    rows = tmp_path / "tasks.jsonl"
    rows.write_text(text)
    with pytest.raises(UserError) as caught:
        load_tasks(rows, "", selectors)
    assert [problem.short for problem in caught.value.problems] == [f"{rows}: no task is here"]


def test_rows_that_are_all_skipped_are_told_as_in_a_folder(root, tmp_path):
    rows = tmp_path / "tasks.jsonl"
    dump_tests((replace(task, tags=Tags(skip=True)) for task in load_tasks(root, "helper")), rows)
    with pytest.raises(UserError, match="no task is here"):
        load_tasks(rows, "")


def test_what_a_row_may_leave_out_or_have_as_null(root, tmp_path):
    rows = tmp_path / "tasks.jsonl"
    (task,) = load_tasks(root, "helper", ["shop_orders_v2.py:test_one"])
    dump_tests([task], rows)
    row = json.loads(rows.read_text())
    needed = {key: row[key] for key in ("uid", "agent", "scenario", "query", "test_code")}
    empty = dict.fromkeys(("history", "init", "format_query", "metadata", "tags", "fixtures", "user_context"))
    flat = {"uid": "f.py:c", "tags": ["Smoke", "domain:D"]}
    rows.write_text(
        "".join(json.dumps(needed | {"uid": f"f.py:{i}"} | more) + "\n" for i, more in enumerate([{}, empty]))
    )
    with rows.open("a") as stream:
        stream.write(json.dumps(needed | flat))
    least, null, tagged = load_tasks(rows, "")
    assert replace(null, uid=least.uid) == least and least.max_agent_sim_turns == sys.maxsize and not least.metadata
    assert tagged.tags == Tags(labels=("Smoke",), domain="d")


def test_a_merge_key_brings_what_is_not_given(root):
    write(
        root,
        {
            "test_case/merged.yaml": "test_cases:\n- &a {uid: a, query: q, scenario: shop, test_code: ''}\n"
            "- {<<: *a, uid: b}\n- {uid: c, <<: [{query: r}, *a]}\n- {<<: *a, uid: d, max_user_sim_turns: x}\n",
            "scenario/merged.yaml": "world_state: {}\ntools:\n- &t {name: rent, is_end_turn: true}\n"
            "- {<<: *t, name: swap}\n",
            "test_case/merged.py": 'def test_a(x, judge):\n    """!\n    scenario: merged\n    <<: {query: q}\n    """',
        },
    )
    found = [f"merged.yaml:{name}" for name in "abc"]
    assert problems(root, *found) == ["test_case/merged.yaml:5: max_user_sim_turns must be a whole number, is a text"]
    file = root / "dataset/test_case/merged.yaml"
    file.write_text("\n".join(file.read_text().splitlines()[:-1]))
    assert [task.query for task in load_tasks(root, "helper", found)] == ["q", "q", "r"]
    (task,) = load_tasks(root, "helper", ["merged.py:test_a"])
    assert [(tool.name, tool.is_end_turn) for tool in task.scenario.tools] == [("rent", True), ("swap", True)]


def test_a_key_that_is_given_twice_is_told_however_deep_it_stands(root):
    test = 'def test_a(x, judge):\n    """!\n    query: q\n    init:\n      desk: {a: {b: 1,\n      b: 2}}\n    """\n'
    write(root, {"test_case/deep.py": f'"""!\nscenario: shop\n"""\n{test}'})
    assert problems(root, "deep.py:test_a") == ["test_case/deep.py:9: key b is given twice, first in line 8"]


NO_JSON = {
    "!!set {b, c}": "!!set has no form in JSON",
    "!!binary aGk=": "!!binary has no form in JSON",
    "!!timestamp 2024-01-01": "!!timestamp has no form in JSON",
    "!!omap [a: 1]": "!!omap has no form in JSON",
    "!local x": "!local has no form in JSON",
    "&x [*x]": "holds itself, so it never ends",
    "&x {k: {l: *x}}": "holds itself, so it never ends",
    ".nan": ".nan is no number in JSON",
    "[-.inf]": "-.inf is no number in JSON",
    "1.0e+400": "1.0e+400 is no number in JSON",
    "9" * 5000: "not valid YAML",
    "0x" + "f" * 5000: "not valid YAML",
    '"\\uD800"': "not valid YAML",
    "!!bool maybe": "not valid YAML",
    '!!int ""': "not valid YAML",
    "[" * 3000: "not valid YAML",
    "{[a]: 1}": "not valid YAML",
    "{<<: 5}": "merges what is no object",
}


@pytest.mark.parametrize("value", NO_JSON)
def test_what_has_no_form_in_json_is_refused_where_it_stands(root, value):
    text = 'def test_a(x, judge):\n    """!\n    query: q\n    scenario: shop\n    init:\n      desk:\n        a: '
    write(root, {"test_case/odd.py": text + value.replace("\\", "\\\\") + '\n    """\n'})
    (found,) = problems(root, "odd.py:test_a")
    assert NO_JSON[value] in found and found.startswith(("test_case/odd.py:2:", "test_case/odd.py:7:"))


@pytest.mark.parametrize(
    "value", ["&x {k: 1}, b: *x", "[&y [1], *y, *y]", "!!str 5", "!!float 1", "=x", "0x1F, c: 1e3"]
)
def test_an_alias_and_a_core_tag_have_a_form_in_json(root, value):
    test = 'def test_a(x, judge):\n    """! {query: q, scenario: shop, init: {desk: {a: %s}}}"""\n'
    write(root, {"test_case/odd.py": test % value})
    (task,) = load_tasks(root, "helper", ["odd.py:test_a"])
    assert json.loads(json.dumps(task.server_config(), allow_nan=False)) == task.server_config()


def test_a_name_that_no_file_can_have_is_told_like_any_that_is_missing(root):
    name = "a" * 300
    write(root, {"test_case/odd.py": f'def test_a(x, judge):\n    """! {{query: q, scenario: {name}}}"""\n'})
    assert "no scenario a" in problems(root, "odd.py:test_a")[0]
    assert "no file a" in problems(root, f"{name}.py:test_a")[0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from("ab"),
    lambda v: st.lists(v, max_size=2) | st.dictionaries(st.sampled_from("xyz"), v, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200)
@given(JSON, JSON)
def test_merging_follows_its_law_at_every_level(base, over):
    result = merged(base, over)
    if isinstance(base, dict) and isinstance(over, dict):
        assert list(result) == [*base, *(key for key in over if key not in base)]
        for key in result:
            expected = merged(base[key], over[key]) if key in base and key in over else over.get(key, base.get(key))
            assert result[key] == expected
    elif isinstance(base, list) and isinstance(over, list):
        assert result == base + over
    else:
        assert result == over


def test_the_merge_of_the_specification():
    base, over = {"a": [1], "b": {"x": 1, "y": 2}}, {"a": [2], "b": {"y": None}, "c": 3}
    assert merged(base, over) == {"a": [1, 2], "b": {"x": 1, "y": None}, "c": 3}


def test_the_content_hash_ignores_names_and_places_but_not_what_decides(root, tmp_path):
    one, two = load_tasks(root, "helper")
    other = write(tmp_path / "copy", {"agent/me.yaml": AGENT, "scenario/mine.yaml": SCENARIO})
    write(other, {"test_case/renamed.py": PYTHON.replace("shop", "mine").replace("test_one", "test_1")})
    copy = load_tasks(other, "me", ["renamed.py:test_1"])[0]
    assert copy.content_hash() == one.content_hash() != two.content_hash()
    write(other, {"test_case/renamed.py": PYTHON.replace("shop", "mine").replace("assert helper(x)", "assert True")})
    assert load_tasks(other, "me", ["renamed.py:test_one"])[0].content_hash() != one.content_hash()


def test_keys_that_yaml_reads_as_no_text_are_hashed_as_a_server_gets_them(root):
    text = 'def test_k(x, judge):\n    """! {query: q, scenario: shop, init: {shop: {id: 1, %s: false, 2: x}}}"""\n'
    hashes = []
    for key in ("on", '"true"', "off"):
        write(root, {"test_case/keys.py": text % key})
        hashes.append(load_tasks(root, "helper", ["keys.py:test_k"])[0].content_hash())
    assert hashes[0] == hashes[1] != hashes[2]


def test_unlimited_turns_are_the_default(root):
    write(root, {"test_case/plain.py": 'def test_p(x, judge):\n    """! {query: q, scenario: shop}"""\n'})
    assert load_tasks(root, "helper", ["plain.py:test_p"])[0].max_agent_sim_turns == sys.maxsize
    assert Task.__dataclass_fields__["max_user_sim_turns"].default == 10


def test_a_file_that_cannot_be_parsed_is_told_once_and_not_for_each_of_its_tests(root):
    write(root, {"test_case/four.py": "def test_(:\n"})
    (root / "dataset/test_case/five.py").write_bytes(b"\xff\xfe")
    first, second = problems(root, "four.py:a", "four.py:b", "five.py:a")
    assert first.startswith("test_case/four.py:1: not valid Python") and second.startswith(
        "test_case/five.py: cannot be read"
    )


def test_a_test_whose_uid_can_be_in_no_selector_is_told(root):
    case = {"scenario": "shop", "query": "q", "test_code": ""}
    cases = {"test_cases": [{**case, "uid": uid} for uid in ("a:b", "", "c d")]}
    write(root, {"test_case/names.yaml": json.dumps(cases, indent=1), "test_case/zz:z.py": PYTHON})
    assert [p.split(": ", 1)[1].partition("\n")[0] for p in problems(root)] == [
        "uid 'a:b' can be in no selector <file>:<test>",
        "uid '' can be in no selector <file>:<test>",
        "can be in no selector <file>:<test>, since its name has a :",
    ]
    assert load_tasks(root, "helper", ["shop_orders_v2.py:test_one"])


def test_a_mark_at_the_beginning_of_a_file_is_no_part_of_it(root, tmp_path):
    files = {"agent/helper.yaml": AGENT, "scenario/shop.yaml": SCENARIO, "test_case/shop_orders_v2.py": PYTHON}
    want = load_tasks(root, "helper")
    case = {"uid": "t", "scenario": "shop", "query": "q", "test_code": CODE}
    write(root, {name: "\ufeff" + text for name, text in files.items()})
    assert load_tasks(root, "helper") == want
    write(root, {"test_case/form.yaml": "\ufeff" + json.dumps({"test_cases": [case]})})
    listed, rows = tmp_path / "list.yaml", tmp_path / "rows.jsonl"
    listed.write_text("\ufeff- form.yaml:t\n", encoding="utf-8")
    (task,) = load_tasks(root, "helper", read_selectors(listed))
    dump_tests([task], rows)
    rows.write_text("\ufeff" + rows.read_text(encoding="utf-8"), encoding="utf-8")
    assert load_tasks(rows, "") == [task]


def test_a_test_that_would_never_run_is_told(root):
    text = {
        "yields": "yield 1",
        "yields_inside": "for i in x:\n        if i:\n            assert (yield from i)",
        "has_a_generator": "def inner():\n        yield 1\n    assert list(inner()) and all(i for i in x)",
        "has_a_lambda": "assert lambda: (yield)",
    }
    code = "".join(
        f'def {name}(x, judge):\n    """! {{query: q, scenario: shop}}"""\n    {body}\n' for name, body in text.items()
    )
    wrapped = "import contextlib\n@contextlib.contextmanager\n" + code.partition("\ndef yields_inside")[0] + "\n"
    write(root, {"test_case/never.py": code, "test_case/wrapped.py": wrapped})
    assert problems(root) == [
        "test_case/never.py:1: yields yields, so it cannot be a test",
        "test_case/never.py:4: yields_inside yields, so it cannot be a test",
    ]


@pytest.mark.parametrize("wrong", ["agent", "query"])
def test_a_fixture_that_nobody_declares_is_told_together_with_what_else_is_wrong(root, wrong):
    given = "scenario: shop" if wrong == "query" else "{query: q, scenario: shop}"
    write(root, {"test_case/asks.py": f'def test_a(x, judge, clok):\n    """! {given}"""\n'})
    found = problems(root, "asks.py:test_a", agent="helpr" if wrong == "agent" else "helper")
    assert len(found) == 2 and any("asks for the fixture clok" in problem for problem in found), found


def test_a_missing_scenario_is_told_wherever_it_is_named_and_a_broken_one_once(root):
    write(
        root,
        {
            "test_case/refers.py": 'def test_a(x, judge):\n    """! {query: q, scenario: gone}"""\n'
            'def test_b(x, judge):\n    """! {query: q, scenario: gone}"""\n'
            'def test_c(x, judge):\n    """! {query: q, scenario: bad}"""\n'
            'def test_d(x, judge):\n    """! {query: q, scenario: bad}"""\n',
            "scenario/bad.yaml": "tools: []\n",
        },
    )
    assert [problem.partition("\n")[0] for problem in problems(root)] == [
        "test_case/refers.py:2: no scenario gone: scenario/gone.yaml does not exist",
        "test_case/refers.py:4: no scenario gone: scenario/gone.yaml does not exist",
        "scenario/bad.yaml:1: a scenario needs the key world_state",
    ]
