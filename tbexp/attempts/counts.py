"""Counts and rows from JSONL files, whoever made them.

Three shapes are read. With the default fields each row says what it is: an attempt of tbexp (it has `passed` and
`system_error`) or a result of `tb infer` (it has `test_result`), where the row's own flag, the flag inside
`test_result`, and a missing `test_result` all mean a system error. With other fields a row is what the dotted paths
say; numbers in a path are list indexes. A system error is counted as such and its verdict is not read.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tbexp.attempts.content import Contents, of_benchmark, user_texts
from tbexp.attempts.faults import OPTIONAL, row_faults
from tbexp.attempts.row import MOST, AttemptRow
from tbexp.errors import Problem, UserError
from tbexp.tasks import is_benchmark

if TYPE_CHECKING:
    from tbexp.config.schema import Fields

_SHOWN: Final = 20
_DEFAULT: Final = ("uid", "test_result.result", "is_system_error")
FAILED, PASSED, ERROR = 0, 1, 2  # outcomes of a row
Read = Callable[[Any], tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Counts:
    """Attempts per task, uids sorted. Arrays of int64, one entry per uid; `passed` is of the `clean` ones."""

    uids: tuple[str, ...]
    clean: NDArray[np.int64]
    passed: NDArray[np.int64]
    system_errors: NDArray[np.int64]

    def __post_init__(self) -> None:
        n = len(self.uids)
        if not n == len(self.clean) == len(self.passed) == len(self.system_errors):
            raise ValueError("one count per uid")
        if any(a >= b for a, b in pairwise(self.uids)):
            raise ValueError("uids are unique and sorted")
        if np.any(self.passed < 0) or np.any(self.passed > self.clean) or np.any(self.system_errors < 0):
            raise ValueError("0 <= passed <= clean, and no negative counts")

    @staticmethod
    def of(tally: Mapping[str, tuple[int, int, int]]) -> Counts:
        """From {uid: (clean, passed, system_errors)}."""
        uids = tuple(sorted(tally))
        table = np.array([tally[uid] for uid in uids], dtype=np.int64).reshape(len(uids), 3)
        return Counts(uids, table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy())

    @staticmethod
    def of_rows(rows: Iterable[AttemptRow]) -> Counts:
        """From attempts."""
        outcomes = Counter((row.uid, ERROR if row.passed is None else int(row.passed)) for row in rows)
        return _from_outcomes(outcomes)

    def with_uids(self, uids: Iterable[str]) -> Counts:
        """The same with zeros for every further uid (tasks that no row speaks of)."""
        tally = {uid: (0, 0, 0) for uid in uids}
        tally.update(self.as_dict())
        return Counts.of(tally)

    def only(self, uids: Iterable[str]) -> Counts:
        """The counts of `uids` alone, zeros where there is no row."""
        known = self.as_dict()
        return Counts.of({uid: known.get(uid, (0, 0, 0)) for uid in uids})

    def as_dict(self) -> dict[str, tuple[int, int, int]]:
        """{uid: (clean, passed, system_errors)}."""
        columns = (self.clean.tolist(), self.passed.tolist(), self.system_errors.tolist())
        return {uid: (n, k, e) for uid, n, k, e in zip(self.uids, *columns, strict=True)}

    def digest(self) -> str:
        """SHA-256 of the counts; the order of rows and files does not matter."""
        text = json.dumps(sorted(self.as_dict().items()), ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def read_counts(files: Sequence[Path | str], fields: Fields | None = None) -> Counts:
    """Counts of all rows in `files`.

    UserError with all problems (the first 20 and how many more), each with file, line and field; two clean rows of
    one attempt in one file of ours are one. Blank lines are skipped.
    """
    read = _reader(fields)
    known = read is _read_known
    outcomes: Counter[tuple[str, int]] = Counter()
    problems = _Problems()
    seen: dict[tuple[str, int], int] = {}
    for path in _existing(files, problems):
        seen.clear()
        for numbers, batch in _batches(path, problems):
            read_batch: list[tuple[str, int]] = []
            for number, plain in zip(numbers, batch, strict=True):
                try:
                    outcome = read(plain)
                    read_batch.append(outcome)
                    if known and outcome[1] != ERROR and type(attempt := plain.get("attempt")) is int:
                        first = seen.setdefault((outcome[0], attempt), number)
                        if first != number:
                            raise ValueError(f"attempt: {outcome[0]} {attempt} has a clean row in line {first} already")
                except ValueError as error:
                    problems.add(str(error), f"{path}:{number}")
            outcomes.update(read_batch)
    problems.raise_any()
    if not outcomes:
        raise UserError(Problem("no rows", where=", ".join(str(f) for f in files)))
    return _from_outcomes(outcomes)


def read_rows(files: Sequence[Path | str], fields: Fields | None = None, *, placed: bool = False) -> list[AttemptRow]:
    """Attempts of all rows in `files`, with what the rows say of tokens, time and domain; errors as in `read_counts`,
    and those of `row_faults`.

    Rows without an attempt number (or `metadata.repetition`; cancelled runs lack it) take the task's free numbers in
    the order of lines; so do those of other fields whose number is none, where what is called alike is the same
    attempt. placed: `trajectory` says where the row's own line stands, as FILE@START+LENGTH.
    """
    read = _reader(fields)
    known = read is _read_known
    problems = _Problems()
    found: dict[str, list[tuple[int | str | None, Any, int]]] = defaultdict(list)
    places: dict[int, str] = {}
    for path in _existing(files, problems):
        lines = _places(path) if placed else iter(())
        for numbers, batch in _batches(path, problems):
            for number, plain in zip(numbers, batch, strict=True):
                try:
                    if placed:
                        places[id(plain)] = next(place for at, place in lines if at == number)
                    uid, outcome = read(plain)
                    ours = known or ("passed" in plain and "system_error" in plain)
                    if wrong := list(row_faults(plain, known=ours)):
                        raise ValueError("; ".join(wrong))
                    found[uid].append((_attempt_number(plain), plain, outcome))
                except ValueError as error:
                    problems.add(str(error), f"{path}:{number}")
    problems.raise_any()
    rows = []
    for uid, entries in found.items():
        taken = {attempt for attempt, _, _ in entries}
        free = (attempt for attempt in count() if attempt not in taken)
        called: dict[str, int] = {}
        for attempt, plain, outcome in entries:
            if isinstance(attempt, str):
                attempt = called[attempt] if attempt in called else called.setdefault(attempt, next(free))
            row = _as_row(uid, next(free) if attempt is None else attempt, plain, outcome)
            rows.append(replace(row, trajectory=places[id(plain)]) if placed else row)
    return sorted(rows, key=lambda r: (r.uid, r.attempt, r.clean))


def read_contents(files: Sequence[Path | str], fields: Fields | None = None) -> Contents:
    """What rows that `read_counts` has read tell of their tasks; lines that hold no content are not parsed again."""
    uid_of = _follow("uid" if fields is None else fields.uid)
    benchmark, known = set(), set()
    for file in files:
        with Path(file).open("rb") as lines:
            for line in lines:
                if b'"messages"' not in line and b'"evaluation_only"' not in line:
                    continue
                row = json.loads(line)
                uid, texts = uid_of(row), list(user_texts(row))
                if texts:
                    known.add(uid)
                if of_benchmark(row, texts):
                    benchmark.add(uid)
    return Contents(frozenset(benchmark), frozenset(known))


# -- one row


def _reader(fields: Fields | None) -> Read:
    paths = _DEFAULT if fields is None else (fields.uid, fields.passed, fields.system_error)
    return _read_known if paths == _DEFAULT else _paths_reader(*paths)


def _read_known(plain: Any) -> tuple[str, int]:
    """(uid, outcome) of an attempt of tbexp or a row of `tb infer`."""
    if type(plain) is not dict:
        raise ValueError("the line is no JSON object")
    uid = plain.get("uid")
    if type(uid) is not str or not uid:
        raise ValueError("uid: missing" if "uid" not in plain else f"uid: {_short(uid)} is no text")
    if not uid.isascii():
        _refuse_surrogates(uid, "uid")
    if "test_result" in plain or "passed" not in plain:
        flag = plain.get("is_system_error", False)
        if flag is True:
            return uid, ERROR
        if flag is not False:
            raise ValueError(f"is_system_error: {_short(flag)} is neither true nor false")
        if "test_result" not in plain:
            raise ValueError("test_result.result: missing")
        result = plain["test_result"]
        if result is None:
            return uid, ERROR
        if type(result) is not dict:
            raise ValueError(f"test_result: {_short(result)} is no object")
        inner = result.get("is_system_error", False)
        if inner is True:
            return uid, ERROR
        if inner is not False:
            raise ValueError(f"test_result.is_system_error: {_short(inner)} is neither true nor false")
        if "result" not in result:
            raise ValueError("test_result.result: missing")
        verdict, field = result["result"], "test_result.result"
    else:
        if "system_error" not in plain:
            raise ValueError("system_error: missing")
        error = plain["system_error"]
        verdict, field = plain["passed"], "passed"
        if error is not None:
            if type(error) is not dict:
                raise ValueError(f"system_error: {_short(error)} is neither null nor an object")
            return uid, ERROR
    if verdict is True:
        return uid, PASSED
    if verdict is False:
        return uid, FAILED
    raise ValueError(f"{field}: {_short(verdict)} is neither true nor false")


def _paths_reader(uid_path: str, passed_path: str, error_path: str | None) -> Read:
    uid_at, passed_at = _follow(uid_path), _follow(passed_path)
    error_at = None if error_path is None else _follow(error_path)

    def read(plain: Any) -> tuple[str, int]:
        uid = uid_at(plain)
        if type(uid) is not str or not uid:
            raise ValueError(f"{uid_path}: {_short(uid)} is no text")
        if not uid.isascii():
            _refuse_surrogates(uid, uid_path)
        if error_at is not None:
            flag = error_at(plain)
            if flag is True:
                return uid, ERROR
            if flag is not False:
                raise ValueError(f"{error_path}: {_short(flag)} is neither true nor false")
        verdict = passed_at(plain)
        if verdict is True:
            return uid, PASSED
        if verdict is False:
            return uid, FAILED
        raise ValueError(f"{passed_path}: {_short(verdict)} is neither true nor false")

    return read


def _follow(path: str) -> Callable[[Any], Any]:
    """The value at a dotted path; a part of digits is an index where the value is a list, a key where it is an
    object.
    """
    parts = tuple(path.split("."))

    def follow(value: Any) -> Any:
        for depth, part in enumerate(parts):
            if type(value) is dict and part in value:
                value = value[part]
            elif type(value) is list and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            else:
                at = ".".join(parts[:depth]) or "the row"
                what = f"{at} has no {part}" if type(value) in (dict, list) else f"{at} is {_short(value)}"
                raise ValueError(f"{path}: missing ({what})")
        return value

    return follow


def _refuse_surrogates(uid: str, field: str) -> None:
    """JSON can escape half of a character, which no file can hold."""
    try:
        uid.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{field}: {json.dumps(uid)[:40]} has half of a character (a lone surrogate)") from None


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode()
    return text if len(text) <= 40 else text[:37] + "..."


# -- files


def _existing(files: Sequence[Path | str], problems: _Problems) -> Iterator[Path]:
    """The files; one that is named twice, also by a copy of the same bytes, would count every attempt twice."""
    seen: dict[tuple[int, str], Path] = {}
    sizes = Counter(path.stat().st_size for file in files if (path := Path(file)).is_file())
    for file in files:
        path = Path(file)
        if path.is_file():
            size = path.stat().st_size
            if sizes[size] > 1 and size:
                with path.open("rb") as opened:
                    first = seen.setdefault((size, hashlib.file_digest(opened, "sha256").hexdigest()), path)
                if first is not path:
                    problems.add(f"has the same rows as {first}, which would count twice", str(path))
                    continue
            yield path
        else:
            problems.add("is no file" if path.exists() else "not found", str(path))


def _batches(path: Path, problems: _Problems, size: int = 1 << 14) -> Iterator[tuple[list[int], list[Any]]]:
    """Line numbers and JSON values of about `size` bytes of lines at a time (few, so that the values die young: 1 MiB
    costs a third more in garbage collection).

    `json.loads` spends two thirds of its time on 100-byte lines outside the scanner; the scanner is called directly
    and whatever it does not take as a whole line goes through `json.loads`, so both read the same.
    """
    scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
    with path.open("rb") as file:
        number = 0
        while lines := file.readlines(size):
            numbers, values = [], []
            for line in lines:
                number += 1
                try:
                    text = line.decode() if number > 1 else line.decode("utf-8-sig")  # editors and exports mark UTF-8
                    try:
                        value, end = scan(text, 0)
                    except StopIteration:
                        end = -1
                    if end + 1 != len(text) or text[end] != "\n":
                        if not text.strip():
                            continue
                        value = json.loads(text)
                except (ValueError, RecursionError) as error:
                    problems.add(f"no JSON: {error}", f"{path}:{number}")
                    continue
                numbers.append(number)
                values.append(value)
            yield numbers, values


class _Problems:
    """All problems of some files: the first ones in full, the rest as a number."""

    def __init__(self) -> None:
        self.shown: list[Problem] = []
        self.more = 0

    def add(self, what: str, where: str) -> None:
        if len(self.shown) < _SHOWN:
            self.shown.append(Problem(what, where))
        else:
            self.more += 1

    def raise_any(self) -> None:
        if self.shown:
            rest = [Problem(f"and {self.more} more of this kind")] if self.more else []
            raise UserError([*self.shown, *rest])


def _from_outcomes(outcomes: Mapping[tuple[str, int], int]) -> Counts:
    tally: dict[str, list[int]] = {}
    for (uid, outcome), times in outcomes.items():
        entry = tally.setdefault(uid, [0, 0, 0])
        entry[outcome] += times
    return Counts.of({uid: (failed + passed, passed, errors) for uid, (failed, passed, errors) in tally.items()})


# -- rows


def _attempt_number(plain: Mapping[str, Any]) -> int | str | None:
    """The number; a text that stands for one; None: the row does not say."""
    number = plain.get("attempt")
    if number is None and isinstance(plain.get("metadata"), dict):
        number = plain["metadata"].get("repetition")
    if number is None or (type(number) is int and number >= 0):
        return number
    if isinstance(number, str) and number.isascii() and number.isdecimal() and int(number) <= MOST:
        return int(number)
    return json.dumps(number, sort_keys=True)


def _places(path: Path) -> Iterator[tuple[int, str]]:
    """(number, FILE@START+LENGTH) of each line."""
    start = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield number, f"{path}@{start}+{len(line)}"
            start += len(line)


def _as_row(uid: str, attempt: int, plain: Mapping[str, Any], outcome: int) -> AttemptRow:
    passed = None if outcome == ERROR else outcome == PASSED
    metadata = plain.get("metadata") if isinstance(plain.get("metadata"), dict) else {}
    result = plain.get("test_result") if isinstance(plain.get("test_result"), dict) else {}
    assert isinstance(metadata, dict) and isinstance(result, dict)
    usage = [u for u in plain.get("usage") or [] if isinstance(u, dict)]
    messages = [m for m in plain.get("messages") or [] if isinstance(m, dict)]
    reward = result.get("reward", float(bool(passed)))
    row = AttemptRow(
        uid=uid,
        attempt=attempt,
        passed=passed,
        reward=float(reward) if isinstance(reward, int | float) and passed is not None else 0.0,
        system_error=None if passed is not None else _foreign_error(metadata, result),
        finish_reason=reason if isinstance(reason := plain.get("finish_reason"), str) else "",
        turns=sum(m.get("role") == "assistant" for m in messages),
        tool_calls=sum(len(m.get("tool_calls") or []) for m in messages),
        prompt_tokens=sum(_number(u, "input_tokens") for u in usage),
        completion_tokens=sum(_number(u, "output_tokens") for u in usage),
        cached_tokens=sum(_number(u, "input_tokens_details", "cached_tokens") for u in usage),
        reasoning_tokens=sum(_number(u, "output_tokens_details", "reasoning_tokens") for u in usage),
        seconds=float(metadata.get("execution_time") or 0.0),
        domain=str(metadata.get("scenario") or ""),
        judged=bool((result.get("metadata") or {}).get("judge_motivation")),
        search=str(metadata.get("search") or ""),
        evaluation_only=is_benchmark(uid) or of_benchmark(plain, user_texts(plain)),
    )
    if not ("passed" in plain and "system_error" in plain and "test_result" not in plain):
        return row
    told = {name: plain[name] for name in OPTIONAL if plain.get(name) is not None}
    if passed is None and isinstance(error := plain["system_error"], dict) and error.get("kind"):
        told["system_error"] = {"kind": error["kind"], "message": error.get("message") or ""}
    told["evaluation_only"] = told.get("evaluation_only", False) or row.evaluation_only
    return replace(row, **told)


def _foreign_error(metadata: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, str]:
    error = metadata.get("error")
    if isinstance(error, dict):
        return {"kind": str(error.get("type") or "error"), "message": str(error.get("message") or "")}
    if result:
        return {"kind": "grader", "message": str(result.get("tb") or "")}
    return {"kind": "unknown", "message": ""}


def _number(usage: Mapping[str, Any], *path: str) -> int:
    value: Any = usage
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value if type(value) is int else 0
