"""A run folder as a whole experiment leaves it, made from a known population of tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.special import betainc

BANDS = ("rarely", "hard", "medium", "often", "nearly_always")
EDGES = (0.0, 0.08, 0.40, 0.60, 0.90, 1.0)
TOPICS = ("early_return", "downgrade", "deposit", "damage", "refund", "duplicate_invoice")
NOTE = "The held-out tasks share the candidates' rules: they are new combinations of customer, facts and conditions."
Build = Callable[..., Path]


def lines(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def attempts(random: np.random.Generator, rates: dict[str, float], n: int, errors: float) -> list[dict[str, Any]]:
    rows = []
    for uid, rate in rates.items():
        for attempt in range(n):
            passed = bool(random.random() < rate)
            row = {"uid": uid, "attempt": attempt, "domain": uid.split(".")[0], "tries": 1, "turns": 5}
            row |= {"seconds": float(random.gamma(4, 0.6)), "completion_tokens": int(random.integers(80, 300))}
            if random.random() < errors:
                error = {"kind": "tool_timeout", "message": "rentals.close did not answer <b>within</b> 60 s"}
                rows.append(row | {"passed": None, "reward": 0.0, "system_error": error, "finish_reason": ""})
                row["tries"] = 2
            reason = (
                "agent_stop"
                if passed
                else str(random.choice(["agent_stop", "max_actions", "token_limit"], p=[0.7, 0.2, 0.1]))
            )
            rows.append(
                row | {"passed": passed, "reward": float(passed), "system_error": None, "finish_reason": reason}
            )
    return rows


def task_row(uid: str, n: int, k: int, errors: int) -> dict[str, Any]:
    masses = np.diff([betainc(k + 0.5, n - k + 0.5, edge) for edge in EDGES])
    band = BANDS[int(masses.argmax())]
    kept = band in BANDS[1:4]
    grid = (np.arange(400) + 0.5) / 400
    weight = np.diff(betainc(k + 0.5, n - k + 0.5, np.linspace(0, 1, 401)))
    return {
        "uid": uid,
        "clean": n,
        "passed": k,
        "failed": n - k,
        "system_errors": errors,
        "alpha": k + 0.5,
        "beta": n - k + 0.5,
        "masses": dict(zip(BANDS, map(float, masses), strict=True)),
        "band": band,
        "interval": [0.1, 0.7],
        "kept": kept,
        "mixed_probability": float(((1 - grid**8 - (1 - grid) ** 8) * weight).sum()),
        "reasons": [] if kept else ["band_not_kept"],
    }


def figures_of(rows: list[dict[str, Any]], n: int) -> dict[str, Any]:
    passes: dict[str, int] = {}
    for row in rows:
        passes[row["uid"]] = passes.get(row["uid"], 0) + (row["passed"] is True)
    counts = np.array(list(passes.values()))

    def figure(values: np.ndarray) -> dict[str, float]:
        spread = 1.96 * values.std() / np.sqrt(len(values))
        return {
            "value": float(values.mean()),
            "low": float(values.mean() - spread),
            "high": float(values.mean() + spread),
        }

    every = figure((counts == n).astype(float)) | {"tasks": int((counts == n).sum())}
    return {
        "tasks": len(counts),
        "attempts": len(counts) * n,
        "coverage": 1.0,
        "pass_at_1": figure(counts / n),
        "pass_at_k": {str(n): figure((counts > 0).astype(float))},
        "observed_all_k": every,
    }


@pytest.fixture(scope="session")
def build_run() -> Build:
    """build(folder, parts=..., held_out=48, n=20): writes a run folder of the given parts."""

    def build(
        folder: Path, parts: Iterable[str] = ("probe", "select", "train", "evaluate"), held_out: int = 48, n: int = 20
    ) -> Path:
        random = np.random.default_rng(3)
        folder.mkdir(parents=True, exist_ok=True)
        bands = {
            b: {"upper": e if e < 1 else None, "keep": b in BANDS[1:4]} for b, e in zip(BANDS, EDGES[1:], strict=True)
        }
        config = {
            "name": "laptop",
            "seed": 1,
            "model": {"name": "tiny"},
            "tasks": {"name": "rental"},
            "buckets": {"bands": bands},
            "probe": {"attempts": 8},
            "group": {"size": 8, "groups_per_update": 6},
            "optimizer": {"lr": 0.0003},
            "training": {"steps": 40},
            "evaluation": {"attempts": n},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        stages = {
            "probe": {"seconds": 95.0},
            "select": {"seconds": 0.8},
            "train": {"seconds": 560.0},
            "evaluate": {"seconds": 210.0},
        }
        manifest = {
            "versions": {"tbexp": "0.1.0", "python": "3.11.7"},
            "git_commit": "0123456789abcdef",
            "stages": {name: stages[name] for name in stages if name in parts},
            "notes": [NOTE],
        }
        (folder / "manifest.json").write_text(json.dumps(manifest))

        def rates(count: int, prefix: str) -> dict[str, float]:
            return {
                f"{TOPICS[i % 6]}.py:{prefix}_{TOPICS[i % 6]}_{i:02}": float(random.beta(0.6, 0.9))
                for i in range(count)
            }

        candidates = rates(64, "candidate")
        probe = attempts(random, candidates, 8, 0.01)
        if "probe" in parts:
            lines(folder / "probe/attempts.jsonl", probe)
        if "select" in parts:
            passes = {uid: sum(r["uid"] == uid and r["passed"] is True for r in probe) for uid in candidates}
            lines(folder / "select/tasks.jsonl", [task_row(uid, 8, k, 0) for uid, k in sorted(passes.items())])
            (folder / "select/manifest.json").write_text(json.dumps({"summary": {"forecast": {"mixed_rate": 0.78}}}))
        if "train" in parts:
            steps = []
            for step in range(1, 41):
                level = 0.3 + 0.35 * (1 - np.exp(-step / 14))
                row = {
                    "step": step,
                    "train/reward_mean": float(level + random.normal(0, 0.05)),
                    "train/mixed_group_rate": float(np.clip(0.8 - step / 110 + random.normal(0, 0.08), 0, 1)),
                    "train/refilled/zero_variance": float(random.integers(0, 4)),
                    "train/seconds/step": 9.0,
                    "train/seconds/generation": 6.1,
                    "train/seconds/update": 2.1,
                    "train/seconds/weight_sync": 0.3,
                }
                if step % 10 == 0:
                    row["train/validation_pass_rate"] = float(level + random.normal(0, 0.03))
                steps.append(row)
            lines(folder / "train/metrics.jsonl", steps)
            (folder / "train/result.json").write_text(json.dumps({"chosen_step": 30}))
        if "evaluate" in parts:
            before = rates(held_out, "task")
            lost = set(list(before)[5::17])
            after = {
                uid: 0.0 if uid in lost else float(np.clip(0.25 + 1.05 * rate + random.normal(0, 0.15), 0, 1))
                for uid, rate in before.items()
            }
            policies = {}
            for name, level in (("base", before), ("trained", after)):
                rows = attempts(random, level, n, 0.004)
                lines(folder / f"evaluate/{name}/attempts.jsonl", rows)
                topics = sorted({row["domain"] for row in rows})
                by_topic = {t: figures_of([row for row in rows if row["domain"] == t], n) for t in topics}
                cost = {"campaign_usd": 12.0, "per_reliable_task_usd": 24.36 if name == "base" else 8.0}
                policies[name] = figures_of(rows, n) | {"by_domain": by_topic, "cost": cost}
            change = {}
            for key in ("pass_at_1", "observed_all_k"):
                value = policies["trained"][key]["value"] - policies["base"][key]["value"]
                change[key] = {"value": value, "low": value - 0.07, "high": value + 0.07}
            (folder / "evaluate/summary.json").write_text(json.dumps({"policies": policies, "difference": change}))
        return folder

    return build
