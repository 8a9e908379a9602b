from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbexp.attempts import AttemptRow, AttemptStore, canonical, digest
from tbexp.errors import UserError

FAULT = {"kind": "tool_timeout", "message": "no answer in 60 s"}


def row(uid: str = "a:x", attempt: int = 0, passed: bool | None = True, **more: object) -> AttemptRow:
    error = None if passed is not None else FAULT
    return AttemptRow(uid, attempt, passed, float(bool(passed)), error, **more)  # type: ignore[arg-type]


def test_a_row_comes_back_with_its_trajectory_after_reopening(tmp_path: Path) -> None:
    with AttemptStore(tmp_path) as store:
        assert store.append(row(seconds=1.5, domain="d"), {"messages": ["é\ud800", "\n"]})
    with AttemptStore(tmp_path) as store:
        (found,) = store.rows()
        assert store.trajectory(found) == {"messages": ["é\ud800", "\n"]}
        assert (found.seconds, found.domain) == (1.5, "d")


def test_a_system_error_is_kept_and_superseded_by_a_later_clean_row(tmp_path: Path) -> None:
    with AttemptStore(tmp_path) as store:
        store.append(row(passed=None))
        assert store.missing(["a:x"], 2) == [("a:x", 0), ("a:x", 1)]
        assert store.coverage(["a:x"], 2).system_errors == 1
        store.append(row(passed=False, tries=2))
        assert store.missing(["a:x"], 2) == [("a:x", 1)]
        assert [r.passed for r in store.rows()] == [False]
        assert [r.passed for r in store.history()] == [None, False]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_is_dropped_and_its_attempt_done_again(tmp_path: Path, cut: int, caplog: object) -> None:
    with AttemptStore(tmp_path) as store:
        store.append(row(attempt=0), {"t": 0})
        store.append(row(attempt=1), {"t": 1})
    file = tmp_path / "attempts.jsonl"
    file.write_bytes(file.read_bytes()[:-cut])
    with AttemptStore(tmp_path) as store:
        assert store.missing(["a:x"], 2) == [("a:x", 1)]
        assert "unfinished append" in caplog.text  # type: ignore[attr-defined]
        store.append(row(attempt=1), {"t": "again"})
        assert [store.trajectory(r) for r in store.rows()] == [{"t": 0}, {"t": "again"}]


def test_a_torn_trajectory_at_the_end_is_cut_before_the_next_is_appended(tmp_path: Path) -> None:
    with AttemptStore(tmp_path) as store:
        store.append(row(), {"t": 0})
    with (tmp_path / "trajectories.jsonl").open("ab") as file:
        file.write(b'{"t": "half')
    with AttemptStore(tmp_path) as store:
        store.append(row(attempt=1), {"t": 1})
        assert [store.trajectory(r) for r in store.rows()] == [{"t": 0}, {"t": 1}]
    assert len((tmp_path / "trajectories.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(("left", "torn"), [(None, ""), (0, ""), (0, '{"half'), (1, ""), (1, '{"uid"'), (2, "")])
@pytest.mark.parametrize("sync_every", [1, 64])
def test_rows_whose_trajectories_are_gone_count_and_are_never_given_those_of_later_attempts(
    tmp_path: Path, left: int | None, torn: str, sync_every: int, caplog: pytest.LogCaptureFixture
) -> None:
    with AttemptStore(tmp_path, sync_every=sync_every) as store:
        for attempt in range(3):
            store.append(row(attempt=attempt, passed=attempt != 1), {"t": attempt})
    file = tmp_path / "trajectories.jsonl"
    if left is None:
        file.unlink()
    else:
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:left]) + torn.encode())
    kept = left or 0
    with AttemptStore(tmp_path, read_only=True) as store:  # a reader changes nothing
        assert [store.trajectory(r) for r in store.rows()] == [{"t": n} if n < kept else None for n in range(3)]
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    with AttemptStore(tmp_path) as store:
        assert not store.missing(["a:x"], 3)
        store.append(row(attempt=3), {"t": 3})
        store.append(row(attempt=4), {"t": 4})
    assert f"the trajectories of {3 - kept} of its rows are gone" in caplog.text
    told = len(caplog.records)
    with AttemptStore(tmp_path) as store:
        assert [r.passed for r in store.rows()] == [True, False, True, True, True]
        found = [store.trajectory(r) for r in store.rows()]
    assert found == [{"t": n} if n < kept or n > 2 else None for n in range(5)]
    assert len(caplog.records) == told  # it is told once


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda line: b"x" * (len(line) - 1) + b"\n", "Expecting value"),
        (lambda line: line.replace(b'"a:x"', b'"a:y"'), "it is of uid a:y"),
        (lambda line: line.replace(b'attempt":0', b'attempt":7'), "it is of attempt 7"),
    ],
)
def test_a_damaged_trajectory_is_none_and_its_place_is_told(
    tmp_path: Path, damage: Callable[[bytes], bytes], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with AttemptStore(tmp_path) as store:
        for attempt in range(2):
            store.append(row(attempt=attempt), {"uid": "a:x", "attempt": attempt})
    file = tmp_path / "trajectories.jsonl"
    first, second = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(damage(first) + second)
    with AttemptStore(tmp_path, read_only=True) as store:
        assert [store.trajectory(r) for r in store.rows()] == [None, {"uid": "a:x", "attempt": 1}]
    assert f"{file}, {len(first)} bytes from byte 0" in caplog.text and says in caplog.text


def test_a_damaged_line_in_the_middle_is_named_with_file_and_line(tmp_path: Path) -> None:
    with AttemptStore(tmp_path) as store:
        store.append(row(attempt=0))
        store.append(row(attempt=1))
    file = tmp_path / "attempts.jsonl"
    file.write_text("{]\n" + file.read_text())
    with pytest.raises(UserError, match=r"attempts\.jsonl:1"):
        AttemptStore(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attempt": 10**30}, "attempt: a number beyond 2**53"),
        ({"seconds": 10**400}, "seconds: a number beyond 2**53"),
        ({"trajectory": "t.jsonl@x+3"}, "trajectory: 't.jsonl@x+3' is no FILE@START+LENGTH"),
        (None, "the line is no JSON object"),
    ],
)
def test_a_line_that_no_attempt_of_ours_can_be_is_named(
    changes: dict[str, object] | None, message: str, tmp_path: Path
) -> None:
    plain = None if changes is None else {**row(attempt=0).as_dict(), **changes}
    (tmp_path / "attempts.jsonl").write_text(json.dumps(plain) + "\n")
    with pytest.raises(UserError, match=re.escape(f"attempts.jsonl:1: {message}")):
        AttemptStore(tmp_path, read_only=True)


def test_a_second_clean_row_is_not_kept(tmp_path: Path) -> None:
    with AttemptStore(tmp_path) as store:
        assert store.append(row(passed=True))
        assert not store.append(row(passed=False))
        assert store.rows() == [row(passed=True)]
        assert store.coverage(["a:x"], 1).duplicates == 1


def test_shards_merge_and_equal_duplicates_count_once_while_contradicting_ones_are_refused(tmp_path: Path) -> None:
    for shard in ("0", "1"):
        with AttemptStore(tmp_path / shard, shard=shard) as store:
            store.append(row(uid=f"a:{shard}"), {"s": shard})
            store.append(row(uid="a:both"), {"s": shard})
    merged = tmp_path / "merged"
    merged.mkdir()
    for file in [*(tmp_path / "0").glob("*.jsonl"), *(tmp_path / "1").glob("*.jsonl")]:
        (merged / file.name).write_bytes(file.read_bytes())
    store = AttemptStore(merged, read_only=True)
    assert [r.uid for r in store.rows()] == ["a:0", "a:1", "a:both"]
    assert [store.trajectory(r) for r in store.rows()] == [{"s": "0"}, {"s": "1"}, {"s": "0"}]
    assert store.duplicates == 1
    with AttemptStore(tmp_path / "1", shard="2") as other:
        other.append(row(uid="a:0", passed=False))
    (merged / "attempts-2.jsonl").write_bytes((tmp_path / "1" / "attempts-2.jsonl").read_bytes())
    with pytest.raises(UserError, match="disagree"):
        AttemptStore(merged, read_only=True)


def test_two_processes_cannot_write_one_store_but_one_can_read_it(tmp_path: Path) -> None:
    program = (
        "import sys; from tbexp.attempts import AttemptStore; from tbexp.errors import UserError\n"
        "AttemptStore(sys.argv[1], read_only=True)\n"
        "try: AttemptStore(sys.argv[1])\n"
        "except UserError as error: sys.exit(str(error))\n"
    )
    with AttemptStore(tmp_path) as store:
        store.append(row())
        second = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False)
        assert second.returncode == 1 and "another process" in second.stderr
    third = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False)
    assert third.returncode == 0, third.stderr


def test_rows_of_other_tasks_are_named(tmp_path: Path) -> None:
    with AttemptStore(tmp_path) as store:
        store.append(row(uid="other:1"))
        assert store.coverage(["a:x"], 1).foreign == ("other:1",)
        with pytest.raises(UserError, match="other:1"):
            store.refuse_foreign(["a:x"])


def test_a_killed_writer_loses_no_finished_row(tmp_path: Path) -> None:
    program = (
        "import sys, os, signal; from tbexp.attempts import AttemptRow, AttemptStore\n"
        "store = AttemptStore(sys.argv[1])\n"
        "for i in range(10):\n"
        "    store.append(AttemptRow('a:x', i, True, 1.0), {'t': i})\n"
        "    print(i, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == -9
    with AttemptStore(tmp_path) as store:
        assert [store.trajectory(r) for r in store.rows()] == [{"t": i} for i in range(10)]


@settings(max_examples=25)
@given(st.permutations([(u, a) for u in "abc" for a in range(3)]))
def test_the_rows_are_the_same_set_whatever_the_order(
    tmp_path_factory: pytest.TempPathFactory, order: list[tuple[str, int]]
) -> None:
    logging.disable(logging.WARNING)
    folder = tmp_path_factory.mktemp("store")
    with AttemptStore(folder) as store:
        for position, (uid, attempt) in enumerate(order):
            store.append(row(uid, attempt, attempt > 0, seconds=float(position)), {"p": position})
        expected = [row(u, a, a > 0) for u in "abc" for a in range(3)]
        assert digest(store.rows()) == digest(expected)
        assert [(r.uid, r.attempt) for r in canonical(store.history())] == [(r.uid, r.attempt) for r in expected]
    logging.disable(logging.NOTSET)


def test_a_row_has_a_verdict_or_a_system_error() -> None:
    for passed, error in [(None, None), (True, FAULT)]:
        with pytest.raises(ValueError, match="exclude each other"):
            AttemptRow("a", 0, passed, 0.0, error)
