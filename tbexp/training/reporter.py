"""What a training tells while it runs: its rows on disk and to whoever tracks them, how far it is.

Decided here: the parent, not verl, keeps `metrics.jsonl`; checkpoints that are no longer needed go when a row comes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tbexp.training import checkpoints, groups, rows

log = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]  # steps done, steps in all, what is happening
Metrics = Callable[[Mapping[str, float], int], None]  # figures of a step


class Reporter:
    """Merges rows into `metrics.jsonl`, hands new ones on, and removes checkpoints that may go."""

    def __init__(
        self,
        folder: Path,
        *,
        steps: int,
        keep: int,
        trials: int,
        progress: Progress | None,
        metrics: Metrics | None,
    ):
        self._folder = folder
        self.steps = steps
        self._progress = progress
        self._metrics = metrics
        self._keep = keep
        self._trials = trials  # attempts planned for one validation
        self._seen = 0
        self._row_at = time.monotonic()
        self._start = 0
        self.fragment = folder / "verl" / "none"
        self.rows: dict[int, dict[str, float]] = {}
        self._handed: dict[int, dict[str, float]] = {}
        self.broken: dict[int, str] = {}  # figures that are not finite, by step, of this start
        self._merge()

    def begin(self, step: int) -> None:
        """A start of verl that goes on from `step`: its rows come into a file of their own."""
        number = len(rows.fragments(self._folder / "verl"))
        self.fragment = self._folder / "verl" / rows.fragment_name(number, step)
        self.fragment.touch()
        self._start = step
        self._merge()

    def say(self, what: str) -> None:
        if self._progress:
            self._progress(self.done(), self.steps, what)

    def look(self) -> None:
        """Reads what verl has written since the last look."""
        size = self.fragment.stat().st_size
        if size == self._seen:
            return
        self._seen = size
        self._row_at = time.monotonic()
        self._merge()
        self._hand_on()
        prune(self._folder, self.rows, self._keep, self._trials)
        self.say("training")

    def done(self) -> int:
        """The last step that is finished and recorded."""
        return max(rows.trained_steps(self.rows), default=0)

    def made(self) -> int:
        """Steps of this start."""
        return self.done() - self._start

    def since_row(self) -> float:
        """Seconds since the last row came, or since verl was started."""
        return time.monotonic() - self._row_at

    def _merge(self) -> None:
        verls = rows.merge(rows.fragments(self._folder / "verl"))
        noted = groups.read_validations(self._folder / "verl" / groups.VALIDATIONS)
        self.rows = rows.of_attempts(verls, noted, self._trials)
        self.broken = rows.broken(self.fragment)
        rows.write(self._folder / "metrics.jsonl", self.rows)

    def _hand_on(self) -> None:
        """Rows that are new or have changed. A start hands on those of earlier ones too: an update that is made again
        after a kill replaces what was told of it, and whoever listens may have missed the last ones.
        """
        for step in rows.foreign(self.rows):
            if step > self._start and step not in self._handed:
                log.warning(
                    "update %d: its attempts were not made with the weights that are trained (the correlation of their "
                    "probabilities is %.2f): was the inference engine given another training's weights?",
                    step,
                    self.rows[step]["train/rollout_probability_correlation"],
                )
        for step, row in self.rows.items():
            if self._metrics and self._handed.get(step) != row:
                self._metrics(row, step)
            self._handed[step] = row


def prune(folder: Path, history: Mapping[int, Mapping[str, float]], keep: int, trials: int) -> None:
    """Removes checkpoints beyond the newest `keep` and the one that would be chosen; those without a row yet stay."""
    logged = rows.trained_steps(history)
    whole = {c.step: c.folder for c in checkpoints.found(folder / "checkpoints") if not c.fault and c.step in logged}
    best = checkpoints.best_step(rows.validation(history, trials), whole)
    for step in checkpoints.expendable(list(whole), keep=keep, best=best):
        checkpoints.remove(whole[step])
