"""A run folder as a whole experiment leaves it: tasks of a known population, counted by the rooms that count."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tbexp.attempts.counts import Counts
from tbexp.attempts.row import AttemptRow
from tbexp.config.schema import Band, Bands, Buckets, Evaluation, ModelPrice, SelectionConfig
from tbexp.evaluation.cost import Spending
from tbexp.evaluation.summary import summarise
from tbexp.selection.select import select
from tbexp.selection.write import write_selection

BANDS = ("rarely", "hard", "medium", "often", "nearly_always")
UPPER = (0.08, 0.40, 0.60, 0.90, None)
TOPICS = ("early_return", "downgrade", "deposit", "damage", "refund", "duplicate_invoice")
NOTE = "The held-out tasks share the candidates' rules: they are new combinations of customer, facts and conditions."
SECONDS = {"probe": 95.0, "select": 0.8, "train": 560.0, "evaluate": 210.0}
BUCKETS = Buckets(
    name="default",
    bands=Bands(**{b: Band(upper=e, keep=b in BANDS[1:4]) for b, e in zip(BANDS, UPPER, strict=True)}),
)
Build = Callable[..., Path]


def lines(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def rates(random: np.random.Generator, count: int, prefix: str) -> dict[str, float]:
    names = [f"{TOPICS[i % 6]}.py:{prefix}_{TOPICS[i % 6]}_{i:02}" for i in range(count)]
    return {name: float(random.beta(0.6, 0.9)) for name in names}


def attempts(random: np.random.Generator, rates: dict[str, float], n: int, errors: float) -> list[AttemptRow]:
    rows = []
    for uid, rate in rates.items():
        for attempt in range(n):
            passed = bool(random.random() < rate)
            same: dict[str, Any] = {"uid": uid, "attempt": attempt, "domain": uid.split(".")[0], "turns": 5}
            same |= {"seconds": float(random.gamma(4, 0.6)), "completion_tokens": int(random.integers(80, 300))}
            failed = bool(random.random() < errors)
            if failed:
                error = {"kind": "tool_timeout", "message": "rentals.close did not answer <b>within</b> 60 s"}
                rows.append(AttemptRow(**same, passed=None, reward=0.0, system_error=error))
            reasons = ["done", "action_limit", "token_limit"]
            reason = "done" if passed else str(random.choice(reasons, p=[0.7, 0.2, 0.1]))
            rows.append(
                AttemptRow(**same, passed=passed, reward=float(passed), finish_reason=reason, tries=2 if failed else 1)
            )
    return rows


def training_steps(random: np.random.Generator, steps: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"step": 0, "train/validation_pass_rate": 0.31}]
    for step in range(1, steps + 1):
        level = 0.3 + 0.35 * (1 - np.exp(-step / 14))
        flat = float(random.integers(0, 2 + step // 8))
        row = {
            "step": step,
            "train/reward_mean": float(level + random.normal(0, 0.05)),
            "train/mixed_group_rate": 6 / (6 + flat),
            "train/groups/generated": 6 + flat,
            "train/groups/mixed": 6.0,
            "train/refilled/zero_variance": flat,
            "train/produced_tokens": (6 + flat) * 8 * 100,
            "train/thrown_away/attempts": flat * 8,
            "train/thrown_away/tokens": flat * 8 * 100,
            "train/thrown_away/prompt_tokens": flat * 8 * 900,
            "train/thrown_away/attempt_seconds": flat * 8 * 1.5,
            "train/thrown_away/seconds": 6.1 * flat / (6 + flat),
            "train/seconds/step": 9.0,
            "train/seconds/generation": 6.1,
            "train/seconds/update": 2.1,
            "train/seconds/weight_sync": 0.3,
        }
        if step % 10 == 0:
            row["train/validation_pass_rate"] = float(level + random.normal(0, 0.03))
        rows.append(row)
    return rows


@pytest.fixture(scope="session")
def build_run() -> Build:
    """build(folder, parts=..., held_out=48, n=20, missing=0): writes a run folder of the given parts. missing: so many
    tasks lack the trained policy's last attempt.
    """

    def build(
        folder: Path,
        parts: Iterable[str] = ("probe", "select", "train", "evaluate"),
        held_out: int = 48,
        n: int = 20,
        missing: int = 0,
    ) -> Path:
        random = np.random.default_rng(3)
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "name": "laptop",
            "seed": 1,
            "model": {"name": "tiny"},
            "tasks": {"name": "rental"},
            "buckets": BUCKETS.model_dump(),
            "probe": {"attempts": 8},
            "group": {"size": 8, "groups_per_update": 6},
            "optimizer": {"lr": 0.0003},
            "training": {"steps": 40, "refill_rounds": 4},
            "topology": {"nodes": 1, "gpus_per_node": 2},
            "prices": {"gpu_hour_usd": 3.0, "models": {}},
            "evaluation": {"attempts": n},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        manifest = {
            "versions": {"tbexp": "0.1.0", "python": "3.11.7"},
            "commit": "0123456789abcdef+",
            "stages": {name: {"seconds": SECONDS[name]} for name in SECONDS if name in parts},
            "notes": [NOTE],
        }
        (folder / "manifest.json").write_text(json.dumps(manifest))
        probe = attempts(random, rates(random, 64, "candidate"), 8, 0.01)
        if "probe" in parts:
            lines(folder / "probe/attempts.jsonl", (row.as_dict() for row in probe))
        if "select" in parts:
            chosen = select(
                Counts.of_rows(probe), buckets=BUCKETS, selection=SelectionConfig(name="default"), group_size=8
            )
            write_selection(folder / "select", chosen)
        if "train" in parts:
            lines(folder / "train/metrics.jsonl", training_steps(random, 40))
            (folder / "train/chosen.json").write_text(json.dumps({"step": 30}))
        if "evaluate" in parts:
            before = rates(random, held_out, "task")
            lost = set(list(before)[5::17])
            change = dict(zip(before, random.normal(0.25, 0.15, held_out), strict=True))
            after = {
                uid: 0.0 if uid in lost else float(np.clip(change[uid] + 1.05 * r, 0, 1)) for uid, r in before.items()
            }
            rows = {"base": attempts(random, before, n, 0.004), "trained": attempts(random, after, n, 0.004)}
            gone = {(uid, n - 1) for uid in list(before)[:missing]}
            rows["trained"] = [row for row in rows["trained"] if (row.uid, row.attempt) not in gone]
            for name, made in rows.items():
                lines(folder / f"evaluate/{name}/attempts.jsonl", (row.as_dict() for row in made))
            summary = summarise(
                rows,
                attempts=n,
                tasks={uid: uid.split(".")[0] for uid in before},
                settings=Evaluation(name="default", attempts=n, bootstrap=200, allow_partial=missing > 0),
                spending=dict.fromkeys(rows, Spending(policy=ModelPrice(completion=900.0))),
            )
            (folder / "evaluate/summary.json").write_text(json.dumps(summary))
        return folder

    return build
