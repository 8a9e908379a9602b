"""The jobs of a multirun: what Hydra's basic sweeper makes of a command line.

Decided here: that no other sweeper is taken, and that a key which the command sets is not swept over. What a sweep's
jobs have in common, and running them, is left to others (`pipeline.sweep`, `app`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tbexp.config.compose import Composer
from tbexp.errors import Problem, UserError


def jobs_of(compose: Composer, overrides: list[str]) -> list[list[str]]:
    """The overrides of each job of a multirun, by Hydra's own basic sweeper.

    A key that the command sets is not swept over by the ready sweep that it names, and keeps its place there: where the
    sweep's first key changes last, it does so with the command's values too.
    """
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    sweeper = compose(overrides, multirun=True).hydra.sweeper
    parser = OverridesParser.create(compose.loader)
    given = parser.parse_overrides(overrides)
    params = dict(sweeper.get("params") or {})
    lines = list(zip(overrides, given, strict=True))
    here = {override.key_or_group: line for line, override in lines if override.key_or_group in params}
    swept = [here.get(key, f"{key}={value}") for key, value in params.items()]
    others = [line for line, override in lines if override.key_or_group not in here]
    parsed = parser.parse_overrides([*swept, *others])
    return [list(job) for batch in BasicSweeper.split_arguments(parsed, None) for job in batch]


def refuse_other_sweepers(compose: Composer, overrides: Sequence[str]) -> None:
    """The jobs are run here, so a sweeper or launcher of Hydra's that was chosen would be passed over in silence."""
    chosen = [line for line in overrides if line.lstrip("+").startswith(("hydra/sweeper=", "hydra/launcher="))]
    wrong = [line for line in chosen if line.partition("=")[2] != "basic" and known(compose, line)]
    if wrong:
        fix = "leave it out; the jobs run one after the other, each with the launcher of the group launcher"
        raise UserError([Problem("tbexp runs the jobs of a sweep itself", line, fix) for line in wrong])


def known(compose: Composer, line: str) -> bool:
    group, _, option = line.lstrip("+").partition("=")
    return option in compose.options(group)


def ready_sweep(overrides: Sequence[str]) -> str | None:
    """The option of +sweep=."""
    chosen = [line.partition("=")[2] for line in overrides if line.lstrip("+").startswith("sweep=")]
    return chosen[0] if chosen and re.fullmatch(r"[\w-]+", chosen[0]) else None
