"""The attempts of a stage, made once: by one run for all that share them, or by jobs that each make a part.

Decided here: who waits for whom. Of runs that need the same attempts one makes them, and the others wait and find them;
jobs that make parts work beside each other, and wait for a run that makes the whole, as it does for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tbexp.attempts import AttemptRow, AttemptStore, canonical
from tbexp.config.checks import key_names
from tbexp.config.schema import Config
from tbexp.config.secrets import provide
from tbexp.errors import WorldFailure
from tbexp.pipeline.campaign import run_campaign
from tbexp.pipeline.context import Context
from tbexp.pipeline.elsewhere import noted, spans
from tbexp.pipeline.progress import Bar
from tbexp.pipeline.waiting import alone
from tbexp.pipeline.wanted import Wanted
from tbexp.tasks import Task

if TYPE_CHECKING:
    from tbexp.policy import Policy


WHOLE, PART = ".lock", ".lock-shard-"  # in the folder of a campaign, of who makes all of it or a part


@dataclass(frozen=True, slots=True)
class Campaign:
    """Attempts of one policy at some tasks: what probe and evaluate are made of.

    folder: their store. tasks: all that it is about. config: of the attempts (policy, limits and endpoints count).
    """

    name: str
    folder: Path
    tasks: Sequence[Task]
    wanted: Wanted
    retries: int
    policy: Callable[[], Policy]
    config: Config


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a campaign, made by a job of its own, in files of its own."""

    index: int
    of: int

    @property
    def name(self) -> str:
        return f"{self.index}-of-{self.of}"


def attempts_in(run: Context, campaign: Campaign) -> list[AttemptRow]:
    """The rows that are wanted, made where they are missing; the last row of what stays a system error."""
    wanted = campaign.wanted
    campaign.folder.mkdir(parents=True, exist_ok=True)
    with alone_in(run, campaign):
        with AttemptStore(campaign.folder, read_only=True) as store:
            store.refuse_foreign([task.uid for task in campaign.tasks])
            rows = store.rows()
            lacking, untried = len(wanted.missing(store)), wanted.unmade(rows)
            before = sum(row.clean for row in wanted.counted(rows))
        if not run.place.attempts:
            run.spans += spans(campaign.folder, run.run_dir)
        bar = run.progress.stage(campaign.name, wanted.most if lacking else before, "attempts", done=before)
        if lacking and not run.place.attempts:
            if untried > 0:
                raise WorldFailure(
                    f"{campaign.name}: {untried} of {wanted.most} attempts were not made by the jobs before"
                )
            bar.done(f"{lacking} of {wanted.most} attempts are system errors")
        elif lacking:
            make_attempts(run, campaign, wanted, bar)
        else:
            bar.done("finished before, nothing to do")
    with AttemptStore(campaign.folder, read_only=True) as store:
        return canonical(wanted.counted(store.rows()))


def with_failed_tries(store: AttemptStore, rows: Sequence[AttemptRow]) -> list[AttemptRow]:
    """`rows` of the store, each behind the tries before it that ended as system errors: these were paid for too."""
    wanted = {(row.uid, row.attempt) for row in rows}
    every = [row for row in store.history() if (row.uid, row.attempt) in wanted]
    return sorted(every, key=lambda row: (row.uid, row.attempt, row.clean))


def make_attempts(run: Context, campaign: Campaign, wanted: Wanted, bar: Bar, shard: Shard | None = None) -> None:
    provide(run.config.launcher.secrets_file, key_names(run.config))
    run.worked = True
    begun, built = time.time(), run.building
    servers, policy = run.servers, campaign.policy()
    begun += run.building - built  # which is no part of this stage
    name = None if shard is None else shard.name
    try:
        with nullcontext() if name is None else noted(campaign.folder, name, run.run_dir, begun):
            run_campaign(
                campaign.config,
                tasks=campaign.tasks,
                wanted=wanted,
                retries=campaign.retries,
                servers=servers,
                policy=policy,
                folder=campaign.folder,
                bar=bar,
                shard=name,
            )
    finally:
        if (stop := getattr(policy, "stop", None)) is not None:  # of a server that was started for it
            stop()
    bar.done()


def attempts_of_shard(run: Context, campaign: Campaign, shard: Shard) -> None:
    """A part of a campaign's attempts, beside the jobs that make the others."""
    wanted = campaign.wanted.part(shard.index, shard.of)
    campaign.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        with locked(run, campaign, WHOLE):  # who makes the whole campaign is waited for, and then waits for the shards
            held.enter_context(locked(run, campaign, f"{PART}{shard.name}"))
        with AttemptStore(campaign.folder, read_only=True) as store:
            lacking = len(wanted.missing(store))
        bar = run.progress.stage(f"{campaign.name}, part {shard.index + 1} of {shard.of}", lacking, "attempts")
        if lacking:
            make_attempts(run, campaign, wanted, bar, shard)
        else:
            bar.done("finished before, nothing to do")


@contextmanager
def alone_in(run: Context, campaign: Campaign) -> Iterator[None]:
    """Of runs that share a result, one makes it, and the others wait and find it. Shards are waited for too."""
    with locked(run, campaign, WHOLE):
        for part in sorted(campaign.folder.glob(f"{PART}*")):
            with locked(run, campaign, part.name):
                continue
        yield


def locked(run: Context, campaign: Campaign, name: str) -> AbstractContextManager[None]:
    what = f"the attempts of {campaign.name} in {campaign.folder}"
    return alone(campaign.folder / name, what, run_dir=run.run_dir, say=run.progress.say)
