"""Many attempts at many tasks into one store: the engine of probe and evaluate.

Decided here: what is run next, how a system error is tried again, and when the world is too broken to go on. An
attempt that the store holds is never run again; the seed of an attempt depends on nothing but the run's seed, its
task and its number.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from tbexp.attempts import AttemptRow, AttemptStore
from tbexp.config.schema import Config
from tbexp.episode import Attempt, User, World, open_judge, open_user, run_attempt
from tbexp.errors import UserError, WorldFailure, one_line
from tbexp.grading import Judge, open_grader
from tbexp.pipeline.identity import attempt_seed
from tbexp.pipeline.policies import devices_of
from tbexp.pipeline.progress import Bar
from tbexp.pipeline.wanted import Key, Wanted
from tbexp.policy import ChatEndpoint, Policy, Usage
from tbexp.sandbox import Server, open_sandbox
from tbexp.tasks import Task, is_benchmark

log = logging.getLogger(__name__)

GIVE_UP_AFTER = 20  # system errors in a row, with nothing clean between them


@dataclass(frozen=True, slots=True)
class CampaignResult:
    """fresh: attempts made now. errors: attempts that are still without a verdict, by kind of system error."""

    fresh: int
    errors: Mapping[str, int]


def run_campaign(
    config: Config,
    *,
    tasks: Sequence[Task],
    wanted: Wanted,
    retries: int,
    servers: Mapping[str, Server],
    policy: Policy,
    folder: Path,
    bar: Bar,
    shard: str | None = None,
) -> CampaignResult:
    """Fills `folder`'s store with the attempts that are `wanted`. shard: names the files of one of several writers.

    Raises UserError for what the user can fix (a refused key), WorldFailure when nothing but system errors come back.
    """
    with AttemptStore(folder, shard=shard) as store:
        store.refuse_foreign([task.uid for task in tasks])
        try:
            return asyncio.run(_campaign(config, tasks, wanted, retries, servers, policy, store, bar))
        except BaseExceptionGroup as group:
            raise _first(group) from group


async def _campaign(
    config: Config,
    tasks: Sequence[Task],
    wanted: Wanted,
    retries: int,
    servers: Mapping[str, Server],
    policy: Policy,
    store: AttemptStore,
    bar: Bar,
) -> CampaignResult:
    by_uid = {task.uid: task for task in tasks}
    benchmark = {task.uid for task in tasks if is_benchmark(task)}
    queue = _Queue(wanted.missing(store))
    before = [row for row in wanted.counted(store.rows()) if row.clean]
    tally = _Tally(bar, sum(row.passed is True for row in before), len(before))
    async with AsyncExitStack() as stack:
        user, judge = open_user(config.user, config.prices), open_judge(config.judge, config.prices)
        for person in (user, judge, policy):
            if (close := getattr(person, "close", None)) is not None:
                stack.push_async_callback(close)
        count_spent(store, policy=policy, user=user, judge=judge)
        make = await _maker(config, stack, servers, user, judge, policy)
        at_a_time, devices = min(config.policy.concurrency, wanted.most), devices_of(config.policy)

        async def attempt(uid: str, number: int) -> AttemptRow:
            seed = attempt_seed(config.seed, uid, number)
            for tries in range(1, retries + 2):
                done = await make(by_uid[uid], number, seed)
                row = row_of(done, tries, config.sandbox.search, evaluation_only=uid in benchmark)
                row = replace(row, at_a_time=at_a_time, devices=devices)
                store.append(row, done.trajectory)
                tally.note(done, last=tries == retries + 1)
                if row.clean:
                    break
                await asyncio.sleep(min(2.0 ** (tries - 1), 30.0) * 0.2)
            return row

        async def worker() -> None:
            try:
                while (key := await queue.next()) is not None:
                    queue.ended(wanted.then(await attempt(*key)))
            except BaseException:
                queue.close()
                raise

        async with asyncio.TaskGroup() as group:
            for _ in range(at_a_time):
                group.create_task(worker())
    left = Counter(row.system_error["kind"] for row in wanted.counted(store.rows()) if row.system_error)
    return CampaignResult(tally.fresh, dict(left))


def count_spent(store: AttemptStore, **people: object) -> None:
    """What the store's attempts took of each endpoint counts for its spending cap, failed tries included."""
    history = store.history()
    for role, one in people.items():
        if isinstance(endpoint := getattr(one, "endpoint", None), ChatEndpoint):
            own = role == "policy"
            names = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
            sums = [sum(getattr(row, name if own else f"{role}_{name}", 0) for row in history) for name in names]
            endpoint.spent_before = Usage(*sums)


async def _maker(
    config: Config,
    stack: AsyncExitStack,
    servers: Mapping[str, Server],
    user: User | None,
    judge: Judge,
    policy: Policy,
) -> Callable[[Task, int, int], Awaitable[Attempt]]:
    """What makes an attempt of a task, a number and a seed: in a world of ours, or at an environment server."""
    limits, environment = config.policy.limits, config.sandbox.environment
    if config.sandbox.kind == "openenv":
        from tbexp.serving.openenv_client import attempt_at

        return lambda task, number, seed: attempt_at(
            str(environment.url),
            task.uid,
            attempt=number,
            seed=seed,
            policy=policy,
            limits=limits,
            timeout_s=environment.timeout_s,
        )
    world = World(
        sandbox=await stack.enter_async_context(open_sandbox(config.sandbox, servers)),
        grader=await stack.enter_async_context(open_grader(config.sandbox)),
        user=user,
        judge=judge,
    )
    return lambda task, number, seed: run_attempt(
        task, attempt=number, seed=seed, policy=policy, world=world, limits=limits
    )


class _Queue:
    """What is still to be run; an attempt that ends may add to it.

    Attempt by attempt, not task by task: whoever looks in between sees all tasks evenly covered. An event and no
    condition: a campaign that ended early was seen to hang when it was one, whose lock cancelled workers take again.
    """

    def __init__(self, keys: Iterable[Key]):
        self._waiting = [(number, uid) for uid, number in keys]
        heapq.heapify(self._waiting)
        self._running = 0
        self._closed = False
        self._changed = asyncio.Event()

    async def next(self) -> Key | None:
        """The next one, waiting for it while others run that may add some; None: there is no more."""
        while not self._waiting and self._running and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        if not self._waiting or self._closed:
            return None
        self._running += 1
        number, uid = heapq.heappop(self._waiting)
        return uid, number

    def ended(self, more: Iterable[Key]) -> None:
        self._running -= 1
        for uid, number in more:
            heapq.heappush(self._waiting, (number, uid))
        self._changed.set()

    def close(self) -> None:
        """Ends it for all, whoever still runs: what one of them would have added never comes."""
        self._closed = True
        self._changed.set()


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

    def __init__(self, bar: Bar, passed: int, clean: int):
        self.bar, self.passed, self.clean = bar, passed, clean
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
    user, judge = (done.others.get(role, Usage()) for role in ("user", "judge"))
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
        user_prompt_tokens=user.prompt_tokens,
        user_cached_tokens=user.cached_tokens,
        user_completion_tokens=user.completion_tokens,
        user_reasoning_tokens=user.reasoning_tokens,
        judge_prompt_tokens=judge.prompt_tokens,
        judge_cached_tokens=judge.cached_tokens,
        judge_completion_tokens=judge.completion_tokens,
        judge_reasoning_tokens=judge.reasoning_tokens,
        judged=done.judged,
        seconds=round(done.seconds["total"], 3),
        domain=done.domain,
        tries=tries,
        search="" if search == "none" else search,
        evaluation_only=evaluation_only,
    )
