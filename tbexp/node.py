"""What a Slurm job does: `python -m tbexp.node PLAN START [RAY_ADDRESS]`, started by `cluster.job` on the first node.

PLAN was written at submission. START is the folder of this start of the job: `stop` in it asks the work to stop, and
`outcome.json` is what is told in the end, since an exit code carries no message.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tbexp.app import OneLine, ending
from tbexp.cluster import IDLE, STOPPED
from tbexp.config.schema import Config
from tbexp.config.whole import write_whole
from tbexp.errors import Stopped

POLL_SECONDS = 0.5

log = logging.getLogger(__name__)


class Notice:
    """Slurm's warning, as the job has written it down."""

    def __init__(self, file: Path):
        self._file = file
        self._until: float | None = None

    def left(self) -> float | None:
        """Seconds until the job ends; None as long as nobody has warned."""
        if self._until is None:
            try:
                self._until = float(json.loads(self._file.read_text())["until"])
            except (OSError, ValueError, KeyError):
                return None
        return self._until - time.time()


def interrupt_on(notice: Notice) -> None:
    """Attempts are kept one by one, so their work is interrupted at once, as by Ctrl-C."""

    def watch() -> None:
        while notice.left() is None:
            time.sleep(POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, name="warning", daemon=True).start()


def work(plan: dict[str, Any], start: Path, ray: str | None) -> None:
    from tbexp.pipeline.on_node import make_part, run_stages

    config = Config.model_validate(plan["config"])
    notice = Notice(start / "stop")
    os.chdir(plan["folder"])
    try:
        if ray is None:
            interrupt_on(notice)
        if "campaign" in plan:
            make_part(config, plan)
        else:
            stages = start.with_name(f"stages-{start.name.rpartition('-')[0]}.json")  # of all starts of this job
            run_stages(config, plan, ray=ray, left=notice.left, before=stages)
    except KeyboardInterrupt:
        raise Stopped("stopped before anything was begun; this start kept nothing new", kept=False) from None


def main(arguments: list[str]) -> int:
    plan, start = json.loads(Path(arguments[0]).read_text()), Path(arguments[1])
    console = logging.StreamHandler()
    console.setFormatter(OneLine("%(message)s"))
    console.setLevel(logging.WARNING)
    logging.getLogger().addHandler(console)
    file = logging.FileHandler(start / "tbexp.log", delay=True)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(file)
    logging.getLogger("tbexp").setLevel(logging.INFO)
    stopped: list[Stopped] = []

    def told() -> int:
        try:
            work(plan, start, arguments[2] if len(arguments) > 2 else None)
        except Stopped as error:
            stopped.append(error)
            note(start, str(error))
            sys.stderr.write(f"tbexp: {error}\n")
            return STOPPED if error.kept else IDLE
        except BaseException as error:
            note(start, f"{str(error) or type(error).__name__}")
            raise
        return 0

    return ending(told).code


def note(start: Path, message: str) -> None:
    write_whole(start / "outcome.json", json.dumps({"message": message}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
