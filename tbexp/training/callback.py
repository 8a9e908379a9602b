"""verl's hook after a checkpoint was written: leave the manifest that `checkpoints` tells a whole one by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

from tbexp.training.checkpoints import write_manifest


class WriteManifest(CheckpointCallback):  # type: ignore[misc]
    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **_: Any) -> None:
        write_manifest(Path(checkpoint_dir), global_step)
