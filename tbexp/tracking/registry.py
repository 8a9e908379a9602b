"""How weights come into MLflow's model registry.

Decided here: a version is known by its key, so what is sent again is one version all the same, and runs that share a
training share its version; a run's tag says which one is its own. Where weights are is told, not copied: in a database
of our own the version's source is the folder itself. A server refuses paths of its clients as sources (MLflow 3.17:
they have to lie in the run's artifacts), so there the source is a note among the artifacts that says where the folder
is, or, with `upload`, the files themselves. What MLflow refuses for good is told and not tried again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tbexp.tracking.address import is_server
from tbexp.tracking.mlflow_link import Link

KEY_TAG, WEIGHTS_TAG, FOLDER_TAG = "tbexp.key", "tbexp.weights", "tbexp.folder"
RUN_TAG = "tbexp.registered_model"  # of a run: NAME/VERSION
COPIED, REFERRED = "uploaded", "referred to"
NOTE = "weights.json"
LOCK_SECONDS = 60.0
FOR_GOOD = ("INVALID_PARAMETER_VALUE", "PERMISSION_DENIED", "ENDPOINT_NOT_FOUND", "FEATURE_DISABLED", "NOT_IMPLEMENTED")

log = logging.getLogger(__name__)


def register(link: Link, uri: str, row: Mapping[str, Any]) -> None:
    """Sees to it that the registry has a version of the row's model and key; `Run.model` made the row. Raises what
    MLflow raises when it does not answer.
    """
    folder, name = Path(row["folder"]), str(row["name"])
    if not folder.is_dir():
        log.warning("%s is gone, so MLflow does not register it", folder)
        return
    try:
        with _alone(folder):
            version = _version(link, name, row["key"], copied=row["upload"])
            if version is None:
                version = _new_version(link, uri, folder, row)
        link.client.set_tag(link.run_id, RUN_TAG, f"{name}/{version}")
    except Exception as error:
        if getattr(error, "error_code", "") not in FOR_GOOD:
            raise
        log.warning("MLflow does not register %s as %s: %s", folder, name, " ".join(str(error).split())[:300])


def _version(link: Link, name: str, key: str, *, copied: bool) -> str | None:
    """The version of this key; with `copied`, one whose files MLflow has."""
    found = link.client.search_model_versions(f"name = '{name}' and tags.`{KEY_TAG}` = '{key}'")
    fitting = [version for version in found if not copied or version.tags.get(WEIGHTS_TAG) == COPIED]
    return str(min(int(version.version) for version in fitting)) if fitting else None


def _new_version(link: Link, uri: str, folder: Path, row: Mapping[str, Any]) -> str:
    client, name = link.client, row["name"]
    source, place = folder.as_uri(), f"models/{row['key']}"
    if row["upload"]:
        client.log_artifacts(link.run_id, str(folder), place)
    elif is_server(uri):
        sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir()) if file.is_file()}
        note = {"folder": str(folder), "host": socket.gethostname(), "bytes": sizes, **row["tags"]}
        client.log_text(link.run_id, json.dumps(note, indent=1) + "\n", f"{place}/{NOTE}")
    if row["upload"] or is_server(uri):
        source = f"{client.get_run(link.run_id).info.artifact_uri.rstrip('/')}/{place}"
    try:
        client.create_registered_model(name, description="checkpoints that tbexp has chosen on validation tasks")
    except Exception as error:
        if getattr(error, "error_code", "") != "RESOURCE_ALREADY_EXISTS":
            raise
    tags = {**row["tags"], KEY_TAG: row["key"], FOLDER_TAG: str(folder)}
    tags[WEIGHTS_TAG] = COPIED if row["upload"] else REFERRED
    version = client.create_model_version(name, source, link.run_id, tags=tags, await_creation_for=0)
    return str(version.version)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Runs that share a training see each other's version: the lock lies beside the weights that they share."""
    from filelock import FileLock

    lock = FileLock(folder.parent / ".register.lock", timeout=LOCK_SECONDS)
    with contextlib.ExitStack() as held:
        if os.access(folder.parent, os.W_OK):  # somebody else's folder may be read only
            held.enter_context(lock)
        yield
