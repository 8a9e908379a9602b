"""What trackers are told of a training and its forecast."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder
from tbexp.config.schema import Config
from tbexp.pipeline.context import Context, Untracked
from tbexp.pipeline.expected import pool_of, sum_up, with_forecast
from tbexp.pipeline.progress import Progress

with opened(conf_folder()) as compose:
    VALUES = plain(compose(["group.groups_per_update=2", "training.steps=2", "topology.gpus_per_node=1"]))

ROW = {
    **{"train/groups/generated": 3.0, "train/groups/mixed": 2.0, "train/reward_mean": 0.5},
    **{"train/thrown_away/tokens": 100.0, "train/thrown_away/prompt_tokens": 1000.0, "train/thrown_away/seconds": 36.0},
}


class Told(Untracked):
    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def metrics(self, values: Any, step: int = 0) -> None:
        self.values |= values


def context(folder: Path, **prices: Any) -> Context:
    config = Config.model_validate({**VALUES, "prices": {**VALUES["prices"], **prices}})
    (folder / "select").mkdir(exist_ok=True)
    rows = [{"uid": f"t{n}", "alpha": n + 0.5, "beta": 8.5 - n} for n in range(9)]
    (folder / "select" / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Context(config, folder, Progress(io.StringIO()), Told())


def test_each_update_s_metrics_hold_its_forecast(tmp_path: Path) -> None:
    run = context(tmp_path)
    pool = pool_of(run, ["t3", "t4", "t5"])
    assert pool is not None
    told = with_forecast(pool, run.config, ROW, 1)
    assert told.items() >= ROW.items() and "train/thrown_away/usd" not in told
    assert told["train/forecast/mixed_group_rate"] == pytest.approx(pool.expected().mixed_rate)
    assert told["train/forecast/mixed_group_rate_at_reward"] == pytest.approx(pool.expected(0.5).mixed_rate)
    assert 0 < told["train/forecast/thrown_away_attempts"] < 16
    assert with_forecast(pool, run.config, {"train/validation_pass_rate": 0.5}, 0) == {
        "train/validation_pass_rate": 0.5
    }
    assert with_forecast(None, run.config, ROW, 1) == ROW
    assert pool_of(run, ["t3", "unknown"]) is None


@pytest.mark.parametrize(
    ("prices", "usd"),
    [
        ({}, None),
        ({"gpu_hour_usd": 5.0}, 0.05),  # 36 s of one device
        ({"models": {"tiny": {"prompt": 1.0, "completion": 10.0}}}, 0.002),
    ],
)
def test_the_sums_are_told_with_their_price_if_there_is_one(
    prices: dict[str, Any], usd: float | None, tmp_path: Path
) -> None:
    run = context(tmp_path, **prices)
    file = tmp_path / "metrics.jsonl"
    steps = [{"step": 0, "train/validation_pass_rate": 0.4}, *({"step": n, **ROW} for n in (1, 2, 3))]
    file.write_text("".join(json.dumps(row) + "\n" for row in steps))
    pool = pool_of(run, ["t3", "t4", "t5"])
    assert pool is not None
    sum_up(run, pool, file)
    told = run.tracker.values  # type: ignore[attr-defined]
    assert told["train/thrown_away/total_tokens"] == 200  # the third update belongs to a longer training
    assert told["train/forecast/mixed_group_rate_error"] == pytest.approx(2 / 3 - pool.expected().mixed_rate)
    assert told["train/forecast/thrown_away_attempts_error"] == pytest.approx(8 - pool.expected().thrown_away)
    if usd is None:
        assert "train/thrown_away/total_usd" not in told
    else:
        assert told["train/thrown_away/total_usd"] == pytest.approx(2 * usd)
    assert [name for name, _ in run.results] == ["forecast"]
