"""The attempts of a stage, made once: by one run for all that share them, or by jobs that each make a part.

Decided here: who waits for whom. Of runs that need the same attempts one makes them, and the others wait and find them;
jobs that make parts work beside each other, and wait for a run that makes the whole, as it does for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from tbexp.attempts import AttemptRow, AttemptStore, canonical
from tbexp.config.checks import key_names
from tbexp.config.secrets import provide
from tbexp.errors import WorldFailure
from tbexp.pipeline.campaign import Shard, missing, run_campaign
from tbexp.pipeline.context import Context
from tbexp.pipeline.progress import Bar
from tbexp.tasks import Task

if TYPE_CHECKING:
    from tbexp.policy import Policy


@dataclass(frozen=True, slots=True)
class Campaign:
    """Attempts of one policy at some tasks: what probe and evaluate are made of. folder: their store."""

    name: str
    folder: Path
    tasks: Sequence[Task]
    attempts: int
    retries: int
    policy: Callable[[], Policy]


def attempts_in(run: Context, campaign: Campaign) -> list[AttemptRow]:
    """The rows of tasks x attempts, made where they are missing; the last row of what stays a system error."""
    uids = [task.uid for task in campaign.tasks]
    total = len(uids) * campaign.attempts
    campaign.folder.mkdir(parents=True, exist_ok=True)
    with alone_in(campaign.folder):
        with AttemptStore(campaign.folder, read_only=True) as store:
            lacking = len(store.missing(uids, campaign.attempts))
            untried = lacking - sum(not row.clean for row in store.rows() if row.attempt < campaign.attempts)
        bar = run.progress.stage(campaign.name, total, "attempts", done=total - lacking)
        if lacking and not run.place.attempts:
            if untried > 0:
                raise WorldFailure(f"{campaign.name}: {untried} of {total} attempts were not made by the jobs before")
            bar.done(f"{lacking} of {total} attempts are system errors")
        elif lacking:
            make_attempts(run, campaign, bar)
        else:
            bar.done("finished before, nothing to do")
    with AttemptStore(campaign.folder, read_only=True) as store:
        return canonical(row for row in store.rows() if row.attempt < campaign.attempts)


def make_attempts(run: Context, campaign: Campaign, bar: Bar, shard: Shard | None = None) -> None:
    provide(run.config.launcher.secrets_file, key_names(run.config))
    run_campaign(
        run.config,
        tasks=campaign.tasks,
        attempts=campaign.attempts,
        retries=campaign.retries,
        servers=run.servers,
        policy=campaign.policy(),
        folder=campaign.folder,
        bar=bar,
        shard=shard,
    )
    bar.done()


def attempts_of_shard(run: Context, campaign: Campaign, shard: Shard) -> None:
    """A part of a campaign's attempts, beside the jobs that make the others."""
    uids = [task.uid for task in campaign.tasks]
    campaign.folder.mkdir(parents=True, exist_ok=True)
    whole = FileLock(campaign.folder / ".lock")
    with whole:  # whoever makes the whole campaign is waited for, and then waits for the shards
        part = FileLock(campaign.folder / f".lock-shard-{shard.name}")
        part.acquire()
    try:
        with AttemptStore(campaign.folder, read_only=True) as store:
            lacking = len(missing(store, uids, campaign.attempts, shard))
        bar = run.progress.stage(f"{campaign.name}, part {shard.index + 1} of {shard.of}", lacking, "attempts")
        if lacking:
            make_attempts(run, campaign, bar, shard)
        else:
            bar.done("finished before, nothing to do")
    finally:
        part.release()


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Of runs that share a result, one makes it, and the others wait and find it. Shards are waited for too."""
    with FileLock(folder / ".lock"):
        for part in sorted(folder.glob(".lock-shard-*")):
            with FileLock(part):
                continue
        yield
