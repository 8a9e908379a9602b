"""What becomes of the groups that were generated for one update: the bookkeeping of `refill`, without verl."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tbexp.policy.policy import Usage
from tbexp.training.failures import Failure

GROUPS = "groups.jsonl"
VALIDATIONS = "validations.jsonl"  # how many attempts of a validation ended, and their rewards
OTHERS = "others.jsonl"  # what user and judge spent, a line for each update and each validation
UPDATE, VALIDATION = "update", "validation"


@dataclass
class Ledger:
    """What became of one update's groups. Kinds: mixed, flat (zero variance), failed."""

    wanted: int
    limit: int
    dispatched: int = 0
    kinds: dict[str, str] = field(default_factory=dict)
    draws: dict[str, int] = field(default_factory=dict)
    attempts: list[dict[str, Any]] = field(default_factory=list)  # what the agent loop noted, and `group`
    failures: list[Failure] = field(default_factory=list)  # tries that ended as system errors

    def count(self, kind: str) -> int:
        return sum(k == kind for k in self.kinds.values())

    def missing(self, inflight: int) -> int:
        """How many more groups to generate now, within the bound."""
        need = self.wanted - self.count("mixed") - inflight
        return max(0, min(need, self.limit - self.dispatched))

    def chosen(self) -> list[str]:
        """The groups to train on: the mixed ones, filled up with flat ones, each in stream order."""
        by_draw = sorted(self.kinds, key=lambda uid: self.draws.get(uid, 0))
        mixed = [uid for uid in by_draw if self.kinds[uid] == "mixed"]
        flat = [uid for uid in by_draw if self.kinds[uid] == "flat"]
        return [*mixed, *flat][: self.wanted]

    def lines(self, step: int) -> list[dict[str, Any]]:
        """What the report tells of each group, in stream order: its task, kind, rewards, and whether it was used."""
        chosen = set(self.chosen())
        found = []
        for uid in sorted(self.kinds, key=lambda uid: self.draws.get(uid, 0)):
            mine = [a for a in self.attempts if a.get("group") == uid]
            if mine:
                found.append(
                    {
                        "step": step,
                        "draw": int(self.draws.get(uid, 0)),
                        "task": mine[0].get("task"),
                        "kind": self.kinds[uid],
                        "used": uid in chosen,
                        "rewards": [float(a["reward"]) for a in mine],
                    }
                )
        return found

    def metrics(self) -> dict[str, float]:
        """Over all groups that were generated for the update, used or not.

        entropy_of_samples: mean of -log p over the tokens the policy drew, nats per token. That estimates the policy's
        entropy without bias when all of its distribution is sampled from.
        """
        clean = self.count("mixed") + self.count("flat")
        rewards = [a["reward"] for a in self.attempts]
        used_flat = max(0, self.wanted - self.count("mixed"))
        metrics = {
            "train/groups/generated": float(self.dispatched),
            "train/groups/mixed": float(self.count("mixed")),
            "train/refilled/zero_variance": float(self.count("flat") - min(used_flat, self.count("flat"))),
            "train/refilled/system_error": float(sum(a.get("retried", 0) for a in self.attempts)),
            "train/refilled/system_error_groups": float(self.count("failed")),
            "train/groups/zero_variance_used": float(min(used_flat, self.count("flat"))),
        }
        if clean:
            metrics["train/mixed_group_rate"] = self.count("mixed") / clean
        if tokens := sum(a.get("tokens", 0) for a in self.attempts):
            metrics["train/produced_tokens"] = float(tokens)
            metrics["train/entropy_of_samples"] = sum(a["surprise"] for a in self.attempts) / tokens
        if rewards:
            metrics["train/reward_mean"] = sum(rewards) / len(rewards)
        for name, tokens in self.others().items():
            metrics[f"train/others/{name}"] = float(tokens)
        return metrics | self.thrown_away() | attempt_metrics(self.attempts)

    def others(self) -> dict[str, int]:
        """Tokens of user and judge in all attempts, used or not, and in tries that ended as system errors."""
        return others_spent(self.attempts, self.failures)

    def thrown_away(self) -> dict[str, float]:
        """What was paid for and is not trained on: attempts of groups that were replaced, and tries that ended as
        system errors. Tokens are the policy's: produced, and given as prompts. Seconds are of attempts one by one.
        """
        chosen = set(self.chosen())
        lost = [a for a in self.attempts if a.get("group") not in chosen]
        spent = [
            *((a.get("tokens", 0), a.get("prompt_tokens", 0), a.get("seconds", {}).get("total", 0.0)) for a in lost),
            *((f.tokens, f.prompt_tokens, f.seconds) for f in self.failures),
        ]
        tokens, prompts, seconds = (sum(values) for values in zip((0, 0, 0.0), *spent, strict=True))
        produced = sum(a.get("tokens", 0) for a in self.attempts) + sum(f.tokens for f in self.failures)
        return {
            "train/thrown_away/attempts": float(len(lost)),
            "train/thrown_away/failed_tries": float(len(self.failures)),
            "train/thrown_away/tokens": float(tokens),
            "train/thrown_away/prompt_tokens": float(prompts),
            "train/thrown_away/attempt_seconds": float(seconds),
            **({"train/thrown_away/token_share": tokens / produced} if produced else {}),
        }


def note_groups(file: Path, ledger: Ledger, step: int) -> None:
    """Appends the update's groups; of an update that is made again after a restart the last lines count."""
    with file.open("a", encoding="utf-8") as stream:
        stream.write("".join(json.dumps(line) + "\n" for line in ledger.lines(step)))


def others_of(used: Mapping[str, Usage]) -> dict[str, int]:
    """{user_prompt_tokens, ...} of the roles that asked an endpoint, cached and reasoning ones if there are any."""
    return {
        f"{role}_{kind}_tokens": tokens
        for role, usage in used.items()
        for kind in ("prompt", "cached", "completion", "reasoning")
        if (tokens := getattr(usage, f"{kind}_tokens")) or kind in ("prompt", "completion")
    }


def others_spent(attempts: Iterable[Mapping[str, Any]], failures: Iterable[Failure]) -> dict[str, int]:
    """Summed over attempts, as the agent loop noted them, and over failed tries."""
    total: Counter[str] = Counter()
    for spent in (*(a.get("others") or {} for a in attempts), *(f.others for f in failures)):
        total.update(spent)
    return dict(sorted(total.items()))


def note_others(file: Path, step: int, kind: str, tries: int, tokens: Mapping[str, int]) -> None:
    """Appends what an update's or a validation's attempts cost besides the policy; tries: attempts and failed ones."""
    append(file, {"step": step, "kind": kind, "tries": tries, "tokens": dict(tokens)})


def append(file: Path, row: Mapping[str, Any]) -> None:
    """A line of its own, also after one that a killed process has left unfinished."""
    torn = file.exists() and not file.read_bytes().endswith(b"\n")
    with file.open("a", encoding="utf-8") as stream:
        stream.write(("\n" if torn else "") + json.dumps(row) + "\n")


def read_others(file: Path) -> dict[tuple[int, str], tuple[int, dict[str, int]]]:
    """{(step, kind): (tries, tokens)}; of a step that was made again after a restart the last line counts, and a line
    that a killed process has left unfinished does not. Empty where none was noted, as in trainings of older versions.
    """
    return {(row["step"], row["kind"]): (row["tries"], row["tokens"]) for row in whole_lines(file)}


def note_validation(file: Path, step: int, rewards: Sequence[float]) -> None:
    """Appends what the attempts of a validation got that did not end as system errors."""
    append(file, {"step": step, "attempts": len(rewards), "reward": sum(rewards)})


def read_validations(file: Path) -> dict[int, tuple[int, float]]:
    """{step: (attempts, sum of their rewards)}; of a step that was validated again the last line counts. Empty where
    none was noted, as in trainings of older versions.
    """
    return {row["step"]: (row["attempts"], row["reward"]) for row in whole_lines(file)}


def whole_lines(file: Path) -> list[dict[str, Any]]:
    """Without those that a killed process has left unfinished."""
    found = []
    for line in file.read_bytes().split(b"\n")[:-1] if file.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def attempt_metrics(attempts: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of what the agent loop noted: mean seconds per part, shares of finish reasons, of all attempts' seconds the share
    in which tools were waited for (calls only: the backend's start is a part of its own), and the seconds in which some
    attempt was under way and in which some attempt had a request at the rollout servers (by the clocks of all nodes;
    requests of tries that ended as system errors are not among them).
    """
    if not attempts:
        return {}
    metrics: dict[str, float] = {}
    for part in sorted({p for a in attempts for p in a.get("seconds", {})}):
        metrics[f"train/attempt_seconds/{part}"] = sum(a.get("seconds", {}).get(part, 0.0) for a in attempts) / len(
            attempts
        )
    asked = [(float(begin), float(end)) for a in attempts for begin, end in a.get("asked") or ()]
    spans = [(float(begin), float(end)) for begin, end in (a["span"] for a in attempts if "span" in a)]
    if asked and spans:
        metrics["train/seconds/requests"] = covered(asked)
        metrics["train/seconds/attempts"] = covered(spans)
    whole, tools = (sum(a.get("seconds", {}).get(part, 0.0) for a in attempts) for part in ("total", "tools"))
    if whole:
        metrics["train/tool_wait_share"] = tools / whole
    for reason, count in sorted(Counter(str(a.get("finish_reason")) for a in attempts).items()):
        metrics[f"train/finish/{reason}"] = count / len(attempts)
    return metrics


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of spans (begin, end): of requests, the time in which at least one was under way."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def kind_of(rewards: Iterable[float]) -> str:
    return "flat" if len(set(rewards)) == 1 else "mixed"
