"""What a person sees while a run works.

Decided here: a live bar per stage on a terminal, a few plain lines everywhere else (no control characters in a log
file), and one table at the end. Tables are results and go to stdout, everything else goes to stderr. Which numbers are
shown is the stages' choice.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

QUIET_SECONDS = 30.0  # between two lines of a stage when nobody watches a terminal

Field = str | int | float


class Progress:
    """Shows the stages of one run. Its bars may be moved from any thread.

    stream: where to write; if not given, tables go to stdout and all else to stderr. quiet_seconds: between two lines
    of a stage that no terminal shows.
    """

    def __init__(self, stream: IO[str] | None = None, *, quiet_seconds: float = QUIET_SECONDS):
        # Reads the environment too: NO_COLOR, TERM=dumb and FORCE_COLOR count, as rich documents them.
        from rich.console import Console

        def console(stream: IO[str]) -> Console:
            return Console(file=stream, force_terminal=None if stream.isatty() else False)

        self._stream = stream or sys.stderr
        self._console: Console = console(self._stream)
        self._results: Console = console(stream or sys.stdout)
        self.live = self._stream.isatty() and not self._console.is_dumb_terminal
        self._quiet_seconds = quiet_seconds
        self._lock = threading.RLock()
        self._bars: Bars | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._stop_bars()

    def stage(self, name: str, total: int | None, unit: str, *, done: int = 0, recent: int | None = None) -> Bar:
        """A new bar. total: None when nobody knows it. done: what an earlier run has finished already. recent: rate and
        time left follow from so many units finished last; None: from all.
        """
        with self._lock:
            if self.live:
                return _LiveBar(self._live_bars(), name, total, unit, done, recent, self._lock)
            return _Lines(self, name, total, unit, done, recent)

    def say(self, text: str) -> None:
        """One line above the bars."""
        with self._lock:
            _print(self._console, text)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Field]]) -> None:
        """The summary at the end, columns of numbers right-aligned; plain text when piped."""
        cells = [[_text(cell) for cell in row] for row in rows]
        with self._lock:
            self._stop_bars()  # they stay where they are, the table stands below
            if not self._results.is_terminal or self._results.is_dumb_terminal:
                _print(self._results, _plain_table(title, columns, cells))
                return
            from rich.table import Table
            from rich.text import Text

            table = Table(title=title, title_justify="left", header_style="bold")
            for column, right in zip(columns, _numbers(columns, cells), strict=True):
                table.add_column(column, justify="right" if right else "left", overflow="fold")
            for row in cells:
                table.add_row(*(Text(cell) for cell in row))
            self._results.print(table)

    def _stop_bars(self) -> None:
        if self._bars:
            self._bars.stop()
            self._bars = None

    def _live_bars(self) -> Bars:
        if self._bars is None:
            from rich.progress import BarColumn, SpinnerColumn, TextColumn
            from rich.progress import Progress as Bars
            from rich.table import Column

            # The fields behind the counts take what the line has left and are cut there.
            rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
            self._bars = Bars(
                SpinnerColumn(finished_text="[green]✓"),
                TextColumn("{task.description}", style="bold", markup=False),
                BarColumn(bar_width=24 if self._console.width >= 100 else 10),
                TextColumn("{task.fields[counts]}", markup=False),
                TextColumn("{task.fields[extra]}", style="dim", markup=False, table_column=rest),
                expand=True,
                console=self._console,
                refresh_per_second=4,
            )
            self._bars.start()
        return self._bars


class Bar:
    """The state of one stage: how much is done, how fast, and the extra fields."""

    def __init__(self, name: str, total: int | None, unit: str, done: int, recent: int | None):
        self.name = name
        self.total = total
        self.unit = unit
        self.count = done
        self._before = done
        self._fields: dict[str, Field] = {}
        self._started = time.monotonic()
        # When units were done and how many then: the rate counts from the first, since what comes before is starting.
        self._recent = recent
        self._marks: deque[tuple[float, int]] = deque()
        self._ended = False
        self._lock = threading.RLock()

    def advance(self, n: int = 1, **fields: Field) -> None:
        with self._lock:
            self.update(self.count + n, **fields)

    def update(self, done: int, **fields: Field) -> None:
        """done: units finished in all. fields: shown behind the counts, such as passed="37%" or errors=0."""
        with self._lock:
            self.count = done
            if done > (self._marks[-1][1] if self._marks else self._before):
                self._mark(time.monotonic(), done)
            self._fields |= fields
            self._show()

    def _mark(self, now: float, done: int) -> None:
        if self._recent is None and self._marks:
            return
        self._marks.append((now, done))
        if self._recent is None:
            return
        while done - self._marks[0][1] > self._recent and len(self._marks) > 2:
            self._marks.popleft()

    def done(self, note: str = "") -> None:
        """Ends the stage; more calls change nothing."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._end(note)

    def counts(self) -> str:
        """Such as `120/512 attempts, 14/s, 0:28 left`."""
        now = time.monotonic()
        begun, before = self._marks[0] if self._marks else (now, self.count)
        until = now if self._recent is None or not self._marks else self._marks[-1][0]  # whole units, when they are few
        seconds, fresh = until - begun, self.count - before
        total = "" if self.total is None else f"/{self.total:,}"
        parts = [f"{self.count:,}{total} {self.unit}"]
        if self._ended:
            parts.append(clock(now - self._started))
        elif fresh > 0 and seconds > 0:
            parts.append(_rate(fresh / seconds))
            if self.total is not None and self.total > self.count:
                parts.append(f"{clock((self.total - self.count) * seconds / fresh)} left")
        return ", ".join(parts)

    def extra(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {_text(value)}" for name, value in self._fields.items())

    def _show(self) -> None:
        raise NotImplementedError

    def _end(self, note: str) -> None:
        raise NotImplementedError


class _LiveBar(Bar):
    def __init__(
        self, bars: Bars, name: str, total: int | None, unit: str, done: int, recent: int | None, lock: threading.RLock
    ):
        super().__init__(name, total, unit, done, recent)
        self._lock = lock
        self._bars = bars
        self._task: TaskID = bars.add_task(name, total=total, completed=done, counts=self.counts(), extra="")

    def _show(self) -> None:
        self._bars.update(self._task, completed=self.count, counts=self.counts(), extra=self.extra())

    def _end(self, note: str) -> None:
        extra = ", ".join(part for part in (self.extra(), note) if part)
        shown = max(self.count, 1)
        self._bars.update(self._task, total=shown, completed=shown, counts=self.counts(), extra=extra)
        self._bars.stop_task(self._task)


class _Lines(Bar):
    """One line at the start, one now and then, one at the end."""

    def __init__(self, progress: Progress, name: str, total: int | None, unit: str, done: int, recent: int | None):
        super().__init__(name, total, unit, done, recent)
        self._progress = progress
        self._next = self._started + progress._quiet_seconds
        before = f", {done:,} done before" if done else ""
        size = unit if total is None else f"{total:,} {unit}"
        progress.say(f"{name}: {size}{before}")

    def _show(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._progress._quiet_seconds
            self._progress.say(f"{self.name}: " + ", ".join(part for part in (self.counts(), self.extra()) if part))

    def _end(self, note: str) -> None:
        parts = (self.counts(), self.extra(), note)
        self._progress.say(f"{self.name}: done, " + ", ".join(part for part in parts if part))


def _print(console: Console, text: str) -> None:
    text = re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", " ", text)
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def clock(seconds: float) -> str:
    """Such as 0:07, 12:30 or 3:05:00."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def _rate(per_second: float) -> str:
    if per_second >= 1:
        return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.1f}/s"
    if per_second * 60 >= 1:
        return f"{per_second * 60:.1f}/min"
    return f"{per_second * 3600:.1f}/h"


def _text(value: Field) -> str:
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value


def _numbers(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Which columns hold nothing but numbers."""
    number = re.compile(r"[-+−]?[\d.,:]+ ?[%s]?|[–∞]?")
    return [bool(rows) and all(number.fullmatch(row[i]) for row in rows) for i in range(len(columns))]


def _plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    right = _numbers(columns, rows)
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]

    def line(row: Sequence[str]) -> str:
        cells = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        return "  ".join(cells).rstrip()

    return "\n".join([title, line(columns), "  ".join("-" * w for w in widths), *(line(row) for row in rows)])
