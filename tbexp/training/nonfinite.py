"""A loss or a gradient norm that is no number: the training stops, and a checkpoint stays that it can go on from.

verl skips the optimiser step of a gradient that is not finite, goes on, and leaves weights that are not finite where a
finite step was too large. Decided here: the first such update ends the training. Its row is not recorded, so its
checkpoint is neither gone on from nor chosen. When there is a whole checkpoint before it, the training ends at once;
when none was due yet, verl saves after the update under way, which counts if that update is finite again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tbexp.errors import WorldFailure
from tbexp.training import checkpoints, stopping

PATIENCE = 2  # updates that a save is waited for


class Watch:
    """Looks at the rows of one start of verl. work: the stage's folder `verl`."""

    def __init__(self, folder: Path, save_every: int):
        self._folder = folder
        self._save_every = save_every
        self._asked: int | None = None  # the newest row when verl was asked to save

    def look(self, broken: Mapping[int, str], recorded: Mapping[int, Any], *, ended: bool = False) -> None:
        """broken: figures by step of updates that are not finite; recorded: rows of the others, of all starts. ended:
        verl has. Raises WorldFailure when the training is to end.
        """
        if not broken:
            return
        kept = self._newest(recorded)
        newest = max([*broken, *recorded])
        if kept is None and not ended:
            if self._asked is None:
                self._asked = newest
                stopping.tell(self._folder / "verl")
            if newest <= self._asked + PATIENCE:
                return
        step = min(broken)
        raise WorldFailure(
            f"update {step}: {broken[step]} is not a finite number, so the training was stopped. "
            + (
                f"The checkpoint of update {kept} is kept, and the same command goes on from it. "
                if kept
                else f"No checkpoint was written before (one is due every {self._save_every} updates). "
            )
            + "Lower optimizer.lr or optimizer.clip_grad, which begins a training of its own"
        )

    def _newest(self, recorded: Mapping[int, Any]) -> int | None:
        point, _ = checkpoints.resume_point(self._folder / "checkpoints", recorded)
        return point.step if point else None
