"""A training that is asked to stop before it is done: whether there is time for a step more, and how verl is told.

Decided here: the step under way is finished, saved and recorded when a step and a save as they were measured fit into
the time that is left; before anything was measured, it is tried. Otherwise the training ends at once, and goes on from
its newest whole checkpoint. Told by a file, since verl's trainer may run on another node.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

STOP = "stop"  # in the stage's folder `verl`
LEAVE_SECONDS = 5.0  # of what is left, for this process to end and to say what was kept
LAST_STEPS = 5  # whose times are looked at


def tell(work: Path) -> None:
    """verl is to save after the step under way. work: the stage's folder `verl`."""
    (work / STOP).touch()


def need(rows: Mapping[int, Mapping[str, float]], elapsed: float) -> float | None:
    """Seconds that the step under way and its save will take, None: nothing was measured. elapsed: of this step.

    verl's time of a step includes its save if there was one, so the estimate is on the long side.
    """
    steps = [rows[step]["train/seconds/step"] for step in sorted(rows) if "train/seconds/step" in rows[step]]
    if not steps:
        return None
    saves = [row["train/seconds/save"] for row in rows.values() if "train/seconds/save" in row]
    return max(max(steps[-LAST_STEPS:]) - elapsed, 0.0) + max(saves, default=0.0)


def why(left: float, needed: float) -> str:
    return f"the end is {left:.0f} s away, and a step with its save takes {needed:.0f} s"


def message(*, saved: int, reached: int, start: int, reason: str) -> str:
    """What a stopped training says. saved: the step it goes on from; reached: the last finished; start: where it began.

    reason: why the step under way was not finished, or nothing.
    """
    if saved == reached and saved > start and not reason:
        return f"training stopped after step {saved}, which is saved; the next start goes on from there"
    lost = reached - saved
    parts = [f"training stopped: {reason}" if reason else "training stopped"]
    parts += ["this start kept 0 steps"] if saved <= start else []
    parts += [f"{lost} finished step{'s are' if lost > 1 else ' is'} lost" if lost > 0 else "no finished step is lost"]
    return "; ".join([*parts, f"the next start goes on from step {saved}"])
