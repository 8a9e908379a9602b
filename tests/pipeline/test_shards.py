"""Parts of a campaign: nothing twice, nothing left out, whatever was done before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbexp.attempts import AttemptRow, AttemptStore
from tbexp.errors import UserError
from tbexp.pipeline.sharing import Campaign, Shard, attempts_in
from tbexp.pipeline.wanted import AdaptiveNumber, FixedNumber
from tbexp.selection import StoppingRule


class Holding:
    """As much of a store as what is wanted looks at."""

    def __init__(self, there: set[tuple[str, int]]):
        self.there = there

    def missing(self, uids: list[str], n: int) -> list[tuple[str, int]]:
        return [(uid, i) for uid in uids for i in range(n) if (uid, i) not in self.there]

    def rows(self) -> list[AttemptRow]:
        return [AttemptRow(uid, n, passed=True, reward=1.0) for uid, n in sorted(self.there)]


@given(tasks=st.integers(1, 9), attempts=st.integers(1, 9), of=st.integers(1, 5), done=st.sets(st.integers(0, 80)))
def test_shards_divide_what_is_missing_and_never_change_places(
    tasks: int, attempts: int, of: int, done: set[int]
) -> None:
    uids = [f"task{i}" for i in range(tasks)]
    everything = [(uid, i) for uid in uids for i in range(attempts)]
    there = {everything[i] for i in done if i < len(everything)}
    parts = [FixedNumber(uids, attempts).part(i, of) for i in range(of)]
    fresh = [set(part.missing(Holding(set()))) for part in parts]  # type: ignore[arg-type]
    later = [part.missing(Holding(there)) for part in parts]  # type: ignore[arg-type]
    assert [part.unmade(Holding(there).rows()) for part in parts] == [len(keys) for keys in later]
    assert sorted(key for part in later for key in part) == sorted(set(everything) - there)
    assert all(set(part) <= fresh[i] for i, part in enumerate(later))
    if tasks % of == 0:
        assert len({len(part) for part in fresh}) == 1


@given(tasks=st.integers(1, 9), of=st.integers(1, 5), done=st.sets(st.integers(0, 40)))
def test_shards_of_an_adaptive_campaign_divide_its_tasks(tasks: int, of: int, done: set[int]) -> None:
    uids = [f"task{i}" for i in range(tasks)]
    there = {(uids[i % tasks], i // tasks) for i in done}
    whole = AdaptiveNumber(uids, StoppingRule.of(6))
    parts = [whole.part(i, of) for i in range(of)]
    assert sorted(uid for part in parts for uid in part.uids) == uids
    holding = Holding(there)
    made = sorted(key for part in parts for key in part.missing(holding))  # type: ignore[arg-type]
    assert made == sorted(whole.missing(holding))  # type: ignore[arg-type]


def test_rows_of_unknown_tasks_in_a_finished_store_are_refused(tmp_path: Path) -> None:
    with AttemptStore(tmp_path) as store:
        for uid in ("a", "stray"):
            store.append(AttemptRow(uid, 0, passed=True, reward=1.0))
    task: Any = SimpleNamespace(uid="a")
    run: Any = SimpleNamespace(run_dir=tmp_path, progress=SimpleNamespace(say=print))
    campaign = Campaign("evaluate base", tmp_path, [task], FixedNumber(["a"], 1), 1, lambda: None, None)  # type: ignore
    with pytest.raises(UserError, match="rows of 1 task not among the 1 of this run: stray"):
        attempts_in(run, campaign)


def test_each_shard_writes_files_of_its_own(tmp_path: Path) -> None:
    with AttemptStore(tmp_path, shard=Shard(0, 2).name), AttemptStore(tmp_path, shard=Shard(1, 2).name):
        assert {file.name for file in tmp_path.glob("attempts*.jsonl")} == {
            "attempts-0-of-2.jsonl",
            "attempts-1-of-2.jsonl",
        }
