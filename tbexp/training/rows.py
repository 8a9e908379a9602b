"""The training's metrics: one JSON row per step, whatever was killed in between.

Each start of verl writes its own file (verl's file logger truncates). Decided here: `metrics.jsonl` is their merge, a
later start's row of a step replacing an earlier one's, plus our own names for what design.md calls a metric; verl's
names are kept beside them, with "@" written as "_at_" as MLflow needs it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tbexp.config.whole import write_whole
from tbexp.training.checkpoints import Validated

VALIDATION = "train/validation_pass_rate"
ATTEMPTS, MISSING = "train/validation_attempts", "train/validation_missing"

LEAST_CORRELATION = (
    0.9  # of the rollout's and the trainer's probabilities; equal weights were measured to give 0.99 and more
)

WATCHED = ("loss", "grad_norm")  # how the names of those figures of verl end that have to be finite

# verl draws them with replacement from a task's attempts in the order in which these ended: other figures from run to
# run, and not pass@k, which `evaluate` tells.
BOOTSTRAPPED = re.compile(r"val-(core|aux)/.*/(best|worst|maj)@\d+/")

OURS = {
    "train/entropy_of_samples": "train/entropy",  # verl's own, if it is computed, replaces it
    "actor/grad_norm": "train/grad_norm",
    "actor/lr": "train/lr",
    "actor/pg_clipfrac": "train/clip_fraction",
    "actor/ppo_kl": "train/rollout_trainer_kl",
    "response_length/mean": "train/response_tokens",
    "prompt_length/mean": "train/prompt_tokens",
    "training/num_turns/mean": "train/turns",
    "training/rollout_probs_diff_mean": "train/rollout_probability_difference",
    "training/rollout_probs_diff_max": "train/rollout_probability_difference_max",
    "training/rollout_actor_probs_pearson_corr": "train/rollout_probability_correlation",
    "perf/throughput": "train/tokens_per_second_per_gpu",
    "timing_s/step": "train/seconds/step",
    "timing_s/gen": "train/seconds/generation",
    "timing_s/old_log_prob": "train/seconds/old_log_prob",
    "timing_s/update_actor": "train/seconds/update",
    "timing_s/update_weights": "train/seconds/weight_sync",
    "timing_s/save_checkpoint": "train/seconds/save",
    "timing_s/testing": "train/seconds/validation",
}


def named(data: Mapping[str, Any]) -> dict[str, float]:
    """verl's figures of one step under our names and its own; what is no finite number, or differs from run to run
    (`BOOTSTRAPPED`), is left out."""
    row: dict[str, float] = {}
    for key, value in data.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            continue
        if BOOTSTRAPPED.match(key):
            continue
        row[key.replace("@", "_at_")] = float(value)
        if key in OURS:
            row[OURS[key]] = float(value)
        if key.startswith("val-core/validation/reward/mean@"):
            row[VALIDATION] = float(value)
    if "train/thrown_away/token_share" in row and "timing_s/gen" in row:
        # Of the time in which all devices generate: what the thrown-away attempts kept them busy for.
        row["train/thrown_away/seconds"] = row["train/thrown_away/token_share"] * row["timing_s/gen"]
    if "train/seconds/requests" in row and "timing_s/gen" in row and row.get("timing_s/step"):
        # Nothing is asked for: all of generation without a request, and of that what all attempts under way spend with
        # their tools, users, graders and starts. The rest is handing out and collecting.
        idle = row["timing_s/gen"] - row["train/seconds/requests"]
        sandbox = row["train/seconds/attempts"] - row["train/seconds/requests"]
        row["train/devices_waiting_share"] = max(0.0, idle) / row["timing_s/step"]
        row["train/sandbox_waiting_share"] = max(0.0, sandbox) / row["timing_s/step"]
    if "actor/entropy" in row:
        row["train/entropy"] = row["actor/entropy"]
    if "training/rollout_probs_diff_mean" in row:
        # The old log-probabilities are the trainer's own, so verl's ppo_kl is of the trainer against itself.
        row.pop("train/rollout_trainer_kl", None)
        if "rollout_corr/kl" in row:
            row["train/rollout_trainer_kl"] = row["rollout_corr/kl"]
    return row


def devices_of_update(row: Mapping[str, float]) -> int | None:
    """The devices of an update, which verl tells by its throughput: tokens of the update / (its seconds x devices).
    None of a row without an update.
    """
    tokens, seconds, each = (row.get(f"perf/{name}") for name in ("total_num_tokens", "time_per_step", "throughput"))
    if not (tokens and seconds and each):
        return None
    return max(1, round(tokens / (seconds * each)))


def read(file: Path) -> dict[int, dict[str, Any]]:
    """Rows of a JSONL file by step; a torn last line is dropped, a later row of a step is added over an earlier one."""
    rows: dict[int, dict[str, Any]] = {}
    if not file.exists():
        return rows
    for line in file.read_bytes().split(b"\n")[:-1]:
        try:
            row = json.loads(line)
            step, data = int(row["step"]), row["data"]
        except (ValueError, KeyError, TypeError):
            continue
        rows[step] = rows.get(step, {}) | data
    return rows


def foreign(rows: Mapping[int, Mapping[str, float]]) -> list[int]:
    """Updates whose attempts came, by their probabilities, from other weights than the trainer's."""
    name = OURS["training/rollout_actor_probs_pearson_corr"]
    return [step for step, row in rows.items() if row.get(name, 1.0) < LEAST_CORRELATION]


def not_finite(data: Mapping[str, Any]) -> str | None:
    """The first watched figure of a row that is no finite number; verl's file logger writes these as null."""
    for name, value in data.items():
        if name.endswith(WATCHED) and (value is None or (isinstance(value, float) and not math.isfinite(value))):
            return name
    return None


def broken(file: Path) -> dict[int, str]:
    """By step, a watched figure of this start that is not finite."""
    found = {step: not_finite(data) for step, data in read(file).items()}
    return {step: name for step, name in found.items() if name is not None}


def fragment_name(number: int, step: int) -> str:
    """The file of the start `number` (0, 1, ...) that goes on from `step`."""
    return f"rows-{number:04d}-from-{step}.jsonl"


def fragments(folder: Path) -> list[Path]:
    return sorted(folder.glob("rows-*-from-*.jsonl"))


def merge(files: Iterable[Path]) -> dict[int, dict[str, float]]:
    """The rows of all starts in order. A start takes back what earlier ones wrote about steps after its own first.

    Validation of a step that the run went on from is logged alone, by the start that went on: it joins the step's row.
    An update whose loss or gradient is not finite (`nonfinite`) has no row.
    """
    rows: dict[int, dict[str, float]] = {}
    for file in files:
        start = int(file.stem.rsplit("-", 1)[1])
        rows = {step: row for step, row in rows.items() if step <= start}
        for step, data in read(file).items():
            if not_finite(data) is not None:
                continue
            new = named(data)
            trained = "train/seconds/step" in new
            rows[step] = new if trained else rows.get(step, {}) | new
    return {step: rows[step] for step in sorted(rows)}


def write(file: Path, rows: Mapping[int, Mapping[str, float]]) -> None:
    """Replaces `file` at once."""
    write_whole(file, "".join(json.dumps({"step": step, **rows[step]}) + "\n" for step in sorted(rows)))


def trained_steps(rows: Mapping[int, Mapping[str, float]]) -> list[int]:
    return [step for step, row in rows.items() if "train/seconds/step" in row]


def of_attempts(
    rows: Mapping[int, dict[str, float]], noted: Mapping[int, tuple[int, float]], planned: int
) -> dict[int, dict[str, float]]:
    """Rows whose validation is of all attempts that ended: verl's own is of those tasks alone that lost none.

    noted: by step, attempts that ended and the sum of their rewards; where it is not known verl's stays. planned:
    attempts of a validation.
    """
    found = dict(rows)
    for step, (attempts, reward) in noted.items():
        if attempts and VALIDATION in rows.get(step, {}):
            new = {VALIDATION: reward / attempts, ATTEMPTS: float(attempts), MISSING: float(planned - attempts)}
            found[step] = rows[step] | new
    return found


def validation(rows: Mapping[int, Mapping[str, float]], planned: int) -> dict[int, Validated]:
    """planned: attempts of a validation, where a row does not say how many ended."""
    return {
        step: Validated(row[VALIDATION], int(row.get(ATTEMPTS, planned)), int(row.get(MISSING, 0)))
        for step, row in rows.items()
        if VALIDATION in row
    }
