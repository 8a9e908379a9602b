"""Tasks of the public benchmark are left out of a pool, and a pool that holds one is not trained on.

No text of the benchmark is needed: one task here has the uid of a benchmark task, and another has a query whose hash
the guard is given, as if it were a renamed copy.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

UID = "sandbox_external_retail_group1.py:test_case_ST002_001"
COPY = "copied.py:test_mine"
QUERY = "Please sow 5 rows of beans in bed B3."
TEST = '''"""!
scenario: allotment
"""


def {name}(x, judge):
    """!
    query: {query}
    """
    assert x.effects["garden"]["beds"]["B3"]["rows"] == 5
'''
GUARDED = (str(Path(__file__).parent / "data" / "guarded.py"), QUERY)
SMALL = ("probe.tb_infer=true", "tasks.candidates=null", "probe.attempts=3", "selection.pool=all", "tracking=none")


@pytest.fixture(scope="module")
def place(new_place: Callable[[], Any]) -> Any:
    """A garden with two more tasks, probed; its pool is what the guard left."""
    made = new_place()
    folder = made.garden / "dataset" / "test_case"
    for uid, query in ((UID, "Sow 5 rows of beans in bed B3."), (COPY, QUERY)):
        file, name = uid.split(":")
        (folder / file).write_text(TEST.format(name=name, query=query))
    (folder / "mole.py").unlink()
    done = made.run("stages=[probe,select]", *SMALL, program=GUARDED)
    assert done.returncode == 0, done.stderr
    made.said = done.stderr
    return made


def test_selection_leaves_them_out_and_says_how_many(place: Any) -> None:
    assert "2 benchmark tasks excluded" in place.said
    pool = yaml.safe_load((place.run_dir / "select" / "pool.yaml").read_text())
    assert pool and not {UID, COPY} & set(pool)


def test_their_rows_are_labelled(place: Any) -> None:
    labelled = {row["uid"] for row in place.rows() if row["evaluation_only"]}
    assert labelled == {UID, COPY}


def test_the_attempts_are_there_as_rows_of_tb_infer_and_can_be_selected_from(place: Any) -> None:
    lines = (place.run_dir / "probe-tb_infer.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    own = place.rows()
    assert [(r["uid"], r["metadata"]["repetition"]) for r in rows] == sorted((r["uid"], r["attempt"]) for r in own)
    assert {r["uid"] for r in rows if r["metadata"].get("evaluation_only")} == {UID, COPY}
    assert all(r["messages"][0]["role"] == "system" and r["metadata"]["scenario"] == "allotment" for r in rows)
    words = ("stages=[select]", "probe.rows=[run/probe-tb_infer.jsonl]", "hydra.run.dir=again", *SMALL[1:])
    done = place.run(*words, program=GUARDED)
    assert done.returncode == 0, done.stderr
    pools = [yaml.safe_load((place.folder / run / "select" / "pool.yaml").read_text()) for run in ("run", "again")]
    assert (
        pools[0] == pools[1]
    )  # by the content of its task a renamed copy is known, though its rows are made elsewhere


def test_of_rows_alone_a_renamed_copy_is_known_by_its_messages_and_by_its_label(place: Any) -> None:
    lines = [json.loads(line) for line in (place.run_dir / "probe-tb_infer.jsonl").read_text().splitlines()]
    bare = [{**row, "metadata": {"repetition": row["metadata"]["repetition"]}} for row in lines]
    dumb = [{**row, "messages": []} for row in bare]
    wanted = {"messages": bare, "labels": [{**row, "messages": []} for row in lines], "neither": dumb}
    for name, rows in wanted.items():
        (place.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        words = ("stages=[select]", f"probe.rows=[{name}.jsonl]", f"hydra.run.dir=by-{name}", *SMALL[2:])
        done = place.run(*words, "tasks.root=null", "tasks.held_out=null", program=GUARDED)
        assert done.returncode == 0, done.stderr
        pool = yaml.safe_load((place.folder / f"by-{name}" / "select" / "pool.yaml").read_text())
        assert pool and (COPY in pool) == (name == "neither") and UID not in pool
        assert ("is not recognized" in done.stderr) == (name != "messages")


@pytest.mark.train
@pytest.mark.parametrize("uid", [UID, COPY])
def test_a_pool_file_that_holds_one_is_not_trained_on(place: Any, uid: str) -> None:
    file, config = place.run_dir / "select" / "train.yaml", place.run_dir / "config.yaml"
    whole, settings = file.read_text(), config.read_text()
    file.write_text(whole + f"- {uid}\n")
    config.unlink()  # a selection that was brought here: of a run's own folder the policy could not change
    try:
        done = place.run("stages=[train]", *SMALL, "policy=local", "policy.limits.tokens=64", program=GUARDED)
    finally:
        file.write_text(whole)
        config.write_text(settings)
    assert done.returncode == 2, done.stderr
    assert "evaluation only" in done.stderr and uid in done.stderr and "Traceback" not in done.stderr
    assert not list((place.folder / "stages").glob("train/*"))
