"""How a run reaches MLflow.

Decided here: how a run is found or created by its key, the lock around a SQLite database's first use, and how params,
metrics and artifacts are sent. Every call may raise whatever MLflow raises; `run.py` decides what that means. Importing
MLflow takes 1.5 s, its SQLite store 2.5 s (measured, 3.17), so this is done in the sending thread.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tbexp.tracking.address import sqlite_path

BATCH = 1000  # MLflow's limit of metrics in one request
PARAM_BATCH = 100  # and of params and tags
LONGEST_TAG = 250
RUN_KEY_TAG = "tbexp.run_key"
CHANGED_TAG = "tbexp.changed."
PARENT_TAG = "mlflow.parentRunId"
FIRST_USE_SECONDS = 120.0  # a migration of a fresh database takes 3 to 20 s on busy cores

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The run to find or to create."""

    uri: str
    experiment: str
    run_name: str
    run_key: str
    known_id: str | None = None
    parent_run_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


class Link:
    """A run at the tracker, open for writing."""

    def __init__(self, client: Any, run_id: str):
        self.client = client
        self.run_id = run_id

    def params(self, params: Mapping[str, str]) -> None:
        """Logs what is not there yet. MLflow lets no param change: a new value becomes the tag `tbexp.changed.NAME`."""
        from mlflow.entities import Param, RunTag

        there = self.client.get_run(self.run_id).data
        fresh = [Param(key, value) for key, value in params.items() if key not in there.params]
        changed = [
            RunTag((CHANGED_TAG + key)[:LONGEST_TAG], value)
            for key, value in params.items()
            if there.params.get(key, value) != value
        ]
        for start in range(0, len(fresh), PARAM_BATCH):
            self.client.log_batch(self.run_id, params=fresh[start : start + PARAM_BATCH])
        for start in range(0, len(changed), PARAM_BATCH):
            self.client.log_batch(self.run_id, tags=changed[start : start + PARAM_BATCH])

    def metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(row["name"], float(row["value"]), round(float(row["time"]) * 1000), int(row["step"]))
            for row in rows
            if row.keys() >= {"name", "value", "time", "step"}
        ]
        try:
            self.client.log_batch(self.run_id, metrics=metrics)
        except Exception as error:
            if getattr(error, "error_code", "") != "INVALID_PARAMETER_VALUE" or len(metrics) == 1:
                raise
            # One value that MLflow refuses must not hold back all that come after it.
            for metric in metrics:
                try:
                    self.client.log_batch(self.run_id, metrics=[metric])
                except Exception as refusal:
                    if getattr(refusal, "error_code", "") != "INVALID_PARAMETER_VALUE":
                        raise
                    log.warning("MLflow refused %s = %s: %s", metric.key, metric.value, refusal)

    def tags(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """The last value of each name."""
        from mlflow.entities import RunTag

        last = {row["name"]: row["value"] for row in rows if row.keys() >= {"name", "value"}}
        for start in range(0, len(last), PARAM_BATCH):
            part = list(last.items())[start : start + PARAM_BATCH]
            self.client.log_batch(self.run_id, tags=[RunTag(*each) for each in part])

    def artifact(self, path: Path, folder: str | None) -> None:
        if path.is_dir():
            self.client.log_artifacts(self.run_id, str(path), folder)
        elif path.exists():
            self.client.log_artifact(self.run_id, str(path), folder)
        else:
            log.warning("%s is gone, so MLflow does not get it", path)

    def close(self, status: str) -> None:
        self.client.set_terminated(self.run_id, status=status)


def connect(wanted: Wanted) -> Link:
    """Opens the tracker, finds the run of this key or creates it, and sets it running."""
    from mlflow.tracking import MlflowClient

    logging.getLogger("alembic").setLevel(logging.WARNING)
    if sqlite_path(wanted.uri):
        # MLflow would import it on first use: a second or more that all others would wait for behind the lock.
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
    with _first_use(wanted.uri):
        client = MlflowClient(tracking_uri=wanted.uri)
        experiment = _experiment(client, wanted)
        run_id = _existing(client, wanted, experiment)
        if run_id is None:
            tags = {RUN_KEY_TAG: wanted.run_key, **_tags(wanted)}
            run_id = str(client.create_run(experiment, tags=tags, run_name=wanted.run_name).info.run_id)
        else:
            # Once it was a sweep's job it keeps the name that tells it from the others.
            client.update_run(run_id, status="RUNNING", name=wanted.run_name if wanted.parent_run_id else None)
            if tags := _tags(wanted):
                from mlflow.entities import RunTag

                # A run that two sweeps share shows under the one that was run last; MLflow knows one parent.
                client.log_batch(run_id, tags=[RunTag(*tag) for tag in tags.items()])
    return Link(client, run_id)


def _tags(wanted: Wanted) -> dict[str, str]:
    parent = {PARENT_TAG: wanted.parent_run_id} if wanted.parent_run_id else {}
    return {**wanted.tags, **parent}


@contextlib.contextmanager
def _first_use(uri: str) -> Any:
    """Eight processes that open a fresh database at once break its migration in seven of them, and one that ends within
    its migration breaks it for good: so it is made by one, beside its place, and appears whole.
    """
    database = sqlite_path(uri)
    if database is None:
        yield
        return
    from filelock import FileLock

    with FileLock(f"{database}.lock", timeout=FIRST_USE_SECONDS):
        if not database.exists():
            _make(database)
        yield


def _make(database: Path) -> None:
    """A fresh database, there whole or not at all: one whose making was killed half-way can never be opened again."""
    from mlflow.tracking import MlflowClient

    fresh = database.with_name(f"{database.name}.new")
    for left in fresh.parent.glob(f"{fresh.name}*"):
        left.unlink()
    MlflowClient(tracking_uri=f"sqlite:///{fresh}").search_experiments(max_results=1)
    fresh.rename(database)


def way_out(uri: str, error: Exception) -> str:
    """What to do about a database that an earlier version's start left half made; "" if it is not that."""
    database = sqlite_path(uri)
    broken = "duplicate column name" in str(error) or "_alembic_tmp" in str(error)
    if database is None or not broken:
        return ""
    return f": {database} was left half made; move it away, and running the same command again fills a new one"


def _experiment(client: Any, wanted: Wanted) -> str:
    found = client.get_experiment_by_name(wanted.experiment)
    if found is None:
        database = sqlite_path(wanted.uri)
        # Without a place of its own MLflow would put a local run's artifacts under the working directory.
        place = None
        if database is not None:
            folder = re.sub(r"[^\w.-]", "_", wanted.experiment)
            place = (database.parent / "mlflow-artifacts" / folder).as_uri()
        try:
            return str(client.create_experiment(wanted.experiment, artifact_location=place))
        except Exception:
            found = client.get_experiment_by_name(wanted.experiment)  # another process was first
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def _existing(client: Any, wanted: Wanted, experiment: str) -> str | None:
    if wanted.known_id:
        try:
            info = client.get_run(wanted.known_id).info
        except Exception as error:
            if getattr(error, "error_code", "") != "RESOURCE_DOES_NOT_EXIST":
                raise
        else:
            if info.lifecycle_stage == "active":
                return wanted.known_id
    runs = client.search_runs([experiment], f"tags.`{RUN_KEY_TAG}` = '{wanted.run_key}'", max_results=1)
    return str(runs[0].info.run_id) if runs else None
