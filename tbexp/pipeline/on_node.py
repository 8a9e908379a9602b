"""The work of a Slurm job: some stages of a run, or a part of a campaign's attempts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tbexp.config.schema import Config
from tbexp.pipeline.context import Context, InSweep, Place, Untracked
from tbexp.pipeline.progress import Progress
from tbexp.pipeline.run import quiet_environment, run_here
from tbexp.pipeline.sharing import Shard, attempts_of_shard
from tbexp.pipeline.submit import stages_campaign


def run_stages(config: Config, plan: Mapping[str, Any], *, ray: str | None, left: Callable[[], float | None]) -> None:
    """The plan's stages, in the run's folder. Attempts are not made here: the jobs before have made them."""
    part = config.model_copy(update={"stages": plan["stages"]})
    place = Place(attempts=False, ray=ray, left=left)
    sweep = InSweep(**plan["sweep"]) if plan["sweep"] else None
    run_here(part, run_dir=Path(plan["run_dir"]), overrides=plan["overrides"], place=place, sweep=sweep)


def make_part(config: Config, plan: Mapping[str, Any]) -> None:
    """One shard of a campaign's attempts, into the campaign's store. It belongs to no run, so nothing is tracked."""
    quiet_environment()
    with Progress() as progress:
        context = Context(config, Path(plan["run_dir"]), progress, Untracked())
        attempts_of_shard(context, stages_campaign(context, plan["campaign"]), Shard(plan["shard"], plan["of"]))
