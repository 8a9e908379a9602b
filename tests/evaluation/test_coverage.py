"""Simulated campaigns at the sample tasks, 20 attempts each: how often the intervals of the summary cover the truth.

A scripted policy passes each task at a rate of its own, known by the task's uid. What is simulated is its outcomes;
rows and figures go the way of a real evaluation.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from tbexp.attempts import AttemptRow
from tbexp.config.schema import Evaluation
from tbexp.evaluation import summarise
from tbexp.evaluation.intervals import fixed_tasks_interval, share_interval
from tbexp.samples import data_root

CAMPAIGNS, ATTEMPTS, TASKS = 2000, 20, 48
SETTINGS = Evaluation(name="coverage", bootstrap=200)
UIDS = [
    uid
    for name in ("held_out", "candidates")
    for uid in yaml.safe_load((data_root() / f"releases/{name}.yaml").read_text())
]
SLOTS = {f"task {i}": "all" for i in range(TASKS)}
ROWS = [
    [[AttemptRow(uid, a, passed, float(passed), finish_reason="done") for a in range(ATTEMPTS)] for uid in SLOTS]
    for passed in (False, True)
]


def rate_of(uid: str) -> float:
    """The scripted policy's: of one task in seven it is sure, two in seven it never solves, the others lie between."""
    place = zlib.crc32(uid.encode()) / 2**32
    return float(np.clip(1.75 * place - 0.5, 0.0, 1.0))


RATES = np.array([rate_of(uid) for uid in UIDS])


def summaries(rates: NDArray[np.float64], seed: int) -> Iterator[Mapping[str, Any]]:
    """The figures of each campaign. rates: campaigns x tasks."""
    rng = np.random.default_rng(seed)
    for each in rates:
        passed = (rng.random((TASKS, ATTEMPTS)) < each[:, None]).astype(int).tolist()
        rows = [ROWS[ok][i][a] for i, line in enumerate(passed) for a, ok in enumerate(line)]
        yield summarise({"base": rows}, attempts=ATTEMPTS, tasks=SLOTS, settings=SETTINGS)["policies"]["base"]


def covers(figure: Mapping[str, Any], truth: float, prefix: str = "") -> bool:
    return bool(figure[f"{prefix}low"] <= truth <= figure[f"{prefix}high"])


def test_intervals_over_tasks_cover_the_population_that_tasks_are_drawn_from_and_fixed_ones_the_same_tasks() -> None:
    assert len(UIDS) > 2 * TASKS
    drawn = RATES[np.random.default_rng(11).integers(0, len(RATES), (CAMPAIGNS, TASKS))]
    truth = {
        "pass_at_1": RATES.mean(),
        "passed_at_least_once": (1 - (1 - RATES) ** ATTEMPTS).mean(),
        "observed_all_k": (RATES**ATTEMPTS).mean(),
    }
    covered = dict.fromkeys([*truth, "the same tasks"], 0)
    for rates, figures in zip(drawn, summaries(drawn, seed=12), strict=True):
        for name in truth:
            covered[name] += covers(figures[name], truth[name])
        covered["the same tasks"] += covers(figures["pass_at_1"], rates.mean(), "fixed_")
    shares = {name: count / CAMPAIGNS for name, count in covered.items()}
    assert all(0.925 <= share <= 0.975 for share in shares.values()), shares


def test_fixed_task_intervals_cover_the_rate_of_the_held_out_tasks_attempted_again() -> None:
    rates = RATES[:TASKS]
    n = np.full(TASKS, float(ATTEMPTS))
    found = [
        fixed_tasks_interval(n, passed.astype(float))
        for passed in np.random.default_rng(13).binomial(ATTEMPTS, rates, (CAMPAIGNS, TASKS))
    ]
    assert 0.925 <= sum(low <= rates.mean() <= high for low, high in found) / CAMPAIGNS <= 0.975


@pytest.mark.parametrize("passed", [0, 3, 48])
def test_a_share_of_tasks_has_the_interval_of_a_count(passed: int) -> None:
    rows = [ROWS[i < passed][i][a] for i in range(TASKS) for a in range(ATTEMPTS)]
    figures = summarise({"base": rows}, attempts=ATTEMPTS, tasks=SLOTS, settings=SETTINGS)["policies"]["base"]
    low, high = figures["observed_all_k"]["low"], figures["observed_all_k"]["high"]
    assert (low, high) == share_interval(passed, TASKS)
    for same in (figures["pass_at_k"]["20"], figures["pass_power_k"]["20"], figures["passed_at_least_once"]):
        assert (same["low"], same["high"]) == (low, high)
