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
from scipy.special import gammaln

from tbexp.attempts import AttemptRow
from tbexp.config.schema import Evaluation
from tbexp.evaluation import TaskCounts, pair, summarise
from tbexp.evaluation.intervals import (
    fixed_tasks_every_time_interval,
    fixed_tasks_interval,
    paired_share_interval,
    share_interval,
)
from tbexp.samples import data_root

CAMPAIGNS, ATTEMPTS, TASKS = 2000, 20, 48
SETTINGS = Evaluation(name="coverage", bootstrap=800)
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


def covers(figure: Mapping[str, Any], truth: float, prefix: str = "", width: float = 1.0) -> bool:
    """width: of the interval, to see what a wrong one would give."""
    low, high = figure[f"{prefix}low"], figure[f"{prefix}high"]
    middle, half = (low + high) / 2, width * (high - low) / 2
    return bool(abs(truth - middle) <= half + 1e-12)


def as_wanted(share: float) -> bool:
    return 0.925 <= share <= 0.975


def test_intervals_over_tasks_cover_the_population_that_tasks_are_drawn_from_and_fixed_ones_the_same_tasks() -> None:
    assert len(UIDS) > 2 * TASKS
    drawn = RATES[np.random.default_rng(11).integers(0, len(RATES), (CAMPAIGNS, TASKS))]
    truth = {
        "pass_at_1": RATES.mean(),
        "passed_at_least_once": (1 - (1 - RATES) ** ATTEMPTS).mean(),
        "observed_all_k": (RATES**ATTEMPTS).mean(),
        "claimed_success": 1 - RATES.mean(),  # every attempt of these rows claims it
    }
    covered: dict[str, list[bool]] = {name: [] for name in [*truth, "same pass_at_1", "same observed_all_k"]}
    narrow: dict[str, list[bool]] = {name: [] for name in covered}
    for rates, figures in zip(drawn, summaries(drawn, seed=12), strict=True):
        same = {"same pass_at_1": rates.mean(), "same observed_all_k": (rates**ATTEMPTS).mean()}
        for name, value in (truth | same).items():
            prefix = "fixed_" if name in same else "share_" if name == "claimed_success" else ""
            figure = figures[name.removeprefix("same ")]
            covered[name].append(covers(figure, value, prefix))
            narrow[name].append(covers(figure, value, prefix, width=0.5))
    shares = {name: float(np.mean(each)) for name, each in covered.items()}
    assert all(map(as_wanted, shares.values())), shares
    # Half as wide, none of them would pass.
    wrong = {name: float(np.mean(each)) for name, each in narrow.items()}
    assert not any(map(as_wanted, wrong.values())), wrong


def test_fixed_task_intervals_cover_what_the_held_out_tasks_do_when_they_are_attempted_again() -> None:
    rates = RATES[:TASKS]
    n = np.full(TASKS, float(ATTEMPTS))
    truth = {"pass@1": rates.mean(), "every time": (rates**ATTEMPTS).mean()}
    covered: dict[str, list[bool]] = {name: [] for name in truth}
    for passed in np.random.default_rng(13).binomial(ATTEMPTS, rates, (CAMPAIGNS, TASKS)):
        share = float((passed == ATTEMPTS).mean())
        found = {
            "pass@1": fixed_tasks_interval(n, passed.astype(float)),
            "every time": fixed_tasks_every_time_interval(n, passed.astype(float), ATTEMPTS, share),
        }
        for name, (low, high) in found.items():
            covered[name].append(low <= truth[name] <= high)
    shares = {name: float(np.mean(each)) for name, each in covered.items()}
    assert all(map(as_wanted, shares.values())), shares


def test_intervals_of_paired_differences_cover_those_of_the_population() -> None:
    """A second policy that moves each task's rate by an amount of the task's own."""
    moved = np.array([zlib.crc32(f"after {uid}".encode()) / 2**32 for uid in UIDS])
    after = np.clip(RATES + 0.6 * moved - 0.1, 0.0, 1.0)
    truth = {"pass_at_1": (after - RATES).mean(), "every": (after**ATTEMPTS - RATES**ATTEMPTS).mean()}
    rng, shares = np.random.default_rng(14), {}
    for tasks in (12, TASKS):
        covered: dict[str, list[bool]] = {name: [] for name in truth}
        for _ in range(CAMPAIGNS):
            place = rng.integers(0, len(RATES), tasks)
            sides = [
                TaskCounts(ATTEMPTS, {str(i): (ATTEMPTS, int(c)) for i, c in enumerate(passed)}, {}, {})
                for passed in (rng.binomial(ATTEMPTS, RATES[place]), rng.binomial(ATTEMPTS, after[place]))
            ]
            found = pair(*sides, samples=800)
            for name, value in truth.items():
                change = getattr(found, name)
                covered[name].append(change.low <= value <= change.high)
        shares |= {f"{name} of {tasks} tasks": float(np.mean(each)) for name, each in covered.items()}
    # Few of 12 tasks change, so that the coverage of whole counts lies above.
    assert shares.pop("every of 12 tasks") >= 0.925
    assert all(map(as_wanted, shares.values())), shares


def test_the_interval_of_a_difference_of_shares_covers_whatever_the_shares_are() -> None:
    """By the exact distribution of gained and lost tasks, not by simulation."""
    pairs = [(gained, lost) for gained in range(TASKS + 1) for lost in range(TASKS + 1 - gained)]
    low, high = np.array([paired_share_interval(gained, lost, TASKS) for gained, lost in pairs]).T
    counts = np.array([[*both, TASKS - sum(both)] for both in pairs])
    ways = gammaln(TASKS + 1) - gammaln(counts + 1).sum(axis=1)
    covered = {}
    for gain, loss in [(g / 50, m / 50) for g in range(1, 26) for m in range(1, g + 1)]:
        chance = np.exp(ways + counts @ np.log([gain, loss, 1 - gain - loss + 1e-300]))
        covered[gain, loss] = float(chance[(low <= gain - loss) & (gain - loss <= high)].sum())
    assert min(covered.values()) >= 0.93, min(covered.items(), key=lambda each: each[1])
    assert 0.945 <= np.mean(list(covered.values())) <= 0.965


@pytest.mark.parametrize("passed", [0, 3, 48])
def test_a_share_of_tasks_has_the_interval_of_a_count(passed: int) -> None:
    rows = [ROWS[i < passed][i][a] for i in range(TASKS) for a in range(ATTEMPTS)]
    figures = summarise({"base": rows}, attempts=ATTEMPTS, tasks=SLOTS, settings=SETTINGS)["policies"]["base"]
    low, high = figures["observed_all_k"]["low"], figures["observed_all_k"]["high"]
    assert (low, high) == share_interval(passed, TASKS)
    for same in (figures["pass_at_k"]["20"], figures["pass_power_k"]["20"], figures["passed_at_least_once"]):
        assert (same["low"], same["high"]) == (low, high)
