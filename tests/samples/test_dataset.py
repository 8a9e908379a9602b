"""The shipped tasks: their number and kinds, their recorded solutions, and what their checks tell apart."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tbexp.samples import data_root, solution
from tbexp.samples.desk import Desk
from tbexp.samples.generate import files, topics_table, write
from tbexp.samples.shipped import held_out, shipped
from tbexp.samples.situation import Call, Situation
from tbexp.samples.speech import POLICY
from tbexp.samples.tools import ITEMS, SIZES, TOOLS
from tbexp.tasks import Task, load_tasks

UIDS = list(shipped())
WRITES = {tool.name for tool in TOOLS if not tool.name.startswith(("get_", "find_", "quote_"))}


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    return {task.uid: task for task in load_tasks(data_root(), "agent")}


def passes(task: Task, desk: Desk) -> bool:
    names: dict[str, Any] = {}
    exec(compile(task.test_code, task.uid, "exec"), names)
    x = SimpleNamespace(effects={"rental_desk": {"changes": desk.changes()}}, response="")
    try:
        names["__tb_test_fn"](x=x, judge=None)
    except AssertionError:
        return False
    return True


def desk_of(task: Task) -> Desk:
    return Desk(task.server_config()["rental_desk"]["data_patch"])


def solved(task: Task) -> Desk:
    desk = desk_of(task)
    for reading in solution(task.uid):
        for call in reading.calls:
            assert not desk.call(call.name, call.arguments).startswith("error")
    return desk


def test_the_committed_dataset_is_what_the_generator_writes(tmp_path: Path) -> None:
    write(tmp_path)
    fresh = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    kept = {
        str(path.relative_to(data_root())): path.read_bytes()
        for path in data_root().rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert fresh == kept
    assert set(fresh) == set(files())


def test_the_releases_split_the_tasks(tasks: dict[str, Task]) -> None:
    candidates = yaml.safe_load((data_root() / "releases/candidates.yaml").read_text())
    held = yaml.safe_load((data_root() / "releases/held_out.yaml").read_text())
    assert sorted(candidates + held) == sorted(tasks) == sorted(UIDS)
    assert set(held) == held_out()
    assert len(candidates) >= 64 and len(held) >= 48


def test_no_two_tasks_are_alike() -> None:
    assert len({of.content() for of in shipped().values()}) == len(UIDS)


@pytest.mark.parametrize("part", ["candidates", "held out"])
def test_each_part_has_six_topics_twenty_shapes_a_third_to_ask_and_a_sixth_to_refuse(part: str) -> None:
    of = [task for uid, task in shipped().items() if (uid in held_out()) == (part == "held out")]
    assert len({task.topic for task in of}) >= 6
    assert len({kind(task) for task in of}) >= 20
    assert sum(task.asks and not task.refuses for task in of) * 3 >= len(of)
    assert sum(task.refuses for task in of) * 6 >= len(of)


def kind(of: Situation) -> tuple[str, ...]:
    """The solution's steps without their values."""
    return tuple(step.tool if isinstance(step, Call) else "say" for step in of.right)


def test_a_third_of_the_solutions_need_what_only_the_user_knows() -> None:
    """Some value of a call stands neither in the request nor in what the tools told before."""
    for of in shipped().values():
        if not of.asks:
            continue
        seen, needed = of.query, []
        desk = Desk(of.rows)
        for step in of.right:
            if isinstance(step, Call):
                values = set(leaves(step.arguments)) - {*SIZES}
                needed += [value for value in values if value not in words(seen)]
                seen += " " + desk.call(step.tool, step.arguments)
        answers = words(" ".join(answer for _, answer in of.answers))
        assert any(value in answers for value in needed), of.shape


@pytest.mark.parametrize("uid", [uid for uid in UIDS if shipped()[uid].asks and not shipped()[uid].refuses])
def test_no_tool_tells_what_has_to_be_asked(uid: str) -> None:
    """Whatever is looked up, with all that was found before: the value is not there, or two others fit as well."""
    of = shipped()[uid]
    desk, seen, told = Desk(of.rows), set(words(of.query)), ""
    reads = {tool.name: tool for tool in TOOLS if tool.name not in WRITES}
    while True:
        ids = [word for word in sorted(seen) if word[:1].isupper() and word[-1:].isdigit()]
        for name, tool in reads.items():
            (first, *_) = tool.input_schema["properties"]
            for value in SIZES if first == "size" else ids:
                told += " " + desk.call(name, {first: value} | ({"max_rate": None} if first == "size" else {}))
        if set(words(told)) <= seen:
            break
        seen |= set(words(told))
    answers = words(" ".join(answer for _, answer in of.answers))
    steps = [step for step in of.right if isinstance(step, Call) and step.tool in WRITES]
    needed = {value for step in steps for value in leaves(step.arguments)}
    only_asked = {value for value in needed - seen if value in answers or re.fullmatch(r"[A-Z]{1,2}-?\d+", value)}
    free = {row["id"]: row["size"] for row in of.rows["machines"] if row.get("status", "free") == "free"}
    one_of_three = {value for value in needed & {*free} if [*free.values()].count(free[value]) >= 3}
    assert only_asked or one_of_three, needed


def words(text: str) -> list[str]:
    return text.replace(".", " ").replace(",", " ").split()


def leaves(arguments: Any) -> list[str]:
    if isinstance(arguments, dict):
        return list(itertools.chain.from_iterable(leaves(value) for value in arguments.values()))
    if isinstance(arguments, list):
        return list(itertools.chain.from_iterable(leaves(value) for value in arguments))
    return [str(arguments)]


@pytest.mark.parametrize("uid", UIDS)
def test_the_recorded_solution_passes_and_doing_nothing_fails_unless_refusing_is_right(
    uid: str, tasks: dict[str, Task]
) -> None:
    task = tasks[uid]
    assert passes(task, solved(task))
    assert passes(task, desk_of(task)) == shipped()[uid].refuses
    last = solution(uid)[-1]
    assert last.text.strip().endswith("<DONE>") and not last.calls


@pytest.mark.parametrize("uid", UIDS)
def test_an_extra_change_fails(uid: str, tasks: dict[str, Task]) -> None:
    task = tasks[uid]
    for name, arguments in extras(shipped()[uid]):
        desk = solved(task)
        assert not desk.call(name, arguments).startswith("error")
        assert not passes(task, desk), name


def extras(of: Situation) -> list[tuple[str, dict[str, Any]]]:
    bystander = of.rows["rentals"][-1]
    return [
        ("open_ticket", {"customer": bystander["customer"], "topic": "safety", "urgent": False}),
        ("extend_rental", {"rental": bystander["id"], "days": 1}),
        ("ask_approval", {"rental": bystander["id"], "action": "return"}),
    ]


@pytest.mark.parametrize("uid", [uid for uid in UIDS if not shipped()[uid].refuses])
def test_a_missing_change_and_a_wrong_value_fail(uid: str, tasks: dict[str, Task]) -> None:
    task = tasks[uid]
    calls = [call for reading in solution(uid) for call in reading.calls if call.name in WRITES]
    for index, left_out in enumerate(calls):
        desk = desk_of(task)
        for call in calls[:index] + calls[index + 1 :]:
            desk.call(call.name, call.arguments)
        assert not passes(task, desk), f"without {left_out.name}"
        for name, value in left_out.arguments.items():
            for other in different(value):
                desk = desk_of(task)
                for call in calls[:index]:
                    desk.call(call.name, call.arguments)
                if desk.call(left_out.name, {**left_out.arguments, name: other}).startswith("error"):
                    continue
                for call in calls[index + 1 :]:
                    desk.call(call.name, call.arguments)
                assert not passes(task, desk), f"{left_out.name} with {name}={other}"


def different(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 10]
    if isinstance(value, list):
        return [value[:1], [*value, next(item for item in ITEMS if item not in value)]]
    pairs = {"minor": "major", "major": "minor", "return": "downgrade", "downgrade": "return"}
    return [pairs[value]] if value in pairs else []


@pytest.mark.parametrize("uid", UIDS)
def test_every_seeded_mistake_fails_and_none_meets_an_error(uid: str, tasks: dict[str, Task]) -> None:
    for name, steps in shipped()[uid].wrong.items():
        desk = desk_of(tasks[uid])
        for step in steps:
            if isinstance(step, Call):
                assert not desk.call(step.tool, step.arguments).startswith("error")
        assert not passes(tasks[uid], desk), name


def test_every_tool_is_used_and_every_argument_type_occurs() -> None:
    used = Counter(call.name for uid in UIDS for reading in solution(uid) for call in reading.calls)
    assert set(used) == {tool.name for tool in TOOLS} and len(TOOLS) >= 12
    kinds = {
        schema.get("type", "null" if "anyOf" in schema else "")
        for tool in TOOLS
        for schema in tool.input_schema["properties"].values()
    }
    assert kinds >= {"integer", "boolean", "number", "string", "array", "null"}


def test_the_guide_shows_the_generators_counts_policy_and_tools() -> None:
    guide = (Path(__file__).parents[2] / "docs/sample-domain.md").read_text()
    assert topics_table() in guide
    assert POLICY in guide
    assert all(f"| `{tool.name}` |" in guide for tool in TOOLS)
