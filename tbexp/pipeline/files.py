"""JSON files, hashes of files, and the links from a run to the results that runs share."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from tbexp.config.whole import write_whole


def write_json(file: Path, value: Any) -> None:
    write_whole(file, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def read_json(file: Path) -> Any:
    """The file's value, None if there is no such file or it is not whole."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # JSON's and UTF-8's errors are ValueErrors
        return None


def sha256_of(file: Path) -> str:
    sha = hashlib.sha256()
    with file.open("rb") as source:
        while block := source.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()


def link(place: Path, target: Path) -> None:
    """Makes `place` a relative link to the folder `target`, replacing an older link."""
    target.mkdir(parents=True, exist_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    wanted = os.path.relpath(target.resolve(), place.parent.resolve())
    if place.is_symlink():
        if str(place.readlink()) == wanted:
            return
        place.unlink()
    elif place.exists():
        raise FileExistsError(f"{place} is in the way: it should be a link to {target}")
    place.symlink_to(wanted, target_is_directory=True)
