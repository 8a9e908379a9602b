"""The sampler against a TransferQueue that is a dictionary: what verl's workers would have put there is written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tbexp.errors import UserError, WorldError, WorldFailure
from tbexp.training.failures import FAILURES, note_failure
from tbexp.training.groups import OTHERS, VALIDATIONS, read_others, read_validations
from tbexp.training.rows import ATTEMPTS, MISSING, VALIDATION, named, of_attempts

pytestmark = pytest.mark.train

Queue = dict[str, dict[str, Any]]


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    """{key: tag} of the partition `val`; an attempt's tag has its note beside it."""
    pytest.importorskip("verl")
    import verl.trainer.ppo.v1.replay_buffer as verls

    from tbexp.training import refill

    held: Queue = {}

    def get(*, keys: list[str], **_: Any) -> dict[str, Any]:
        return {"extra_fields": [{"attempt": held[key]["note"]} for key in keys]}

    def clear(*, keys: list[str], **_: Any) -> None:
        for key in keys:
            held.pop(key, None)

    fake = SimpleNamespace(kv_list=lambda: {"val": dict(held)}, kv_batch_get=get, kv_clear=clear)
    monkeypatch.setattr(verls, "tq", fake)
    monkeypatch.setattr(refill, "tq", fake)
    return held


def sampler(folder: Path, **told: Any) -> Any:
    from tbexp.training.refill import RefillingSampler

    settings = {"group_size": 2, "failures": str(folder / FAILURES), "poll_interval": 0.001, "stall_seconds": 0.2}
    return RefillingSampler(
        trainer_mode="sync",
        trainer_config=None,
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs=settings | told,
    )


def group(queue: Queue, uid: str, rewards: list[float], status: str) -> None:
    queue[uid] = {"is_prompt": True, "status": status, "global_steps": 4}
    for session, reward in enumerate(rewards):
        note = {"task": uid, "draw": 0, "reward": reward}
        queue[f"{uid}_{session}_0"] = {"status": "success", "note": note}


@pytest.mark.parametrize("status", ["pending", "running"])
def test_a_validation_in_which_no_attempt_ends_is_given_up(tmp_path: Path, queue: Queue, status: str) -> None:
    group(queue, "a", [1.0, 0.0], "finished")
    group(queue, "b", [1.0], status)
    with pytest.raises(WorldFailure, match="no attempt has ended for 0 s"):
        sampler(tmp_path).sample(4, "val", 2)


def test_attempts_and_failed_tries_that_end_are_no_stall(
    tmp_path: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time passes by 60 s a look, and 100 s without an end are too long; every look something else has ended."""
    group(queue, "a", [], "running")
    looks = iter(range(100))
    now = 0.0

    def sleep(_: float) -> None:
        nonlocal now
        now += 60
        look = next(looks)
        if look < 3:
            note_failure(tmp_path / FAILURES, "a", WorldError("tool_timeout", f"try {look}"))
        else:
            group(queue, "a", [1.0] * (look - 2), "finished" if look == 5 else "running")

    monkeypatch.setattr("tbexp.training.refill.time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    batch, _ = sampler(tmp_path, stall_seconds=100.0).sample(4, "val", 1)
    assert sorted(batch.keys) == ["a_0_0", "a_1_0", "a_2_0"] and now == 6 * 60


@pytest.mark.parametrize(
    ("error", "raised"), [(UserError("the key is refused"), UserError), (KeyError("x"), RuntimeError)]
)
def test_what_is_not_the_world_s_ends_a_validation_while_others_run(
    tmp_path: Path, queue: Queue, error: Exception, raised: type[Exception]
) -> None:
    group(queue, "a", [], "failure")
    group(queue, "b", [], "running")
    note_failure(tmp_path / FAILURES, "a", error)
    with pytest.raises(raised, match="a: "):
        sampler(tmp_path, stall_seconds=3600.0).sample(4, "val", 2)


def test_a_validation_of_system_errors_alone_ends_the_run(tmp_path: Path, queue: Queue) -> None:
    group(queue, "a", [], "failure")
    note_failure(tmp_path / FAILURES, "a", WorldError("tool_timeout", "late"))
    with pytest.raises(
        WorldFailure, match=r"every validation attempt ended as a system error: tool_timeout \(a: late\)"
    ):
        sampler(tmp_path).sample(4, "val", 1)


def val_core(queue_rewards: dict[str, list[float]]) -> dict[str, float]:
    """What verl logs of such a validation."""
    import numpy as np
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    uids = [uid for uid, rewards in queue_rewards.items() for _ in rewards]
    scores = [reward for rewards in queue_rewards.values() for reward in rewards]
    found = process_validation_metrics(["validation"] * len(uids), uids, {"reward": scores})["validation"]["reward"]
    most = max(int(name.split("@")[-1].split("/")[0]) for name in found)
    return {f"val-core/validation/reward/mean@{most}": float(np.float64(found[f"mean@{most}"]))}


@pytest.mark.parametrize("batches", [1, 2, 4])
def test_a_validation_s_rate_is_of_all_attempts_that_ended_in_one_batch_or_several(
    tmp_path: Path, queue: Queue, batches: int
) -> None:
    """Four tasks with four attempts; of three, one attempt each stayed a system error."""
    rewards = {"a": [1.0] * 4, "b": [0.0] * 3, "c": [0.0, 1.0, 0.0], "d": [0.0] * 3}
    made = sampler(tmp_path)
    for batch in range(batches):
        uids = list(rewards)[batch * 4 // batches : (batch + 1) * 4 // batches]
        for uid in uids:
            group(queue, uid, rewards[uid], "finished" if len(rewards[uid]) == 4 else "failure")
        keys = made.sample(4, "val", len(uids))[0].keys
        assert len(keys) == sum(len(rewards[uid]) for uid in uids)
        queue.clear()
    verls = named(val_core(rewards))
    assert verls[VALIDATION] == 1.0
    noted = read_validations(tmp_path / VALIDATIONS)
    row = of_attempts({4: verls}, noted, 16)[4]
    assert (row[VALIDATION], row[ATTEMPTS], row[MISSING]) == (5 / 13, 13, 3)
    assert read_others(tmp_path / OTHERS)[4, "validation"][0] == 13
    group(queue, "a", [0.0, 1.0], "finished")
    made.sample(5, "val", 1)
    assert read_validations(tmp_path / VALIDATIONS) == {4: (13, 5.0), 5: (2, 1.0)}
