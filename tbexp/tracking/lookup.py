"""Runs that are already at a tracker: found by id or name, their files brought here.

Decided here: how a name is matched, and what stands in for a file that a run did not log: its config from its params,
its training metrics from their history. Left to others: which entries mean a run, and what is read of the files.
Importing MLflow takes 1.5 s, so it happens on first use.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from tbexp.errors import WorldFailure, one_line
from tbexp.tracking.address import sqlite_path
from tbexp.tracking.mlflow_link import RUN_KEY_TAG
from tbexp.tracking.run import ENVIRONMENT

FOLDERS = ("select", "train", "evaluate")
PAGE = 1000  # runs of one answer
HISTORY = (
    *("train/reward_mean", "train/mixed_group_rate", "train/validation_pass_rate"),
    *("train/groups/generated", "train/groups/mixed"),
    *("train/refilled/zero_variance", "train/refilled/system_error_groups"),
)


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run as the tracker lists it. started: milliseconds since 1970."""

    run_id: str
    name: str
    experiment: str
    status: str
    started: int
    artifact_uri: str


class Archive:
    """The runs of one tracker, read only. Each method raises WorldFailure when the tracker does not answer."""

    def __init__(self, uri: str):
        self.uri = uri
        self._client: Any = None
        self._names: dict[str, str] = {}  # of experiments, by id

    def by_id(self, run_id: str) -> TrackedRun | None:
        with self._answers():
            try:
                run = self._open().get_run(run_id)
            except Exception as error:
                if getattr(error, "error_code", "") in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    return None
                raise
            return self._row(run) if run.info.lifecycle_stage == "active" else None

    def by_name(self, experiment: str, name: str) -> list[TrackedRun]:
        """Runs called `name`, or else the job of a sweep whose folder is called so, or else those called NAME-KEY.
        Oldest first.
        """
        with self._answers():
            found = self._open().get_experiment_by_name(experiment)
            if found is None or ("'" in name and '"' in name):
                return []
            # In the query % and _ stand for anything, so what it finds is looked at once more.
            quote = '"' if "'" in name else "'"
            rows = self._search(found.experiment_id, f"attributes.run_name LIKE {quote}{name}%{quote}")
            exact = [row for row in rows if row.name == name]
            key = f"tags.`{RUN_KEY_TAG}` = {quote}{experiment}/{name}{quote}"
            return (
                exact
                or self._search(found.experiment_id, key)
                or [row for row in rows if row.name.startswith(f"{name}-")]
            )

    def children(self, run: TrackedRun) -> list[TrackedRun]:
        """The jobs of a sweep's parent run, oldest first; none of any other run."""
        with self._answers():
            experiment = self._open().get_run(run.run_id).info.experiment_id
            return self._search(experiment, f"tags.mlflow.parentRunId = '{run.run_id}'")

    def fetch(self, run: TrackedRun, files: Sequence[str], into: Path) -> list[str]:
        """Copies those of `files` (paths in a run's folder) that the run logged; gives what was found or made up for.

        config.yaml and train/metrics.jsonl of a run that did not log them are made of its params and metrics.
        """
        with self._answers():
            client = self._open()
            there = {item.path for folder in (None, *FOLDERS) for item in client.list_artifacts(run.run_id, folder)}
            found = [file for file in files if file in there]
            into.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=into) as aside:
                for file in found:  # kept under its path by some stores of artifacts, under its name by others
                    (into / file).parent.mkdir(parents=True, exist_ok=True)
                    Path(client.download_artifacts(run.run_id, file, aside)).replace(into / file)
            data = client.get_run(run.run_id).data
            if "config.yaml" in files and "config.yaml" not in found and data.params:
                (into / "config.yaml").write_text(yaml.safe_dump(nested(data.params)), encoding="utf-8")
                found.append("config.yaml")
            if "train/metrics.jsonl" in files and "train/metrics.jsonl" not in found:
                steps: dict[int, dict[str, float]] = {}
                for name in HISTORY:
                    if name in data.metrics:
                        # An update that was made again after a kill has a point for each time.
                        points = client.get_metric_history(run.run_id, name)
                        for point in sorted(points, key=lambda point: point.timestamp):
                            steps.setdefault(int(point.step), {})[name] = float(point.value)
                if steps:
                    (into / "train").mkdir(exist_ok=True)
                    lines = [json.dumps({"step": step, **steps[step]}) + "\n" for step in sorted(steps)]
                    (into / "train" / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
                    found.append("train/metrics.jsonl")
            return found

    def _open(self) -> Any:
        if self._client is None:
            for name, value in ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
            from mlflow.tracking import MlflowClient

            self._client = MlflowClient(tracking_uri=self.uri)
        return self._client

    @contextlib.contextmanager
    def _answers(self) -> Iterator[None]:
        try:
            yield
        except WorldFailure:
            raise
        except Exception as error:
            reason = one_line(str(error))[:300]
            raise WorldFailure(f"the tracker {self.uri} can't be read: {type(error).__name__}: {reason}") from error

    def _search(self, experiment: str, query: str) -> list[TrackedRun]:
        rows: list[TrackedRun] = []
        token = None
        while True:
            page = self._client.search_runs(
                [experiment], query, max_results=PAGE, order_by=["attributes.start_time ASC"], page_token=token
            )
            rows += [self._row(run) for run in page]
            token = page.token
            if not token:
                return rows

    def _row(self, run: Any) -> TrackedRun:
        info = run.info
        if info.experiment_id not in self._names:
            self._names[info.experiment_id] = str(self._client.get_experiment(info.experiment_id).name)
        return TrackedRun(
            run_id=str(info.run_id),
            name=str(info.run_name or run.data.tags.get("mlflow.runName", "")),
            experiment=self._names[info.experiment_id],
            status=str(info.status),
            started=int(info.start_time or 0),
            artifact_uri=str(info.artifact_uri or ""),
        )


def open_archive(uri: str | None) -> Archive | None:
    """The tracker's runs; None where there can be none: tracking is off, or the database does not exist yet."""
    if uri is None:
        return None
    database = sqlite_path(uri)
    return None if database is not None and not database.exists() else Archive(uri)


def artifacts_elsewhere(run: TrackedRun) -> str | None:
    """The folder of a run's artifacts if it is one of a machine's own disk and not here."""
    if urlsplit(run.artifact_uri).scheme not in ("", "file"):
        return None
    folder = Path(unquote(urlsplit(run.artifact_uri).path))
    return None if folder.exists() else str(folder)


def nested(params: dict[str, str]) -> dict[str, Any]:
    """The config that `flatten` made these params of, without what was too long for a param."""
    config: dict[str, Any] = {}
    for name, text in sorted(params.items()):
        if re.match(r"artifact params/", text):
            continue
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        *path, last = name.split(".")
        place = config
        for part in path:
            inner = place.setdefault(part, {})
            place = inner if isinstance(inner, dict) else {}
        place[last] = value
    return config
