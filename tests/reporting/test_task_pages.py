from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tbexp.attempts import AttemptRow, AttemptStore
from tbexp.reporting import is_current, task_pages, write_report
from tbexp.reporting.clusters import against, clusters, done
from tbexp.reporting.task_pages import advantages, page_names

UID = "swap.py:test_<b>swap</b>"
RIGHT = {"desk": {"changes": {"rentals": {"R1": {"machine": "M2"}}, "approvals": {"A-1": {"state": "asked"}}}}}
WRONG = {"desk": {"changes": {"rentals": {"R1": {"machine": "M9"}}}}}


def trajectory(effects: dict[str, Any], *calls: str, text: str = "Done.") -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"T": "Text", "role": "user", "content": "Swap it.", "metadata": {}}]
    for i, name in enumerate(calls):
        call = {"T": "ToolCall", "name": name, "arguments": {"rental": "R1"}, "id": f"c{i}", "metadata": {}}
        messages.append({"T": "ParallelToolCall", "tool_calls": [call], "metadata": {}})
        messages.append({"T": "ToolResponse", "name": name, "content": "fine", "id": f"c{i}", "metadata": {}})
    messages.append({"T": "Text", "role": "assistant", "content": text, "metadata": {"tag": "text"}})
    return {"messages": messages, "effects": effects, "verdict": {"message": "<i>wrong</i>", "line": 3}}


def write_attempts(folder: Path, wrong: int, total: int, text: str = "Done.") -> None:
    with AttemptStore(folder) as store:
        for number in range(total):
            bad = number < wrong
            row = AttemptRow(UID, number, not bad, float(not bad), finish_reason="done", tool_calls=2)
            calls = ("swap",) if bad else ("ask_approval", "swap")
            store.append(row, trajectory(WRONG if bad else RIGHT, *calls, text=text))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    write_attempts(folder / "evaluate" / "base", wrong=15, total=20, text="<script>alert(1)</script>")
    write_attempts(folder / "evaluate" / "trained", wrong=0, total=20)
    groups = [
        {"step": 1, "draw": 0, "task": UID, "kind": "flat", "used": False, "rewards": [0.0, 0.0]},
        {"step": 1, "draw": 0, "task": UID, "kind": "mixed", "used": True, "rewards": [1.0, 0.0]},
    ]
    (folder / "train" / "verl").mkdir(parents=True)
    (folder / "train/verl/groups.jsonl").write_text("".join(json.dumps(group) + "\n" for group in groups))
    return folder


def test_a_page_says_that_fifteen_of_twenty_changed_without_approval(run: Path) -> None:
    write_report(run)
    (page,) = (run / "report/tasks").iterdir()
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.read_text()))
    assert "changed rentals; without ask_approval" in text
    cluster = text[text.index("changed rentals; without") :]
    assert "15 of 20 0 passed" in cluster and "0 of 20" in cluster
    assert "evaluate base passed 5 of 20" in text and "evaluate trained passed 20 of 20" in text
    assert "+ desk.changes.rentals.R1.machine = &#34;M9&#34;" in text
    assert "− desk.changes.approvals.A-1.state" in text
    assert "1 group, 1 of them trained on" in text and "+0.71 -0.71" in text


@pytest.mark.parametrize(
    "name", ["evaluate/base/trajectories.jsonl", "evaluate/trained/trajectories.jsonl", "train/verl/groups.jsonl"]
)
def test_a_report_is_made_again_when_what_its_pages_are_made_of_is_gone_or_restored(run: Path, name: str) -> None:
    write_report(run)
    pages = page_of(run)
    assert is_current(run)
    kept = run / "kept"
    (run / name).rename(kept)
    assert not is_current(run)
    write_report(run)
    assert page_of(run) != pages and is_current(run)
    kept.rename(run / name)
    assert not is_current(run)
    write_report(run)
    assert page_of(run) == pages and is_current(run)
    (run / "report/report.html").unlink()
    assert not is_current(run)


def test_a_report_stays_as_it_is_where_only_the_place_of_the_run_or_of_its_secrets_has_changed(run: Path) -> None:
    settings: dict[str, Any] = {"name": "n", "launcher": {"secrets_file": "/a"}, "prices": {"gpu_hour_usd": 1.0}}
    settings["policy"] = {"endpoint": {"model": "m", "api_key_env": "A"}}

    def write() -> None:
        (run / "config.yaml").write_text(yaml.safe_dump(settings))

    write()
    write_report(run)
    settings["launcher"] = {"secrets_file": "/b", "partition": "other"}
    settings["policy"]["endpoint"]["api_key_env"] = "B"
    settings["tracking"] = {"uri": "http://localhost"}
    write()
    assert is_current(run)
    moved = run.parent / "elsewhere" / run.parent.name / run.name
    moved.parent.mkdir(parents=True)
    shutil.copytree(run, moved)
    assert is_current(moved)
    settings["prices"]["gpu_hour_usd"] = 2.0
    write()
    assert not is_current(run)


@pytest.mark.parametrize("place", ["evaluate/base", "probe"])
def test_attempts_that_another_run_adds_to_a_shared_store_are_none_of_this_report(run: Path, place: str) -> None:
    folder = run / place
    (run / "config.yaml").write_text("evaluation: {attempts: 20}\nprobe: {attempts: 20}\n")
    if not folder.exists():
        shutil.copytree(run / "evaluate/base", folder)
    write_report(run)
    pages = page_of(run)
    rows = [json.loads(line) for line in (folder / "attempts.jsonl").read_text().splitlines()]
    more = [{**row, "attempt": row["attempt"] + len(rows)} for row in rows]
    with (folder / "attempts.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in more)
    with (folder / "trajectories.jsonl").open("a") as file:
        file.write("{}\n")
    assert is_current(run)
    write_report(run)
    assert page_of(run) == pages


def page_of(run: Path) -> str:
    return next((run / "report/tasks").iterdir()).read_text()


def test_what_models_and_tasks_say_is_never_interpreted(run: Path) -> None:
    write_report(run)
    for page in [run / "report/tasks.html", *(run / "report/tasks").iterdir()]:
        html = page.read_text()
        assert "<script>alert" not in html and "<b>swap" not in html and "<i>wrong" not in html
        assert not re.search(r"(src|href)=.(https?:|//)", html)


def test_a_page_that_is_full_says_where_the_other_conversations_stand(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_pages, "BUDGET", 500)
    write_report(run)
    (page,) = (run / "report/tasks").iterdir()
    html = page.read_text()
    assert "it stands in base/trajectories.jsonl@" in html and "ask_approval({" in html


def test_what_is_not_known_to_have_changed_nothing_is_not_said_to(run: Path) -> None:
    folder = run / "evaluate" / "trained"
    rows = [json.loads(line) for line in (folder / "attempts.jsonl").read_text().splitlines()]
    rows[0] |= {"passed": None, "system_error": {"kind": "grader", "message": "it died"}}
    rows[1]["trajectory"] = None
    (folder / "attempts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "trajectories.jsonl").unlink()
    write_report(run)
    (page,) = (run / "report/tasks").iterdir()
    html = page.read_text()
    part = html[html.index('id="trained-0"') :]
    assert "It changed nothing" not in part and "What it changed is not known." in part
    assert "The conversation was not kept, or cannot be read." in part


def test_rows_of_tb_infer_have_pages_with_their_conversations(tmp_path: Path) -> None:
    def row(uid: str, n: int, messages: list[dict[str, Any]], **more: Any) -> str:
        result = {"result": n > 0, "tb": "<b>why</b>", "lineno": 3, "line_content": "assert x", "metadata": {}}
        metadata = {"repetition": n, "scenario": "s"}
        plain = {"uid": uid, "messages": messages, "test_result": result, "metadata": metadata, "finish_reason": "done"}
        return json.dumps(plain | more) + "\n"

    native = trajectory({}, "swap", text="<script>alert(1)</script>")["messages"]
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"bed": 1}'}}
    chat = [
        {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "user", "content": "Swap it?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "name": "look", "content": "a bed"},
    ]
    lines = [row("a:1", 0, native), "\n", row("a:1", 1, chat), row("b:1", 0, [])]
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b"\xef\xbb\xbf" + "".join(lines).encode())
    (tmp_path / "run").mkdir()
    config = {"evaluation": {"attempts": 2, "rows": [str(rows)]}}
    (tmp_path / "run/config.yaml").write_text(json.dumps(config))
    report = write_report(tmp_path / "run").parent
    assert (report / "report.html").read_text().count("Every task") == 1
    page = (report / "tasks/a_1.html").read_text()
    assert "rows passed 1 of 2" in page and "rows 0: failed" in page and "rows 1: passed" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "&lt;b&gt;why&lt;/b&gt;" in page
    assert "Be kind." in page and "look({&#34;bed&#34;: 1})" in page and "look: a bed" in page
    assert page.count("What it changed is not known.") == 2 and "changed nothing" not in page
    assert "The conversation was not kept" in (report / "tasks/b_1.html").read_text()
    assert is_current(tmp_path / "run")
    rows.write_text("".join(lines).replace("a bed", "no bed"))
    assert not is_current(tmp_path / "run")


def test_clusters_are_by_what_changed_and_variants_by_exact_difference() -> None:
    other = {"desk": {"changes": {"rentals": {"R1": {"machine": "M7"}}}}}
    two = {"desk": {"changes": {"rentals": {"R1": {"machine": "M7"}, "R2": {"machine": "M7"}}}}}
    acts = [done("base", i, False, trajectory(e)) for i, e in enumerate([WRONG, other, WRONG, two, {}])]
    found = {c.label: [len(who) for _, who in c.variants] for c in clusters(acts)}
    assert found == {"changed rentals": [2, 1], "changed rentals (2 records)": [1], "changed nothing": [1]}
    assert against(acts[0].difference, acts) == ([], [])


@pytest.mark.parametrize(
    "effects", [None, {}, {"a": []}, {"a": "text"}, {"a": [[1], {"b": None}]}, {"a": {"1": {"2": 3}}}]
)
def test_a_difference_of_any_form_is_read(effects: Any) -> None:
    assert clusters([done("base", 0, None, {"effects": effects, "messages": []})])[0].label.startswith("changed ")


def test_page_names_differ_where_tasks_do() -> None:
    names = page_names(["a.py:x", "a_py:X", "a-py-x", "//"])
    assert len({name.lower() for name in names.values()}) == 4 and all(n.endswith(".html") for n in names.values())


def test_advantages_are_grpos() -> None:
    assert advantages([1.0, 0.0, 0.0, 1.0], by_std=True) == pytest.approx([0.866, -0.866, -0.866, 0.866], abs=1e-3)
    assert advantages([1.0, 0.0], by_std=False) == pytest.approx([0.5, -0.5])
    assert advantages([1.0, 1.0], by_std=True) == [0.0, 0.0]
