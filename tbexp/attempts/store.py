"""The store of attempts: two files in a folder, appended while a run goes and read again when it continues.

Rows stand in `attempts.jsonl`, trajectories in `trajectories.jsonl`, the tools that trajectories name by a hash in
`tools.jsonl` (with a shard: `attempts-<shard>.jsonl` and so on; a store reads the rows of all shards in its folder and
writes its own). Each is appended with one write, the trajectory before the row that refers to it, so that a killed
process leaves at most one torn line at the end of any file. A row whose trajectory is gone (a removed file, a power
cut) counts all the same: what was made and paid for is never made again.

Which row counts, for one (uid, attempt): a clean row before any system error; of several system errors the last. A
second clean row is a duplicate: `append` does not write it; found in files (merged shards, say) the first in the
order of file name and line stays if both say the same, and if their verdicts differ it is the user's to decide
(UserError).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from tbexp.attempts.row import AttemptRow, row_from_dict
from tbexp.config.whole import write_whole
from tbexp.errors import Problem, UserError, counted

log = logging.getLogger(__name__)

Key = tuple[str, int]
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of tasks x attempts is there. `missing` counts attempts without a clean row, of which `system_errors`
    failed.
    """

    expected: int
    clean: int
    missing: int
    system_errors: int
    foreign: tuple[str, ...]  # uids with rows that are not among the tasks
    surplus: int  # clean rows of the tasks beyond the attempts asked for
    duplicates: int

    @property
    def complete(self) -> bool:
        """Whether every (uid, attempt) has exactly one clean row and no row is foreign."""
        return not self.missing and not self.foreign

    @property
    def share(self) -> float:
        """Clean share of what is expected."""
        return self.clean / self.expected if self.expected else 1.0


class AttemptStore:
    """Attempts of one run in `folder`. One writing process per shard; readers (`read_only`) need no lock and change
    nothing.

    UserError: the store is being written by another process, a line that is not the last cannot be read, or two clean
    rows of one attempt disagree.
    """

    def __init__(
        self, folder: Path | str, *, shard: str | None = None, read_only: bool = False, sync_every: int = 64
    ) -> None:
        self.folder = Path(folder)
        self.read_only = read_only
        self.duplicates = 0
        suffix = f"-{shard}" if shard else ""
        self._rows_file = self.folder / f"attempts{suffix}.jsonl"
        self._trajectory_file = self.folder / f"trajectories{suffix}.jsonl"
        self._tools_file = self.folder / f"tools{suffix}.jsonl"
        self._tools_written: set[str] = set()
        self._sync_every = sync_every
        self._unsynced = 0
        self._clean: dict[Key, tuple[AttemptRow, str]] = {}
        self._errors: dict[Key, AttemptRow] = {}
        self._history: list[AttemptRow] = []
        self._mutex = threading.Lock()
        self._lock: FileLock | None = None
        self._rows_out: BinaryIO | None = None
        self._trajectories_out: BinaryIO | None = None
        if not read_only:
            self._open_for_writing(suffix)
        try:
            for file in sorted(self.folder.glob("attempts*.jsonl")):
                self._load(file)
            if not read_only:
                self._rows_out = self._rows_file.open("ab", buffering=0)
                self._trajectories_out = self._trajectory_file.open("ab", buffering=0)
        except BaseException:
            self.close()
            raise

    # -- writing

    def append(self, row: AttemptRow, trajectory: Mapping[str, Any] | None = None) -> bool:
        """Keep one finished attempt; False (and a log line) if it has a clean row already. Thread-safe."""
        if self._rows_out is None or self._trajectories_out is None:
            raise ValueError(f"the store in {self.folder} is not open for writing")
        with self._mutex:
            key = (row.uid, row.attempt)
            if row.clean and key in self._clean:
                self.duplicates += 1
                log.warning("%s attempt %d has a clean row already; the new one is not kept", *key)
                return False
            reference = None
            if trajectory is not None:
                line = _line(self._with_tools_kept(trajectory))
                start = self._trajectories_out.seek(0, os.SEEK_END)
                _write(self._trajectories_out, line)
                reference = f"{self._trajectory_file.name}@{start}+{len(line)}"
            row = replace(row, trajectory=reference)
            _write(self._rows_out, _line(row.as_dict()))
            self._add(row, self._rows_file.name)
            self._unsynced += 1
            if self._unsynced >= self._sync_every:
                self._sync()
        return True

    def _with_tools_kept(self, trajectory: Mapping[str, Any]) -> Mapping[str, Any]:
        """Tools, the same in all attempts of a scenario, are written once and named by their hash."""
        tools = trajectory.get("tools")
        if not isinstance(tools, list):
            return trajectory
        name = hashlib.sha256(json.dumps(tools, sort_keys=True).encode()).hexdigest()[:16]
        if name not in self._tools_written:  # a store that is opened again writes them again: readers do not mind
            with self._tools_file.open("ab") as file:
                file.write(_line({"tools_hash": name, "tools": tools}))
            self._tools_written.add(name)
        return {**trajectory, "tools": name}

    def sync(self) -> None:
        """Have everything appended so far on the disk."""
        with self._mutex:
            self._sync()

    def close(self) -> None:
        """Sync, close the files and let others write."""
        with self._mutex:
            if self._unsynced:
                self._sync()
            for file in (self._trajectories_out, self._rows_out):
                if file is not None:
                    file.close()
            self._trajectories_out = self._rows_out = None
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def __enter__(self) -> AttemptStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- reading

    def rows(self) -> list[AttemptRow]:
        """One row per (uid, attempt), sorted: the clean one, or the last system error of an attempt without one."""
        best = {**self._errors, **{key: row for key, (row, _) in self._clean.items()}}
        return [best[key] for key in sorted(best)]

    def history(self) -> list[AttemptRow]:
        """Every row, superseded system errors included, in the order of files and lines."""
        return list(self._history)

    def clean_of(self, shard: str) -> int:
        """How many attempts have their clean row in this shard's file."""
        name = f"attempts-{shard}.jsonl"
        return sum(where.partition(":")[0] == name for _, where in self._clean.values())

    def missing(self, uids: Iterable[str], n: int) -> list[Key]:
        """The (uid, attempt) without a clean row, task by task in the order given."""
        return [(uid, attempt) for uid in uids for attempt in range(n) if (uid, attempt) not in self._clean]

    def coverage(self, uids: Collection[str], n: int) -> Coverage:
        """How much of `uids` x `n` attempts is there."""
        tasks = set(uids)
        missing = self.missing(sorted(tasks), n)
        foreign = sorted({uid for uid, _ in [*self._clean, *self._errors]} - tasks)
        return Coverage(
            expected=len(tasks) * n,
            clean=len(tasks) * n - len(missing),
            missing=len(missing),
            system_errors=sum(key in self._errors for key in missing),
            foreign=tuple(foreign),
            surplus=sum(uid in tasks and attempt >= n for uid, attempt in self._clean),
            duplicates=self.duplicates,
        )

    def refuse_foreign(self, uids: Collection[str]) -> None:
        """UserError if there are rows of tasks that are not among `uids` (another dataset's store, say)."""
        foreign = self.coverage(uids, 0).foreign
        if foreign:
            shown = ", ".join(foreign[:_SHOWN]) + (
                f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
            )
            raise UserError(
                Problem(
                    f"rows of {counted(len(foreign), 'task')} not among the {len(set(uids))} of this run: {shown}",
                    where=str(self.folder),
                    fix="use another output folder, or move the files away",
                )
            )

    def trajectory(self, row: AttemptRow) -> dict[str, Any] | None:
        """The trajectory of a row of this store; None if it has none, or a damaged one, of which a warning tells."""
        if row.trajectory is None:
            return None
        name, start, length = _parse_reference(row.trajectory)
        try:
            with (self.folder / name).open("rb") as file:
                file.seek(start)
                loaded: dict[str, Any] = json.loads(file.read(length))
            for field, own in (("uid", row.uid), ("attempt", row.attempt)):
                if loaded.get(field, own) != own:
                    raise ValueError(f"it is of {field} {loaded[field]}")
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            place = f"{self.folder / name}, {length} bytes from byte {start}"
            log.warning("%s attempt %d: its trajectory cannot be read (%s): %s", row.uid, row.attempt, place, error)
            return None
        return loaded

    # -- inside

    def _open_for_writing(self, suffix: str) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self.folder / f".attempts{suffix}.lock", timeout=0)
            self._lock.acquire()
        except Timeout:
            self._lock = None
            raise UserError(
                Problem(
                    "another process is writing attempts here",
                    where=str(self.folder),
                    fix="wait for it or stop it; `tbexp stages=[status]` shows what runs",
                )
            ) from None
        except OSError as error:
            raise UserError(Problem(f"cannot be written: {error.strerror}", where=str(self.folder))) from None

    def _load(self, file: Path) -> None:
        own = not self.read_only and file == self._rows_file
        data = file.read_bytes()
        sizes: dict[str, int] = {}
        kept = 0  # bytes up to the end of the last good line
        gone: dict[int, AttemptRow] = {}  # rows by line whose trajectories are not there
        lines = data.split(b"\n")
        torn = lines.pop() != b""
        for number, line in enumerate(lines, 1):
            last = number == len(lines) and not torn
            try:
                row = row_from_dict(json.loads(line))
                reference = None if row.trajectory is None else _parse_reference(row.trajectory)
            except (ValueError, RecursionError) as error:
                if last and isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
                    torn = True
                    break
                raise UserError(
                    Problem(str(error), where=f"{file}:{number}", fix="the line was damaged: remove or mend it")
                ) from None
            if reference is not None:
                name, start, length = reference
                if name not in sizes:
                    path = self.folder / name
                    sizes[name] = path.stat().st_size if path.exists() else 0
                if start + length > sizes[name]:  # removed, or a power cut came between the row and it
                    row = gone[number] = replace(row, trajectory=None)
            kept += len(line) + 1
            self._add(row, f"{file.name}:{number}")
        if torn:
            level = logging.WARNING if own else logging.INFO  # another process may be in the middle of an append
            log.log(level, "%s: %d bytes of an unfinished append at the end are dropped", file, len(data) - kept)
            if own:
                _truncate(file, kept)
        if gone:
            log.log(
                logging.WARNING if own else logging.INFO,
                "%s: the trajectories of %d of its rows are gone, the first of %s attempt %d; their verdicts count, "
                "but they cannot be shown or judged again",
                file,
                len(gone),
                *next((row.uid, row.attempt) for row in gone.values()),
            )
            if own:  # else the next trajectories, written where these were, would be taken for theirs
                write_whole(
                    file,
                    b"".join(
                        _line(gone[number].as_dict()) if number in gone else line + b"\n"
                        for number, line in enumerate(data[:kept].split(b"\n")[:-1], 1)
                    ),
                )
        if own and self._trajectory_file.exists():
            whole = _end_of_last_line(self._trajectory_file)
            if whole < self._trajectory_file.stat().st_size:
                log.warning("%s: an unfinished trajectory at the end is dropped", self._trajectory_file)
                _truncate(self._trajectory_file, whole)

    def _add(self, row: AttemptRow, where: str) -> None:
        key = (row.uid, row.attempt)
        if not row.clean:
            self._errors[key] = row
        elif key not in self._clean:
            self._clean[key] = (row, where)
        else:
            first, first_where = self._clean[key]
            if first.passed != row.passed or first.reward != row.reward:
                raise UserError(
                    Problem(
                        f"two clean rows of {row.uid} attempt {row.attempt} disagree: {first_where} and {where}",
                        where=str(self.folder),
                        fix="remove the row that does not belong to this run",
                    )
                )
            self.duplicates += 1
            log.warning("%s attempt %d: %s repeats %s and is not counted", *key, where, first_where)
            return
        self._history.append(row)

    def _sync(self) -> None:
        for file in (self._trajectories_out, self._rows_out):
            if file is not None:
                os.fsync(file.fileno())
        self._unsynced = 0


def _line(value: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    except UnicodeEncodeError:  # a model can produce half of a surrogate pair; escaped it survives
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _write(file: BinaryIO, data: bytes) -> None:
    """All of `data` with one write; what a short write (a full disk) left is taken back."""
    start = file.seek(0, os.SEEK_END)
    try:
        written = file.write(data)
        if written != len(data):
            written += file.write(data[written:])
        if written != len(data):
            raise OSError("short write")
    except OSError:
        file.truncate(start)
        raise


def _parse_reference(reference: str) -> tuple[str, int, int]:
    name, _, place = reference.rpartition("@")
    start, _, length = place.partition("+")
    if not name or not start.isdecimal() or not length.isdecimal():
        raise ValueError(f"trajectory: {reference[:40]!r} is no FILE@START+LENGTH")
    return name, int(start), int(length)


def _truncate(file: Path, size: int) -> None:
    with file.open("r+b") as opened:
        opened.truncate(size)


def _end_of_last_line(file: Path, block: int = 1 << 16) -> int:
    """Bytes up to and including the last newline."""
    with file.open("rb") as opened:
        position = opened.seek(0, os.SEEK_END)
        while position > 0:
            start = max(0, position - block)
            opened.seek(start)
            found = opened.read(position - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            position = start
    return 0
