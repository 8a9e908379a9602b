"""Many attempts at many tasks into one store: the engine of probe and evaluate.

Decided here: what is run next, how a system error is tried again, and when the world is too broken to go on. An
attempt that the store holds is never run again; the seed of an attempt depends on nothing but the run's seed, its
task and its number.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from tbexp.attempts import AttemptRow, AttemptStore
from tbexp.attempts.store import Key
from tbexp.config.schema import Config
from tbexp.episode import Attempt, World, open_judge, open_user, run_attempt
from tbexp.errors import UserError, WorldFailure, one_line
from tbexp.grading import open_grader
from tbexp.pipeline.identity import attempt_seed
from tbexp.pipeline.progress import Bar
from tbexp.policy import Policy
from tbexp.sandbox import Server, open_sandbox
from tbexp.tasks import Task, is_benchmark

log = logging.getLogger(__name__)

GIVE_UP_AFTER = 20  # system errors in a row, with nothing clean between them


@dataclass(frozen=True, slots=True)
class Shard:
    """Every `of`-th attempt of a campaign, from number `index` on: made by a job of its own, in files of its own."""

    index: int
    of: int

    @property
    def name(self) -> str:
        return f"{self.index}-of-{self.of}"


def missing(store: AttemptStore, uids: Sequence[str], attempts: int, shard: Shard | None = None) -> list[Key]:
    """What is not there yet. Shards of one campaign have nothing in common, whatever is there already."""
    lacking = store.missing(uids, attempts)
    if shard is None:
        return lacking
    place = {uid: number for number, uid in enumerate(sorted(uids))}
    # Over tasks and attempts, so that shards are equally long and equally difficult.
    return [(uid, n) for uid, n in lacking if (place[uid] + n) % shard.of == shard.index]


@dataclass(frozen=True, slots=True)
class CampaignResult:
    """fresh: attempts made now. errors: attempts that are still without a verdict, by kind of system error."""

    fresh: int
    errors: Mapping[str, int]


def run_campaign(
    config: Config,
    *,
    tasks: Sequence[Task],
    attempts: int,
    retries: int,
    servers: Mapping[str, Server],
    policy: Policy,
    folder: Path,
    bar: Bar,
    shard: Shard | None = None,
) -> CampaignResult:
    """Fills `folder`'s store up to `attempts` per task, or a shard's part of it.

    Raises UserError for what the user can fix (a refused key), WorldFailure when nothing but system errors come back.
    """
    with AttemptStore(folder, shard=None if shard is None else shard.name) as store:
        store.refuse_foreign([task.uid for task in tasks])
        try:
            return asyncio.run(_campaign(config, tasks, attempts, retries, servers, policy, store, bar, shard))
        except BaseExceptionGroup as group:
            raise _first(group) from group


async def _campaign(
    config: Config,
    tasks: Sequence[Task],
    attempts: int,
    retries: int,
    servers: Mapping[str, Server],
    policy: Policy,
    store: AttemptStore,
    bar: Bar,
    shard: Shard | None,
) -> CampaignResult:
    by_uid = {task.uid: task for task in tasks}
    benchmark = {task.uid for task in tasks if is_benchmark(task)}
    # Attempt by attempt, not task by task: whoever looks in between sees all tasks evenly covered.
    waiting = sorted(missing(store, list(by_uid), attempts, shard), key=lambda key: (key[1], key[0]))
    queue = iter(waiting)
    tally = _Tally(bar, sum(r.passed is True for r in store.rows() if r.attempt < attempts))
    tally.clean = sum(r.clean for r in store.rows() if r.uid in by_uid and r.attempt < attempts)
    async with AsyncExitStack() as stack:
        user, judge = open_user(config.user, config.prices), open_judge(config.judge, config.prices)
        for person in (user, judge, policy):
            if (close := getattr(person, "close", None)) is not None:
                stack.push_async_callback(close)
        world = World(
            sandbox=await stack.enter_async_context(open_sandbox(config.sandbox, servers)),
            grader=await stack.enter_async_context(open_grader(config.sandbox)),
            user=user,
            judge=judge,
        )

        async def worker() -> None:
            for uid, number in queue:
                seed = attempt_seed(config.seed, uid, number)
                for tries in range(1, retries + 2):
                    done = await run_attempt(
                        by_uid[uid], attempt=number, seed=seed, policy=policy, world=world, limits=config.policy.limits
                    )
                    row = row_of(done, tries, config.sandbox.search, evaluation_only=uid in benchmark)
                    store.append(row, done.trajectory)
                    tally.note(done, last=tries == retries + 1)
                    if done.system_error is None:
                        break
                    await asyncio.sleep(min(2.0 ** (tries - 1), 30.0) * 0.2)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(config.policy.concurrency, len(waiting))):
                group.create_task(worker())
    left = Counter(r.system_error["kind"] for r in store.rows() if r.system_error and r.attempt < attempts)
    return CampaignResult(tally.fresh, dict(left))


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to tell of, when one worker's error has ended all of them."""
    flat: list[BaseException] = []
    stack: list[BaseException] = [group]
    while stack:
        error = stack.pop()
        if isinstance(error, BaseExceptionGroup):
            stack.extend(reversed(error.exceptions))
        else:
            flat.append(error)
    return next((e for e in flat if isinstance(e, UserError | WorldFailure)), flat[0])


class _Tally:
    """The counts that the bar shows, and the point where going on makes no sense."""

    def __init__(self, bar: Bar, passed: int):
        self.bar, self.passed, self.clean = bar, passed, 0
        self.fresh = self.errors = self.in_a_row = 0
        self.last = ""  # what the last system error said
        self.kinds: Counter[str] = Counter()

    def note(self, done: Attempt, *, last: bool) -> None:
        if done.system_error is None:
            self.in_a_row = 0
            self.clean += 1
            self.passed += done.passed is True
        else:
            self.in_a_row += 1
            self.errors += 1
            self.last = done.system_error.message
            self.kinds[done.system_error.kind] += 1
            first = self.kinds[done.system_error.kind] == 1  # the others are counted on the bar, and stand in the log
            level = logging.WARNING if first else logging.INFO
            log.log(level, "%s attempt %d: %s", done.uid, done.attempt, done.system_error)
        if done.system_error is None or last:
            self.fresh += 1
            self.bar.advance(passed=f"{self.passed / max(self.clean, 1):.1%}", system_errors=self.errors)
        if self.in_a_row >= GIVE_UP_AFTER and self.in_a_row >= 2 * self.clean:
            kind, count = self.kinds.most_common(1)[0]
            raise WorldFailure(
                f"{self.in_a_row} attempts in a row were system errors, most of them ({count}) {kind}, the last one: "
                f"{one_line(self.last)}. What was finished is kept; run the same command again when "
                "this is mended"
            )


def row_of(done: Attempt, tries: int, search: str, *, evaluation_only: bool = False) -> AttemptRow:
    """The stored row of an attempt; `search` as in the configuration; evaluation_only: of a benchmark task."""
    error = done.system_error
    return AttemptRow(
        uid=done.uid,
        attempt=done.attempt,
        passed=done.passed,
        reward=done.reward,
        system_error=None if error is None else {"kind": error.kind, "message": error.message[:2000]},
        finish_reason=done.finish_reason,
        turns=done.turns,
        tool_calls=done.tool_calls,
        prompt_tokens=done.usage.prompt_tokens,
        completion_tokens=done.usage.completion_tokens,
        cached_tokens=done.usage.cached_tokens,
        reasoning_tokens=done.usage.reasoning_tokens,
        seconds=round(done.seconds["total"], 3),
        domain=done.domain,
        tries=tries,
        search="" if search == "none" else search,
        evaluation_only=evaluation_only,
    )
