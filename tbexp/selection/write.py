"""The files of a selection, byte for byte the same for the same decision."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import yaml

from tbexp.config.whole import write_whole
from tbexp.errors import Problem, UserError
from tbexp.selection.select import Selection, TaskRow

_FIELDS: Final = (
    "uid",
    "clean",
    "passed",
    "failed",
    "system_errors",
    "alpha",
    "beta",
    "masses",
    "band",
    "interval",
    "training_value",
    "priority",
    "mixed_probability",
    "kept",
    "reasons",
)
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*\.(py|yaml):[A-Za-z0-9_.\-]+")


def write_selection(folder: Path | str, selection: Selection, *, inputs: Mapping[str, str] | None = None) -> Path:
    """Write pool.yaml, train.yaml, validation.yaml, tasks.jsonl and manifest.json; returns the folder.

    Each file appears whole or not at all, the manifest last: a folder with a manifest is complete. inputs: further
    {name: SHA-256} for the manifest.
    """
    folder = Path(folder)
    files = {
        "pool.yaml": _selectors(selection.pool),
        "train.yaml": _selectors(selection.train),
        "validation.yaml": _selectors(selection.validation),
        "tasks.jsonl": "".join(map(_task_line, selection.rows)).encode(),
    }
    manifest = {
        "settings": selection.settings,
        "summary": {
            "tasks": len(selection.rows),
            "pool": len(selection.pool),
            "train": len(selection.train),
            "validation": len(selection.validation),
            "removed": selection.removed,
            "bands": selection.bands,
            "forecast": {key: _finite(value) for key, value in asdict(selection.forecast).items()},
        },
        "inputs": {**selection.inputs, **(inputs or {})},
        "outputs": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    files["manifest.json"] = (json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").unlink(missing_ok=True)
        for name, data in files.items():
            write_whole(folder / name, data)
    except OSError as error:
        raise UserError(Problem(f"cannot be written: {error.strerror}", where=str(folder))) from None
    return folder


def read_tasks(folder: Path | str) -> list[dict[str, Any]]:
    """The rows of tasks.jsonl."""
    with (Path(folder) / "tasks.jsonl").open() as file:
        return [json.loads(line) for line in file]


def _task_line(row: TaskRow) -> str:
    plain = {name: getattr(row, name) for name in _FIELDS}
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":")) + "\n"


def _selectors(uids: Iterable[str]) -> bytes:
    """A sorted YAML list. Usual selectors are plain scalars and written as such: PyYAML needs 50 us for each."""
    return "".join(f"- {uid}\n" if _PLAIN.fullmatch(uid) else _yaml_item(uid) for uid in sorted(uids)).encode()


def _yaml_item(uid: str) -> str:
    text: str = yaml.safe_dump([uid], default_flow_style=False, allow_unicode=True, width=10_000)
    return text


def _finite(value: Any) -> Any:
    """JSON has no infinity; the word stands for it."""
    return "inf" if isinstance(value, float) and math.isinf(value) else value
