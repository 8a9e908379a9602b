"""What a run reported, on local disk first.

Decided here: the form of `metrics.jsonl`, `tags.jsonl`, `artifacts.jsonl` and `models.jsonl` in the run's tracking
folder, and how `mlflow_run.json` remembers how far the tracker has them. A row is on disk before anything is sent; the
offset moves only after the tracker has accepted what lies before it. So a row is sent at least once. It shows once all
the same: MLflow's databases key values by name, step, time and value, and a row that is sent again is the same row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any


class Journal:
    """A file of JSON lines that is only appended to; a torn last line is dropped when it is opened."""

    def __init__(self, file: Path):
        self.file = file
        self._descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o644)
        _drop_torn_line(self._descriptor)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds the rows in one write, so that threads do not mix and a kill leaves whole lines."""
        text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
        os.write(self._descriptor, text.encode())

    def read(self, offset: int, most: int) -> tuple[list[dict[str, Any]], int]:
        """At most `most` rows that begin at byte `offset`, and the offset behind them; broken lines are skipped."""
        rows: list[dict[str, Any]] = []
        with self.file.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            if offset > stream.tell():  # the file was replaced by a shorter one
                offset = 0
            stream.seek(offset)
            while len(rows) < most:
                line = stream.readline()
                if not line.endswith(b"\n"):
                    break
                offset += len(line)
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                if isinstance(row, dict):
                    rows.append(row)
        return rows, offset

    def rows(self) -> Iterator[dict[str, Any]]:
        """All of them."""
        offset = 0
        while True:
            rows, offset = self.read(offset, 1000)
            if not rows:
                return
            yield from rows

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass(frozen=True, slots=True)
class Sent:
    """Where the run stands at the tracker. offsets: bytes of each journal that the tracker has. parent: of its run
    there. ended: whether the tracker was told of the run's end.
    """

    uri: str
    run_key: str
    run_id: str | None = None
    offsets: dict[str, int] = field(default_factory=dict)
    parent: str | None = None
    ended: bool = False

    def after(self, journal: str, offset: int) -> Sent:
        return replace(self, offsets={**self.offsets, journal: offset})


def read_sent(file: Path, *, uri: str, run_key: str) -> Sent:
    """The state kept in `file`; a fresh one when there is none, or when it tells of another tracker or another run."""
    try:
        row = json.loads(file.read_text(encoding="utf-8"))
        offsets = {k: int(v) for k, v in row["offsets"].items()}
        sent = Sent(row["uri"], row["run_key"], row["run_id"], offsets, row.get("parent"), bool(row.get("ended")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Sent(uri, run_key)
    return sent if (sent.uri, sent.run_key) == (uri, run_key) else Sent(uri, run_key)


def write_sent(file: Path, sent: Sent) -> None:
    fresh = file.with_name(file.name + ".new")
    fresh.write_text(json.dumps(asdict(sent), indent=1) + "\n", encoding="utf-8")
    fresh.replace(file)


def _drop_torn_line(descriptor: int) -> None:
    size = os.fstat(descriptor).st_size
    end = size
    while end > 0:
        start = max(0, end - 65536)
        chunk = os.pread(descriptor, end - start, start)
        newline = chunk.rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(descriptor, end)
