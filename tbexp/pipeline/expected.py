"""The forecast from the probe against the training, while it runs and when it is done: what trackers are told of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tbexp.config.schema import Config
from tbexp.pipeline.context import Context
from tbexp.pipeline.prices import name_of

if TYPE_CHECKING:
    from tbexp.selection.happened import Pool

THROWN = ("attempts", "failed_tries", "tokens", "prompt_tokens", "attempt_seconds", "seconds", "usd")


def pool_of(run: Context, uids: Sequence[str]) -> Pool | None:
    """The posteriors of the tasks that are trained on; None where the selection's rows do not know them."""
    from tbexp.selection import read_tasks
    from tbexp.selection.happened import Pool

    folder = run.run_dir / "select"
    if not (folder / "tasks.jsonl").exists():
        return None
    wanted = set(uids)
    rows = [row for row in read_tasks(folder) if row["uid"] in wanted]
    if len(rows) != len(wanted):
        return None
    group = run.config.group
    return Pool.of(
        [row["alpha"] for row in rows],
        [row["beta"] for row in rows],
        group_size=group.size,
        groups_per_update=group.groups_per_update,
        refill_rounds=run.config.training.refill_rounds,
    )


def with_forecast(pool: Pool | None, config: Config, row: Mapping[str, float], step: int) -> dict[str, float]:
    """A step's metrics with what was expected of it, and with what its thrown-away attempts cost."""
    from tbexp.selection.happened import compare, metrics

    values = dict(row)
    usd = cost(config, row)
    if usd is not None:
        values["train/thrown_away/usd"] = usd
    for update in compare(pool, {step: row}) if pool else []:
        values |= metrics(update)
    return values


def cost(config: Config, row: Mapping[str, float]) -> float | None:
    from tbexp.evaluation.cost import thrown_away_usd
    from tbexp.training.rows import devices_of_update

    topology, prices = config.topology, config.prices
    devices = devices_of_update(row) or topology.nodes * topology.gpus_per_node
    price = prices.models.get(name_of(config))
    return thrown_away_usd(row, gpu_hour_usd=prices.gpu_hour_usd, devices=devices, price=price)


def sum_up(run: Context, pool: Pool | None, metrics_file: Path) -> None:
    """The whole training against its forecast, also of a training that another run has made."""
    from tbexp.selection.happened import compare, summary

    config = run.config
    steps = dict(read_steps(metrics_file, config.training.steps))
    updates = compare(pool, steps) if pool else []
    if not updates:
        return
    found = summary(updates)
    values: dict[str, float] = {}
    for name in THROWN:
        rows = [with_cost for row in steps.values() if (with_cost := _thrown(config, row, name)) is not None]
        if rows:
            values[f"train/thrown_away/total_{name}"] = sum(rows)
    if found.mixed_rate is not None:
        values["train/forecast/mixed_group_rate_error"] = found.mixed_rate - found.mixed_rate_untrained
        if found.mixed_rate_at_reward is not None:
            values["train/forecast/mixed_group_rate_error_at_reward"] = found.mixed_rate - found.mixed_rate_at_reward
    if found.thrown_away is not None:
        values["train/forecast/thrown_away_attempts_error"] = found.thrown_away - found.thrown_away_untrained
    run.tracker.metrics(values, config.training.steps)
    if found.mixed_rate is None or found.mixed_rate_at_reward is None or found.thrown_away is None:
        return
    run.results.append(
        (
            "forecast",
            f"mixed groups {found.mixed_rate:.0%}, forecast {found.mixed_rate_untrained:.0%} "
            f"({found.mixed_rate_at_reward:.0%} at the updates' rewards); attempts thrown away per update "
            f"{found.thrown_away:.0f}, forecast {found.thrown_away_untrained:.0f}",
        )
    )


def _thrown(config: Config, row: Mapping[str, float], name: str) -> float | None:
    return cost(config, row) if name == "usd" else row.get(f"train/thrown_away/{name}")


def read_steps(file: Path, last: int) -> Iterator[tuple[int, dict[str, float]]]:
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["step"] <= last:
                yield row.pop("step"), row
