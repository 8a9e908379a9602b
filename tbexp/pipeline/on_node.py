"""The work of a Slurm job: some stages of a run, or a part of a campaign's attempts.

Decided here: what a start that is interrupted has kept. Attempts: those that it finished. Stages of one CPU: those that
no start of the job had finished before, since each start makes some of them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tbexp.attempts import AttemptStore
from tbexp.config.schema import Config
from tbexp.errors import Stopped
from tbexp.pipeline.context import Context, InSweep, Place, Untracked
from tbexp.pipeline.files import read_json, write_json
from tbexp.pipeline.progress import Progress
from tbexp.pipeline.run import quiet_environment, run_here
from tbexp.pipeline.sharing import Campaign, Shard, attempts_of_shard
from tbexp.pipeline.submit import stages_campaign

Left = Callable[[], float | None]


def run_stages(config: Config, plan: Mapping[str, Any], *, ray: str | None, left: Left, before: Path) -> None:
    """The plan's stages, in the run's folder. Attempts are not made here: the jobs before have made them.

    before: a file of the job, in which its starts note the stages that they have finished. Raises Stopped.
    """
    part = config.model_copy(update={"stages": plan["stages"]})
    earlier, now = read_json(before) or [], set[str]()
    place = Place(attempts=False, ray=ray, left=left, finished=now.add)
    sweep = InSweep(**plan["sweep"]) if plan["sweep"] else None
    try:
        run_here(part, run_dir=Path(plan["run_dir"]), overrides=plan["overrides"], place=place, sweep=sweep)
    except KeyboardInterrupt:
        write_json(before, sorted({*earlier, *now}))
        new = [stage for stage in plan["stages"] if stage in now.difference(earlier)]
        told = f"{' and '.join(new)} finished" if new else "this start finished no stage"
        raise Stopped(f"stopped: {told}; the next start makes the rest", kept=bool(new)) from None


def make_part(config: Config, plan: Mapping[str, Any]) -> None:
    """One shard of a campaign's attempts, into the campaign's store. It belongs to no run, so nothing is tracked.

    Raises Stopped.
    """
    quiet_environment()
    with Progress() as progress:
        context = Context(config, Path(plan["run_dir"]), progress, Untracked())
        campaign, shard = stages_campaign(context, plan["campaign"]), Shard(plan["shard"], plan["of"])
        before = clean(campaign, shard)
        try:
            attempts_of_shard(context, campaign, shard)
        except KeyboardInterrupt:
            new = clean(campaign, shard) - before
            told = f"this start finished {new} attempt{'' if new == 1 else 's'}"
            raise Stopped(f"stopped: {told}; the next start makes the others", kept=new > 0) from None


def clean(campaign: Campaign, shard: Shard) -> int:
    """Attempts that this shard's jobs have finished; a system error is none."""
    if not campaign.folder.exists():
        return 0
    with AttemptStore(campaign.folder, read_only=True) as store:
        return store.clean_of(shard.name)
