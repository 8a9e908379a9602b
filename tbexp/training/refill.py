"""Which groups an update is made of: the sampler that verl's trainer asks for each batch.

Decided here:
- A group is used when its rewards are mixed. Every other group is replaced by the next one of the task stream, one
  for one and as soon as it is known, so an update's groups are the shortest prefix of the stream with enough mixed
  ones, whatever order they finish in, and nothing that was generated is thrown away unread.
- Zero variance: every reward equal. Replaced until `rounds` generation batches were generated for the update; then the
  update is filled with such groups in stream order. Their advantage is 0; their tokens count in the token mean.
- A failed group (an attempt that stayed a system error) is replaced within the same bound and never used, not even
  partly, although verl would train on what is left of it. When failures leave too few groups at the bound, the run
  ends with `WorldFailure`: it does not hang, and it does not train on less than it says.
- A group that failed by anything but the world (a refused key, a prompt that does not fit, a bug) ends the run at once.
- A validation's attempts that stayed system errors are left out, one by one, and what the others got is written down
  (`groups.VALIDATIONS`): verl's own rate leaves out the whole task of such an attempt.
- When no attempt has ended for `stall_seconds`, of an update or of a validation, the run ends with `WorldFailure`; when
  a process that makes attempts has died, of which verl hears nothing, within seconds.

How an attempt becomes a failure is `agent_loop`'s; how a batch is trained on is verl's.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from pathlib import Path
from typing import Any

import transfer_queue as tq  # type: ignore[import-untyped]
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from tbexp.errors import UserError, WorldFailure
from tbexp.training.failures import Failure, read_failures
from tbexp.training.groups import (
    GROUPS,
    OTHERS,
    UPDATE,
    VALIDATION,
    VALIDATIONS,
    Ledger,
    kind_of,
    note_groups,
    note_others,
    note_validation,
    others_spent,
)

log = logging.getLogger(__name__)


# verl's episode workers and the servers that they ask: ours for CPUs, verl's around vLLM.
MAKE_ATTEMPTS = ("AgentLoopWorker", "Server", "vLLM")
LOOK_SECONDS = 5.0  # between two looks at them


class Stall:
    """Ends a wait in which nothing happens: a worker that died takes its attempts with it."""

    def __init__(self, seconds: float):
        self._seconds, self._since = seconds, time.monotonic()
        self._looked = self._since
        self._seen: tuple[Any, ...] = ()

    def look(self, *ended: Any) -> None:
        """ended: differs from the last look's when something has happened. Raises WorldFailure."""
        now = time.monotonic()
        if ended != self._seen:
            self._seen, self._since = ended, now
        elif now - self._since > self._seconds:
            raise WorldFailure(f"no attempt has ended for {self._seconds:.0f} s")
        elif now - max(self._since, self._looked) > LOOK_SECONDS:
            self._looked = now
            if dead := dead_workers():
                raise WorldFailure(f"processes that make attempts have ended: {'; '.join(dead)}")


def dead_workers() -> list[str]:
    """Which of this training's Ray processes that make attempts have died without being told to, and why."""
    try:
        import ray
        from ray._private import state
        from ray.core.generated.common_pb2 import ActorDiedErrorContext as Died

        job, actors = ray.get_runtime_context().get_job_id(), state.actors()
    except Exception as error:  # another Ray keeps them elsewhere, or does not answer: the stall ends it then
        log.warning("which processes of Ray have died is not known: %s", error)
        return []
    found = []
    for actor in actors.values():
        name, cause = actor["ActorClassName"], actor["DeathCause"]
        if actor["JobID"] != job or actor["State"] != "DEAD" or not name.startswith(MAKE_ATTEMPTS):
            continue
        if cause.HasField("oom_context"):
            found.append(f"{name} by Ray, since the machine's memory was full")
        elif cause.actor_died_error_context.reason in (Died.WORKER_DIED, Died.NODE_DIED):
            found.append(f"{name} (killed, or its node was lost)")
    return found


class RefillingSampler(ReplayBuffer):  # type: ignore[misc]
    """verl's synchronous replay buffer with the rules above.

    sampler_kwargs: poll_interval (s), rounds, group_size, failures (the file that the agent loop notes them in),
    by_length (order a batch by the length of its rows), stall_seconds (without an attempt that ends: give up).
    """

    def __init__(self, *, sampler_kwargs: dict[str, Any], **kwargs: Any):
        settings = dict(sampler_kwargs or {})
        self._rounds = max(1, int(settings.get("rounds", 1)))
        self._group_size = int(settings["group_size"])
        self._failures = Path(settings["failures"])
        self._by_length = bool(settings.get("by_length"))
        self._stall_seconds = float(settings.get("stall_seconds", 7200.0))
        self._failures_seen = 0
        self._validated: tuple[int, list[dict[str, Any]], list[Failure]] = (-1, [], [])
        super().__init__(
            sampler_kwargs=sampler_kwargs, poll_interval=float(settings.get("poll_interval", 0.05)), **kwargs
        )

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, float]]:
        if partition_id == "val":
            self._wait_for(partition_id, batch_size)
            batch, metrics = super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
            if not batch.keys:
                raise WorldFailure(f"every validation attempt ended as a system error: {self._examples()}")
            self._note_validation(global_steps, self._notes(partition_id, list(batch.keys)), self._new_failures())
            return batch, metrics
        ledger = Ledger(wanted=batch_size, limit=self._rounds * batch_size, dispatched=batch_size)
        stall = Stall(self._stall_seconds)
        while True:
            self._sync_metadata_from_transfer_queue()
            self._classify(partition_id, ledger)
            stall.look(self._ended(partition_id), len(ledger.kinds))
            inflight = len(self.pending_keys[partition_id]) + len(self.running_keys[partition_id])
            if more := ledger.missing(inflight):
                self.refill_fn(more)
                ledger.dispatched += more
                continue
            if inflight == 0:
                break
            time.sleep(self.poll_interval)
        batch, metrics = self._batch(partition_id, ledger)
        note_groups(self._failures.with_name(GROUPS), ledger, global_steps)
        self._note_others(global_steps, UPDATE, ledger.attempts, ledger.failures)
        return batch, metrics

    def _wait_for(self, partition_id: str, groups: int) -> None:
        """Until so many groups have ended, as verl's own loop, which would wait for ever for a worker that died, and
        for all others when one has met what ends the run.
        """
        stall, failed = Stall(self._stall_seconds), 0
        while True:
            self._sync_metadata_from_transfer_queue()
            if len(self.failure_keys[partition_id]) != failed:
                failed = len(self.failure_keys[partition_id])
                self._stop_unless_worlds()
            if len(self.finished_keys[partition_id]) + failed >= groups:
                return
            stall.look(self._ended(partition_id))
            time.sleep(self.poll_interval)

    def _ended(self, partition_id: str) -> tuple[int, ...]:
        """Changes whenever an attempt or a try of one has ended, well or not."""
        terminal = len(self.finished_keys[partition_id]) + len(self.failure_keys[partition_id])
        tries = self._failures.stat().st_size if self._failures.exists() else 0
        return len(self.partitions[partition_id]), terminal, tries

    def _note_validation(self, step: int, notes: list[dict[str, Any]], failures: list[Failure]) -> None:
        """All of a step so far: verl validates in batches where `data.val_batch_size` says so."""
        if self._validated[0] != step:
            self._validated = (step, [], [])
        _, every_note, every_failure = self._validated
        every_note += notes
        every_failure += failures
        self._note_others(step, VALIDATION, every_note, every_failure)
        note_validation(self._failures.with_name(VALIDATIONS), step, [float(note["reward"]) for note in every_note])

    def _note_others(self, step: int, kind: str, notes: list[dict[str, Any]], failures: list[Failure]) -> None:
        tries, spent = len(notes) + len(failures), others_spent(notes, failures)
        note_others(self._failures.with_name(OTHERS), step, kind, tries, spent)

    def _classify(self, partition_id: str, ledger: Ledger) -> None:
        """Read the rewards of groups that ended since the last poll; failed groups are dropped at once."""
        ended = (self.finished_keys[partition_id] | self.failure_keys[partition_id]) - ledger.kinds.keys()
        members: dict[str, list[str]] = {uid: [] for uid in ended}
        for key in self.partitions[partition_id]:
            if (uid := key.split("_")[0]) in members:
                members[uid].append(key)
        keys = [key for group in members.values() for key in group]
        notes = dict(zip(keys, self._notes(partition_id, keys), strict=True))
        for uid, group in members.items():
            ledger.draws[uid] = min((notes[key]["draw"] for key in group), default=0)
            ledger.attempts += [{**notes[key], "group": uid} for key in group]
            if uid in self.failure_keys[partition_id] or len(group) != self._group_size:
                ledger.kinds[uid] = "failed"
            else:
                ledger.kinds[uid] = kind_of(notes[key]["reward"] for key in group)
        failed = {uid for uid in ended if ledger.kinds[uid] == "failed"}
        if failed:
            self._stop_unless_worlds()
        self._clear_groups(partition_id, failed)

    @staticmethod
    def _notes(partition_id: str, keys: list[str]) -> list[dict[str, Any]]:
        """What the agent loop noted about each attempt (`extra_fields["attempt"]`)."""
        if not keys:
            return []
        data = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["extra_fields"])
        return [dict(getattr(fields, "data", fields)["attempt"]) for fields in data["extra_fields"]]

    def _batch(self, partition_id: str, ledger: Ledger) -> tuple[Any, dict[str, float]]:
        chosen = ledger.chosen()
        ledger.failures = self._new_failures()
        if len(chosen) < ledger.wanted:
            raise WorldFailure(
                f"{ledger.count('failed')} of {ledger.dispatched} groups failed with system errors, "
                f"so only {len(chosen)} of {ledger.wanted} groups are there for the update: {self._examples()}"
            )
        snapshot = dict(self.partitions[partition_id])
        self._clear_groups(partition_id, {uid for uid, kind in ledger.kinds.items() if kind != "failed"} - set(chosen))
        log.info("update of %s groups: %s", ledger.wanted, Counter(ledger.kinds.values()))
        batch = self._materialize_batch(partition_id, chosen, snapshot)
        if self._by_length:
            batch.reorder(sorted(range(len(batch.keys)), key=lambda i: batch.tags[i]["seq_len"]))
        return batch, ledger.metrics()

    def _stop_unless_worlds(self) -> None:
        for failure in read_failures(self._failures):
            if failure.whose != "world":
                error = UserError if failure.whose == "user" else RuntimeError
                raise error(f"{failure.task}: {failure.kind}: {failure.message}")

    def _new_failures(self) -> list[Failure]:
        """Those that were noted since the last update or validation."""
        every = read_failures(self._failures)
        new, self._failures_seen = every[self._failures_seen :], len(every)
        return new

    def _examples(self) -> str:
        """The newest failures, three kinds at most."""
        newest: dict[str, Failure] = {f.kind: f for f in read_failures(self._failures)}
        return "; ".join(f"{f.kind} ({f.task}: {f.message[:200]})" for f in list(newest.values())[-3:])
