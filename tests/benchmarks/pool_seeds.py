"""Figures of several seeds together: each seed's own, then all pooled, with intervals by bootstrap over tasks.

    python tests/benchmarks/pool_seeds.py outputs/laptop/seed*

A task's seeds are kept together in every bootstrap sample, so that the interval answers for other tasks, not for other
draws at the same ones.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml

from tbexp.attempts import AttemptStore
from tbexp.config.schema import Evaluation
from tbexp.evaluation import summarise


def main(folders: list[Path]) -> None:
    seeds: dict[str, list] = {"base": [], "trained": []}
    domains: dict[str, str] = {}
    settings = None
    for folder in folders:
        config = yaml.safe_load((folder / "config.yaml").read_text())
        settings = Evaluation.model_validate(config["evaluation"])
        for name, runs in seeds.items():
            with AttemptStore(folder / "evaluate" / name, read_only=True) as store:
                rows = [row for row in store.rows() if row.attempt < settings.attempts]
            runs.append(rows)
            domains |= {row.uid: row.domain for row in rows}
        print(f"\n{folder} (seed {config['seed']})")
        show(json.loads((folder / "evaluate" / "summary.json").read_text()), settings.attempts)
    assert settings is not None
    print(f"\nall {len(folders)} seeds, {len(domains)} tasks")
    show(summarise(seeds, attempts=settings.attempts, tasks=domains, settings=settings), settings.attempts)


def show(summary: dict, k: int) -> None:
    for name, found in summary["policies"].items():
        parts = [("pass@1", found["pass_at_1"]), (f"pass@{k}", found["pass_at_k"][str(k)])]
        parts += [(f"observed {k}/{k}", found["observed_all_k"])]
        figures = ", ".join(f"{label} {span(figure)}" for label, figure in parts)
        print(f"  {name:8} {figures}; tasks passed every time {found['observed_all_k']['tasks']}")
    change = summary["difference"]
    print(f"  change   pass@1 {span(change['pass_at_1'])}, observed {k}/{k} {span(change['observed_all_k'])}")


def span(figure: dict) -> str:
    return f"{figure['value']:.4f} [{figure['low']:.4f}, {figure['high']:.4f}]"


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
