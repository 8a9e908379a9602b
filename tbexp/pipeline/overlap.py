"""The overlap of a run's pool and its held-out tasks: a file, a line beside the results, a part of the manifest."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import yaml

from tbexp.pipeline.context import Context
from tbexp.pipeline.files import write_json
from tbexp.tasks import overlap

log = logging.getLogger(__name__)
FILE = "overlap.json"


def audit(run: Context) -> dict[str, Any] | None:
    """Writes the audit of the pool that stands in the run's folder; None where there is nothing to compare.

    A pool of rows made elsewhere is compared as far as its tasks are among the candidates, or are held-out ones.
    """
    file = run.run_dir / "select" / "pool.yaml"
    if not file.exists() or not run.held_out:
        return None
    wanted = uids_in(file)
    pool = [task for task in run.candidates if task.uid in wanted]
    known = {task.uid for task in pool}
    pool += [task for task in run.held_out if task.uid in wanted - known]
    if not pool:
        log.info("no audit of overlap: none of the %d tasks in %s is among the candidates", len(wanted), file)
        return None
    found = overlap(pool, run.held_out).as_dict()
    found["unknown"] = len(wanted) - len(pool)
    write_json(run.run_dir / FILE, found)
    return found


def uids_in(file: Path) -> set[str]:
    """The uids of a pool file of ours; those of rows made elsewhere have any form."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return set(yaml.load(file.read_text(encoding="utf-8"), Loader=loader))  # either of the two is a safe one
