"""Which results in a run's folder are of other tasks than the dataset has now.

Decided here: what a report has to say about results that were made before a task, or its check, was changed, and that
nothing has made again since. A result that does not say what its tasks were, or a dataset that is not here, says
nothing.

    changed_since.json   a sentence for each such result; no file where there is none
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping

from tbexp.errors import UserError, one_line
from tbexp.pipeline import identity
from tbexp.pipeline.context import Context
from tbexp.pipeline.files import read_json, write_json
from tbexp.tasks import read_selectors

log = logging.getLogger(__name__)
FILE = "changed_since.json"


def note_changes(run: Context) -> list[str]:
    """Writes the file, and gives its sentences."""
    found: list[str] = []
    for look in (_evaluated, _selected, _trained):
        try:
            found += look(run)
        except UserError as error:
            log.info("what has changed since is not known: %s", one_line(str(error)))
    file = run.run_dir / FILE
    if found:
        write_json(file, found)
    else:
        file.unlink(missing_ok=True)
    return found


def _evaluated(run: Context) -> Iterator[str]:
    folder = run.run_dir / "evaluate"
    if not (folder / "summary.json").exists() or not (folder / "tasks.jsonl").exists():
        return
    lines = [json.loads(line) for line in (folder / "tasks.jsonl").read_text(encoding="utf-8").splitlines()]
    before = {str(line["uid"]): line["content"] for line in lines if line.get("content")}
    now = {task.uid: task.content_hash() for task in run.held_out}
    gone = before.keys() - now.keys()
    changed = [uid for uid in before if uid not in gone and now[uid] != before[uid]]
    if changed or gone:
        what = [f"{len(changed)} of {len(before)} evaluated tasks or their checks have changed"] if changed else []
        what += [f"{len(gone)} are no longer among the held-out tasks"] if gone else []
        yield (
            f"Before a change: {' and '.join(what)} since these figures were made, which are of the tasks as they were "
            f"({_named([*changed, *sorted(gone)])}). The stage evaluate makes them anew, regrade judges the stored "
            "final states by the checks as they are now."
        )


def _selected(run: Context) -> Iterator[str]:
    from tbexp.selection import content_digest

    folder = run.run_dir / "select"
    made = read_json(folder / "manifest.json")
    inputs = made.get("inputs") if isinstance(made, Mapping) else None
    before = inputs.get("content_hashes") if isinstance(inputs, Mapping) else None
    if before is None or before == content_digest({}):
        return
    rows = (folder / "tasks.jsonl").read_text(encoding="utf-8").splitlines()
    uids = {str(json.loads(row)["uid"]) for row in rows}
    if before != content_digest({task.uid: task.content_hash() for task in run.candidates if task.uid in uids}):
        yield (
            "Before a change: candidates or their checks have changed since the pool was chosen from them. The stages "
            "probe and select choose it anew."
        )


def _trained(run: Context) -> Iterator[str]:
    made = read_json(run.run_dir / "train" / "result.json")
    before = made.get("tasks") if isinstance(made, Mapping) else None
    lists = [run.run_dir / "select" / f"{name}.yaml" for name in ("train", "validation")]
    if before is None or not all(file.exists() for file in lists):
        return
    wanted = {uid for file in lists for uid in read_selectors(file)}
    if before != identity.tasks_digest([task for task in run.candidates if task.uid in wanted]):
        yield "Before a change: the training was on another pool, or on tasks that have changed since."


def _named(uids: list[str]) -> str:
    return ", ".join(uids[:3]) + (f" and {len(uids) - 3} more" if len(uids) > 3 else "")
