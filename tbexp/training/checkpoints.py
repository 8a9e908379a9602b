"""Which checkpoints are whole, which one a run goes on from, which are kept, and which is chosen. Files only, no torch.

verl writes shards, optimiser, data state and, last, a tracker file; killed in between, it leaves a folder that looks
like a checkpoint. Decided here: a checkpoint is whole when its manifest, written after all of verl's files, lists
files that all have their size. A run goes on from the newest whole one whose step has its metrics row: verl logs a
step after saving it, so going on from one without a row would lose that row for good.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tbexp.config.whole import write_whole
from tbexp.errors import Problem, UserError

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    step: int
    folder: Path
    fault: str = ""  # why it is torn; "": it is whole


def write_manifest(folder: Path, step: int) -> None:
    """Lists every file of a finished checkpoint with its size, and appears at once or not at all."""
    files = {str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
    write_whole(folder / MANIFEST, json.dumps({"step": step, "files": files}))


def fault(folder: Path) -> str:
    """Why this folder is no whole checkpoint; "" when it is one."""
    try:
        files: dict[str, int] = json.loads((folder / MANIFEST).read_text())["files"]
    except FileNotFoundError:
        return "it was not written to the end"
    except (ValueError, KeyError):
        return "its manifest cannot be read"
    for name, size in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} of {size} bytes"
    return ""


def found(root: Path) -> list[Checkpoint]:
    """All checkpoints below `root`, whole or torn, oldest first."""
    folders = {}
    for path in root.glob("global_step_*"):
        if path.is_dir() and (match := re.fullmatch(r"global_step_(\d+)", path.name)):
            folders[int(match[1])] = path
    return [Checkpoint(step, folders[step], fault(folders[step])) for step in sorted(folders)]


def resume_point(root: Path, logged: Collection[int]) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint to go on from and a sentence for each newer one that is passed over.

    logged: steps whose metrics row is there.
    """
    skipped: list[str] = []
    for checkpoint in reversed(found(root)):
        why = checkpoint.fault or ("" if checkpoint.step in logged else "its step was not recorded to the end")
        if not why:
            return checkpoint, skipped
        skipped.append(f"checkpoint of step {checkpoint.step} is skipped: {why}")
    return None, skipped


def ranks(checkpoint: Path) -> int | None:
    """How many trainer ranks have written a whole checkpoint; None: verl has not said so, as with other engines."""
    try:
        told = json.loads((checkpoint / "actor" / "fsdp_config.json").read_text())
    except FileNotFoundError:
        return None
    return int(told["world_size"])


def check_ranks(point: Checkpoint, *, nodes: int, devices: int) -> None:
    """UserError when these nodes of so many devices cannot go on from a checkpoint: each rank of verl opens the file of
    its own number of ranks, and fails after all nodes have started.
    """
    made = ranks(point.folder)
    if made is None or made == nodes * devices:
        return
    what = (
        f"the training's checkpoint of step {point.step} was made by {made} ranks, and this run has {nodes * devices} "
        f"({nodes} nodes x {devices}): it cannot go on from it"
    )
    same = f"topology.nodes={made // devices}" if made % devices == 0 else f"topology.gpus_per_node too: {made} in all"
    raise UserError(Problem(what, "topology.nodes", f"{same}, or remove {point.folder.parent.parent} to begin again"))


@dataclass(frozen=True, slots=True)
class Validated:
    """rate: pass rate of the attempts that ended. missing: attempts that stayed system errors."""

    rate: float
    attempts: int
    missing: int = 0

    @property
    def error(self) -> float:
        """The standard error of the rate."""
        return float((self.rate * (1 - self.rate) / self.attempts) ** 0.5)


def best_step(validation: Mapping[int, Validated], there: Collection[int]) -> int | None:
    """The latest step whose validation pass rate is within one standard error of the best one's, of those that are
    `there`; where none of these is, the best of them; None: none of them was validated.

    validation: of every step that was validated, since a removed checkpoint does not lower what the others are held
    against; step 0 is the base model and not a choice; one that misses more attempts than it has counts only where all
    do. there: steps with a whole checkpoint. The one-standard-error rule of model selection (Breiman et al. 1984,
    section 3.4.3): where pass rates cannot be told apart, the policy that was trained longer is taken, since training
    goes on to make it more repeatable.
    """
    trained = {step: found for step, found in validation.items() if step > 0}
    sound = {step: found for step, found in trained.items() if found.missing <= found.attempts} or trained
    left = [step for step in sound if step in there] or [step for step in trained if step in there]
    if not left:
        return None
    best = max(sound.values(), key=lambda found: (found.rate, found.attempts))
    within = [step for step in left if step in sound and trained[step].rate >= best.rate - best.error]
    return max(within) if within else max(left, key=lambda step: (trained[step].rate, step))


def expendable(steps: Collection[int], *, keep: int, best: int | None) -> list[int]:
    """Steps whose checkpoints may go: all but the newest `keep` and the one that would be chosen."""
    newest = sorted(steps)[-keep:]
    return [s for s in sorted(steps) if s not in newest and s != best]


def remove(checkpoint: Path) -> None:
    """Torn before gone: the manifest goes first, so a removal that is cut short leaves no half that looks whole."""
    (checkpoint / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(checkpoint)
