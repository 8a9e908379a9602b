"""verl's hook after a checkpoint was written: leave the manifest that `checkpoints` tells a whole one by.

It also is where a training that is asked to stop (`stopping`) reaches verl's trainer: a checkpoint after the step under
way, and no validation before that step is recorded, unless it is the last one. What was left out is validated when the
training goes on.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

from tbexp.training.checkpoints import write_manifest
from tbexp.training.stopping import STOP

POLL_SECONDS = 0.5


class WriteManifest(CheckpointCallback):  # type: ignore[misc]
    def __init__(self, config: Any = None):
        super().__init__(config)
        self._stop = Path(config.trainer.default_local_dir).parent / "verl" / STOP
        threading.Thread(target=self._watch, name="stop", daemon=True).start()

    def _watch(self) -> None:
        while not self._stop.exists():
            time.sleep(POLL_SECONDS)
        self.config.trainer.save_freq = 1

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **_: Any) -> None:
        write_manifest(Path(checkpoint_dir), global_step)
        if self._stop.exists() and global_step < trainer.total_training_steps:
            self.config.trainer.test_freq = -1
