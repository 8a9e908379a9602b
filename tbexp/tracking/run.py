"""A run that is tracked: on local disk first, at MLflow as well as it goes.

Decided here: that a tracker can neither stop nor slow a run. Metrics go to a file; a thread sends them in batches,
tries again after an outage, and is waited for at the end for a few seconds only. What the tracker missed is sent at the
next start of the same run. Left to others: which trackers are allowed (`address.py`), the files (`journal.py`), MLflow
itself (`mlflow_link.py`, `registry.py`), and what is worth logging (the stages).
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tbexp.config.schema import Tracking
from tbexp.tracking.address import sqlite_path, tracker_uri
from tbexp.tracking.journal import Journal, Sent, read_sent, write_sent
from tbexp.tracking.mlflow_link import BATCH, FIRST_USE_SECONDS, Link, Wanted, connect, way_out
from tbexp.tracking.registry import register

JOURNALS = ("metrics", "tags", "artifacts", "models")
EVERY_SECONDS = 2.0  # between two batches
LONGEST_PAUSE = 60.0  # between two tries during an outage
UPLOAD_SECONDS = 6 * 3600.0  # that the end of a run waits for weights that are being copied
LONGEST_VALUE = 500  # characters of a param; longer ones become an artifact
LONGEST_NAME = 250  # characters, MLflow's limit
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    # MLflow's own patience (120 s, 7 times) would keep a finished run waiting for a dead server.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # stdout is for results.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}

log = logging.getLogger(__name__)


def metric_name(name: str) -> str:
    """`name` in the characters that MLflow allows: @ is written _at_, ^ is _hat_, others become _."""
    name = re.sub(r"@", "_at_", re.sub(r"\^", "_hat_", name))
    name = re.sub(r"[^\w\-./ :]", "_", name, flags=re.ASCII)
    # MLflow also refuses what is no plain relative path.
    name = "/".join("_" if part in (".", "..") else part for part in name.split("/") if part)
    if not name:
        raise ValueError("a metric needs a name")
    return name[:LONGEST_NAME].rstrip("/")


def flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings as dotted names with text values; lists as JSON, None as null."""
    flat: dict[str, str] = {}
    for key, value in params.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{name}.")
        elif isinstance(value, str):
            flat[metric_name(name)] = value
        else:
            flat[metric_name(name)] = json.dumps(value, ensure_ascii=False, default=str)
    return flat


def all_sent(folder: Path, *, uri: str, run_key: str, parent_run_id: str | None) -> bool:
    """Whether the tracker has all of the run of `folder`, its good end and its parent included, as known here."""
    sent = read_sent(folder / "mlflow_run.json", uri=uri, run_key=run_key)
    sizes = {name: _size(folder / f"{name}.jsonl") for name in JOURNALS}
    return sent.ended and sent.parent == parent_run_id and all(sent.offsets.get(n, 0) == s for n, s in sizes.items())


class Run:
    """One run. Its methods return at once, from any thread; they raise for no reason that lies in the tracker."""

    def __init__(self, folder: Path, uri: str | None):
        self.folder = folder
        self.uri = uri
        self.failed = False  # set it to have a run that raised nothing end as FAILED
        self._metrics = Journal(folder / "metrics.jsonl")
        self._told = {(row["name"], row["step"]): row["value"] for row in self._metrics.rows()}
        self._tags = Journal(folder / "tags.jsonl")
        self._tagged = {row["name"]: row["value"] for row in self._tags.rows()}
        self._artifacts = Journal(folder / "artifacts.jsonl")
        self._models = Journal(folder / "models.jsonl")
        self._sender: _Sender | None = None

    def metric(self, name: str, value: float, step: int = 0) -> None:
        self.metrics({name: value}, step)

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """What stages that were finished before tell again is kept only where it has changed."""
        now = round(time.time(), 3)
        told = [(metric_name(name), _json_number(value)) for name, value in values.items()]
        fresh = [(name, value) for name, value in told if self._told.get((name, step)) != value]
        self._told |= {(name, step): value for name, value in fresh}
        self._metrics.append({"name": name, "value": value, "step": int(step), "time": now} for name, value in fresh)

    def tag(self, name: str, value: str) -> None:
        """A text that is told of the run as it is now; it takes the place of an earlier one."""
        if self._tagged.get(name) != value:
            self._tagged[name] = value
            self._tags.append([{"name": name, "value": value}])

    def artifact(self, path: Path | str, folder: str | None = None) -> None:
        """A file or folder that MLflow is to keep, under `folder` there. It is copied later: leave it where it is."""
        self._artifacts.append([{"path": str(Path(path).absolute()), "folder": folder}])

    def model(self, folder: Path, *, name: str, key: str, tags: Mapping[str, Any], upload: bool = False) -> None:
        """Weights that MLflow is to have in its registry: one version of the model `name` for each `key`.

        folder: of a Hugging Face model; leave it where it is. upload: MLflow gets the files, else only where they are.
        """
        texts = {tag: value if isinstance(value, str) else json.dumps(value) for tag, value in tags.items()}
        row = {"folder": str(folder.absolute()), "name": name, "key": key, "tags": texts, "upload": upload}
        self._models.append([row])

    def close(self) -> None:
        """Closes the files."""
        for journal in (self._metrics, self._tags, self._artifacts, self._models):
            journal.close()

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run; waits for it while the tracker is being opened. None: no tracker, or an outage."""
        return self._sender.run_id() if self._sender else None


@contextmanager
def open_run(
    tracking: Tracking,
    *,
    default_uri: str,
    experiment: str,
    run_name: str,
    run_key: str,
    folder: Path,
    params: Mapping[str, Any],
    parent_run_id: str | None = None,
    tags: Mapping[str, str] | None = None,
    patience: float = 20.0,
) -> Iterator[Run]:
    """Opens the run of `run_key`, continuing it if the tracker or `folder` knows it.

    folder: of this run alone; gets metrics.jsonl, tags.jsonl, artifacts.jsonl, models.jsonl, params/ and
    mlflow_run.json. patience: seconds to wait at the end for a tracker that takes nothing more; a local database may
    take longer to be opened. The run ends as FINISHED, after an interrupt as KILLED, else as FAILED. Raises UserError
    for a tracker that can't be used, and nothing for one that does not answer.
    """
    if not re.fullmatch(r"[\w.:/-]+", run_key, flags=re.ASCII):
        raise ValueError(f"run_key {run_key!r} has characters that a search for it could not hold")
    uri = tracker_uri(tracking, default_uri)
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(folder, uri)
    if uri is not None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        wanted = Wanted(uri, experiment, run_name, run_key, parent_run_id=parent_run_id, tags=tags or {})
        run._sender = _Sender(run, wanted, _short_params(params, run))
    status = "FAILED"
    try:
        yield run
        status = "FAILED" if run.failed else "FINISHED"
    except BaseException as error:
        status = _status(error)
        raise
    finally:
        if run._sender:
            run._sender.close(status, patience)
        else:
            run.close()


@dataclass(slots=True)
class _Outage:
    """Tells of an outage once, and of its end."""

    since: float | None = None
    pause: float = EVERY_SECONDS

    def begins(self, error: BaseException, advice: str) -> None:
        if self.since is None:
            self.since = time.monotonic()
            reason = " ".join(str(error).split())[:300]
            log.warning(
                "the tracker does not take metrics (%s: %s)%s; the run goes on, they are kept and sent later",
                type(error).__name__,
                reason,
                advice,
            )
        self.pause = min(self.pause * 2, LONGEST_PAUSE)

    def ends(self) -> None:
        if self.since is not None:
            log.warning("the tracker answers again after %.0f s", time.monotonic() - self.since)
        self.since, self.pause = None, EVERY_SECONDS


class _Sender:
    """The thread that sends. It alone touches MLflow and mlflow_run.json."""

    def __init__(self, run: Run, wanted: Wanted, params: Mapping[str, str]):
        self._run = run
        self._wanted = wanted
        self._params: Mapping[str, str] | None = params
        self._file = run.folder / "mlflow_run.json"
        self._sent = read_sent(self._file, uri=wanted.uri, run_key=wanted.run_key)
        self._link: Link | None = None
        self._tried = threading.Event()  # the first try to connect is over, well or ill
        self._moved = time.monotonic()  # when the tracker last took something
        self._copying = False  # weights, which takes long
        self._status: str | None = None
        self._wake = threading.Event()
        # A daemon: a tracker that hangs must not keep a finished process alive.
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        self._thread.start()

    def run_id(self) -> str | None:
        self._tried.wait()
        return self._link.run_id if self._link else self._sent.run_id

    def close(self, status: str, patience: float) -> None:
        self._status = status
        self._moved = time.monotonic()
        self._wake.set()
        while self._thread.is_alive():
            # Opening a local database is work, not an outage: the imports and the migration take 5 s on an idle machine
            # and a minute where eight jobs start at once. Ending the process in it could leave half a migration.
            opening = not self._tried.is_set() and sqlite_path(self._wanted.uri) is not None
            allowed = max(patience, 2 * FIRST_USE_SECONDS) if opening else UPLOAD_SECONDS if self._copying else patience
            left = self._moved + allowed - time.monotonic()
            if left <= 0:
                log.warning("the tracker has not taken everything; the rest is kept in %s", self._run.folder)
                break
            self._thread.join(min(left, 0.5))

    def _work(self) -> None:
        outage = _Outage()
        while True:
            last = self._status is not None
            try:
                self._send()
                outage.ends()
                if last:
                    if self._link and self._status:
                        self._link.close(self._status)
                        self._note(replace(self._sent, ended=self._status == "FINISHED"))
                    break
            except Exception as error:
                outage.begins(error, way_out(self._wanted.uri, error))
                # A busy database is worth another try at the end, a server that refuses the connection is not.
                busy = isinstance(error, TimeoutError) or "locked" in str(error).lower()
                if last and not busy:
                    log.warning("the tracker missed the end of this run; running the same command again sends it")
                    break
            finally:
                self._tried.set()
            self._wake.wait(0.2 if last else outage.pause)
        self._run.close()

    def _send(self) -> None:
        if self._link is None:
            self._link = self._connect()
            self._moved = time.monotonic()
            self._tried.set()
        if self._params is not None:
            self._link.params(self._params)
            self._params = None
        while rows := self._next("metrics", self._run._metrics, BATCH):
            self._link.metrics(rows[0])
            self._keep("metrics", rows[1])
        while rows := self._next("tags", self._run._tags, BATCH):
            self._link.tags(rows[0])
            self._keep("tags", rows[1])
        while rows := self._next("artifacts", self._run._artifacts, 1):
            for row in rows[0]:
                self._link.artifact(Path(row["path"]), row["folder"])
            self._keep("artifacts", rows[1])
        while rows := self._next("models", self._run._models, 1):
            for row in rows[0]:
                self._copying = bool(row["upload"])
                try:
                    register(self._link, self._wanted.uri, row)
                finally:
                    self._copying = False
            self._keep("models", rows[1])

    def _connect(self) -> Link:
        wanted = replace(self._wanted, known_id=self._sent.run_id)
        link = connect(wanted)
        # A run that is new at the tracker gets everything that the folder holds.
        same = link.run_id == self._sent.run_id
        sent = self._sent if same else Sent(wanted.uri, wanted.run_key, link.run_id)
        self._note(replace(sent, parent=wanted.parent_run_id or sent.parent, ended=False))
        return link

    def _next(self, name: str, journal: Journal, most: int) -> tuple[list[dict[str, Any]], int] | None:
        rows, offset = journal.read(self._sent.offsets.get(name, 0), most)
        return (rows, offset) if rows else None

    def _keep(self, name: str, offset: int) -> None:
        self._note(self._sent.after(name, offset))

    def _note(self, sent: Sent) -> None:
        self._sent, self._moved = sent, time.monotonic()
        write_sent(self._file, sent)


def _short_params(params: Mapping[str, Any], run: Run) -> dict[str, str]:
    short: dict[str, str] = {}
    for name, value in flatten(params).items():
        if len(value) > LONGEST_VALUE:
            file = run.folder / "params" / (name.replace("/", "_") + ".txt")
            if not file.exists() or file.read_text(encoding="utf-8") != value:
                file.parent.mkdir(exist_ok=True)
                file.write_text(value, encoding="utf-8")
                run.artifact(file, "params")
            value = f"artifact params/{file.name}"
        short[name] = value
    return short


def _status(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        return "KILLED"
    if isinstance(error, SystemExit):
        return "FINISHED" if error.code in (0, None) else "KILLED" if error.code in (130, 143) else "FAILED"
    return "FAILED"


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _json_number(value: float) -> float | str:
    """JSON has no NaN and no infinity; they are kept as the texts that float() reads."""
    number = float(value)
    return number if math.isfinite(number) else str(number)
