"""Writes the sample dataset: `python -m tbexp.samples.generate`.

Decided here: the files' layout and text. The same situations give the same bytes; a test holds the committed files
against a fresh run. The expected rows stand literally in each test, so that a test can be read on its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tbexp.samples import data_root
from tbexp.samples.shipped import held_out, shipped
from tbexp.samples.situation import Call, Situation, Step
from tbexp.samples.speech import POLICY, SYSTEM
from tbexp.samples.tools import TOOLS

SCENARIO = "rental_desk"

_HEAD = '''"""!
scenario: {scenario}
max_user_sim_turns: 4
max_agent_sim_turns: 12
tags: ["domain:{topic}"]
"""

from __future__ import annotations

from typing import Any


def changes(x: Any) -> Any:
    """What the agent changed: table -> id -> the new row, or the changed fields of an old one."""
    return x.effects["{scenario}"]["changes"]
'''


def files() -> dict[str, str]:
    """Path under the dataset's folder -> text."""
    topics: dict[str, list[str]] = {}
    for uid, of in shipped().items():
        topics.setdefault(of.topic, []).append(_test(uid, of))
    candidates = [uid for uid in shipped() if uid not in held_out()]
    out = {
        "dataset/agent/agent.yaml": _agent(),
        f"dataset/scenario/{SCENARIO}.yaml": _scenario(),
        "servers/servers.yaml": _servers(),
        "releases/candidates.yaml": _list(candidates),
        "releases/held_out.yaml": _list(held_out()),
        "solutions.json": _solutions(),
    }
    for topic, tests in topics.items():
        out[f"dataset/test_case/{topic}.py"] = "\n\n".join([_HEAD.format(scenario=SCENARIO, topic=topic), *tests])
    return out


def write(root: Path) -> None:
    for path, text in files().items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8", newline="\n")


def topics_table() -> str:
    """The tasks by topic, as Markdown: how many there are, need a question, and are right only when refused."""
    lines = ["| topic | shapes | candidates | held out | ask first | change nothing |", "|---|---|---|---|---|---|"]
    tasks = shipped()
    for topic in [*dict.fromkeys(of.topic for of in tasks.values()), "all"]:
        of_topic = {uid: of for uid, of in tasks.items() if topic in (of.topic, "all")}
        held = sum(uid in held_out() for uid in of_topic)
        counts = (
            len({of.shape for of in of_topic.values()}),
            len(of_topic) - held,
            held,
            sum(of.asks for of in of_topic.values()),
            sum(of.refuses for of in of_topic.values()),
        )
        lines.append(f"| {topic} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def _agent() -> str:
    return f"system_instructions: {json.dumps(SYSTEM)}\nbuiltin_tools: []\n"


def _scenario() -> str:
    tools = "".join(f"  - name: {tool.name}\n" for tool in TOOLS)
    return f"world_state:\n  {SCENARIO}: {{}}\ntools:\n{tools}bot_instructions: |-\n{_indented(POLICY, 2)}\n"


def _servers() -> str:
    return f"""use_internal_servers: false
servers:
  {SCENARIO}:
    type: mcp-process
    transport: stdio
    command: ["{{python}}", "-m", "tbexp.samples.server"]
"""


def _list(uids: Any) -> str:
    return "".join(f"- {uid}\n" for uid in sorted(uids))


def _solutions() -> str:
    lines = [f"{json.dumps(uid)}: {json.dumps([_step(step) for step in of.right])}" for uid, of in shipped().items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _step(step: Step) -> dict[str, Any]:
    if isinstance(step, Call):
        return {"tool": step.tool, "arguments": dict(step.arguments)}
    return {"say": step.text}


def _test(uid: str, of: Situation) -> str:
    lines = [f"def {uid.split(':')[1]}(x: Any, judge: Any) -> None:", '    """!', f"    query: {json.dumps(of.query)}"]
    lines += ["    user_context: |-", _indented(of.user_context, 6), "    init:", f"      {SCENARIO}:"]
    lines += ["        data_patch:", *_rows(of.rows), '    """', *_assertion(of)]
    return "\n".join(lines) + "\n"


def _rows(rows: Mapping[str, Any]) -> Iterator[str]:
    for table, entries in rows.items():
        yield f"          {table}:"
        for row in entries:
            yield f"            - {{{', '.join(f'{name}: {_scalar(value)}' for name, value in row.items())}}}"


def _scalar(value: Any) -> str:
    plain = isinstance(value, str) and all(part.isidentifier() for part in value.split(" "))
    return value if plain else json.dumps(value)


def _assertion(of: Situation) -> Iterator[str]:
    if of.refuses:
        yield '    assert changes(x) == {}, "the policy forbids it"'
        return
    yield "    assert changes(x) == {"
    for table, rows in of.expected.items():
        yield f'        "{table}": {{'
        for key, row in rows.items():
            yield from _entry(key, row)
        yield "        },"
    yield "    }"


def _entry(key: str, row: Mapping[str, Any]) -> Iterator[str]:
    fields = [f'"{name}": {_python(value)}' for name, value in row.items()]
    line = f'            "{key}": {{{", ".join(fields)}}},'
    if len(line) <= 120:
        yield line
        return
    yield f'            "{key}": {{'
    yield from (f"                {field}," for field in fields)
    yield "            },"


def _python(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _indented(text: str, by: int) -> str:
    return "\n".join(" " * by + line for line in text.split("\n"))


if __name__ == "__main__":
    write(data_root())
