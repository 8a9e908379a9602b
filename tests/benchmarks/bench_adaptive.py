"""What adaptive probing saves: `python tests/benchmarks/bench_adaptive.py [PROBE ...] [--budget 8] [--level 0.95]`.

First table: task sets of known pass rates, simulated. `attempts` is the share of tasks x budget that is made, `equal`
the share of tasks that selection decides as from the full budget, `right` the share decided as their known rates say,
by the full budget, by the early stop, and by spending what was saved. Second table, for each PROBE (a folder with the
attempts of a full probe): the same prefixes of its attempts replayed, by selection's own decisions.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from tbexp.attempts import AttemptStore, Counts
from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder
from tbexp.config.schema import Config
from tbexp.selection import Spend, StoppingRule, confidence_of, prefix_of, select
from tbexp.selection.prefix import kept_rates

POPULATIONS = ("U-shaped", "uniform", "hopeless-heavy")
Outcomes = dict[str, dict[int, bool | None]]


def rates(population: str, rng: np.random.Generator, tasks: int) -> np.ndarray:
    if population == "U-shaped":
        return rng.beta(0.5, 0.5, tasks)
    if population == "uniform":
        return rng.random(tasks)
    return np.where(rng.random(tasks) < 0.6, rng.beta(0.3, 20, tasks), rng.random(tasks))


def pool(config: Config, outcomes: Outcomes, used: dict[str, int]) -> set[str]:
    """The tasks that selection keeps from so many attempts of each."""
    tally = {}
    for uid, n in used.items():
        seen = [outcomes[uid][i] for i in range(n)]
        tally[uid] = (sum(x is not None for x in seen), sum(x is True for x in seen), sum(x is None for x in seen))
    made = select(Counts.of(tally), buckets=config.buckets, selection=config.selection, group_size=config.group.size)
    return set(made.pool)


def simulate(config: Config, rule: StoppingRule, tasks: int, seed: int) -> None:
    print("tasks           attempts  equal   right: full  stopped  saved ones spent")
    most = 3 * rule.budget
    spend = Spend(most, confidence_of(config.buckets, config.group.size))
    for population in POPULATIONS:
        rng = np.random.default_rng(seed)
        known = rates(population, rng, tasks)
        uids = [f"set.py:task_{i:06}" for i in range(tasks)]
        played = (rng.random((tasks, most)) < known[:, None]).tolist()
        outcomes: Outcomes = {uid: dict(enumerate(row)) for uid, row in zip(uids, played, strict=True)}
        right = np.zeros(tasks, dtype=bool)
        for low, high in kept_rates(config.buckets, config.group.size):
            right |= (known >= low) & (known < high)
        full, stopped, spent = (
            dict.fromkeys(uids, rule.budget),
            dict(prefix_of(uids, outcomes, rule).used),
            dict(prefix_of(uids, outcomes, rule, spend).used),
        )
        assert sum(spent.values()) <= tasks * rule.budget
        kept = [np.isin(uids, list(pool(config, outcomes, used))) for used in (full, stopped, spent)]
        share = sum(stopped.values()) / (tasks * rule.budget)
        scores = [float((each == right).mean()) for each in kept]
        print(
            f"{population:<15} {share:7.1%} {float((kept[0] == kept[1]).mean()):7.1%}"
            f"  {scores[0]:11.1%} {scores[1]:8.1%} {scores[2]:17.1%}"
        )


def replay(config: Config, rule: StoppingRule, folder: Path) -> None:
    with AttemptStore(folder, read_only=True) as store:
        rows = [row for row in store.rows() if row.attempt < rule.budget]
    outcomes: Outcomes = {}
    for row in rows:
        outcomes.setdefault(row.uid, {})[row.attempt] = row.passed
    found = prefix_of(outcomes, outcomes, rule)
    if found.missing:
        print(f"{folder}: {len(found.missing)} attempts are missing")
        return
    full, total = dict.fromkeys(outcomes, rule.budget), len(outcomes) * rule.budget
    before, after = pool(config, outcomes, full), pool(config, outcomes, dict(found.used))
    equal = sum((uid in before) == (uid in after) for uid in outcomes)
    saved = total - found.attempts
    print(
        f"{folder}\n"
        f"  {len(outcomes)} tasks: {found.attempts} of {total} attempts, {saved} saved ({saved / total:.1%}); "
        f"{equal} of {len(outcomes)} decisions equal ({equal / len(outcomes):.1%}); pool {len(before)} -> {len(after)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("probes", nargs="*", type=Path)
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--level", type=float, default=0.95)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with opened(conf_folder()) as compose:
        config = Config.model_validate(plain(compose(["probe=adaptive"])))
    rule = StoppingRule.of_settings(
        args.budget,
        buckets=config.buckets,
        min_clean=config.selection.min_clean,
        group_size=config.group.size,
        level=args.level,
        least=config.probe.least,
    )
    simulate(config, rule, args.tasks, args.seed)
    for folder in args.probes:
        replay(config, rule, folder)


if __name__ == "__main__":
    main()
