from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbexp.training.stream import task_of_draw


@given(st.lists(st.text("abcdef", min_size=1), min_size=1, max_size=9, unique=True), st.integers(), st.integers(0, 5))
def test_every_pass_over_the_pool_draws_each_task_once(uids: list[str], seed: int, turn: int) -> None:
    start = turn * len(uids)
    assert sorted(task_of_draw(uids, seed, start + n) for n in range(len(uids))) == sorted(uids)


def test_the_order_is_the_seeds_and_differs_from_pass_to_pass() -> None:
    uids = [str(n) for n in range(20)]
    first = [task_of_draw(uids, 1, n) for n in range(20)]
    assert first == [task_of_draw(uids, 1, n) for n in range(20)]
    assert first != [task_of_draw(uids, 2, n) for n in range(20)]
    assert first != [task_of_draw(uids, 1, n) for n in range(20, 40)]


@pytest.mark.train
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own
def test_a_resumed_loader_goes_on_with_the_task_it_would_have_drawn(tmp_path: Path) -> None:
    dataloader = pytest.importorskip("torchdata.stateful_dataloader")
    from torch.utils.data import SequentialSampler

    from tbexp.training.dataset import TaskDataset

    file = tmp_path / "train.json"
    file.write_text(json.dumps({"uids": list("abcde"), "seed": 3, "stream": True, "source": "train", "agent": "x"}))

    def loader() -> object:
        data = TaskDataset(str(file), config=None)
        keep = lambda rows: [row["task"] for row in rows]  # noqa: E731
        return dataloader.StatefulDataLoader(data, 1, sampler=SequentialSampler(data), collate_fn=keep)

    unbroken = iter(loader())
    wanted = [next(unbroken)[0] for _ in range(12)]
    first = loader()
    drawn = iter(first)
    assert [next(drawn)[0] for _ in range(7)] == wanted[:7]
    second = loader()
    second.load_state_dict(first.state_dict())
    assert [task[0] for task, _ in zip(iter(second), range(5), strict=False)] == wanted[7:]
