"""The kinds of failure that end a command, and the one that ends an attempt.

Decided here, once: whose fault something is. What the user can fix is a `UserError` (exit 2), what the world did is a
`WorldFailure` (exit 3); neither shows a traceback. Inside an episode the world's failure is a `WorldError`: the attempt
becomes a system error, is retried, and is never scored. Whatever is the agent's fault is no exception at all: it is a
text that the agent reads, or a finish reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

DONE, DEFECT, USER, WORLD, INTERRUPTED = 0, 1, 2, 3, 130  # exit codes of a command


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that the user can fix.

    what: the sentence. where: a config key, a `file:line`, or empty. fix: how to mend it, or empty. of: further keys
    whose values it was found by; where one of these cannot be read, nothing is known.
    """

    what: str
    where: str = ""
    fix: str = ""
    of: tuple[str, ...] = ()

    @property
    def short(self) -> str:
        """Without the fix, on one line."""
        return f"{self.where}: {self.what}" if self.where else self.what

    def __str__(self) -> str:
        return f"{self.short}\n      fix: {self.fix}" if self.fix else self.short


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ended: its exit code, and what was said about it."""

    code: int
    said: str = ""


class UserError(Exception):
    """Everything that the user has to fix, found in one pass. Exit code 2."""

    def __init__(self, problems: Iterable[Problem] | Problem | str):
        if isinstance(problems, str):
            problems = Problem(problems)
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


class WorldFailure(Exception):
    """The world failed beyond what is allowed (system errors past their share, coverage incomplete). Exit code 3."""


class Stopped(Exception):
    """The work was asked to stop, and has: started again, it goes on. kept: whether this start kept anything new."""

    def __init__(self, message: str, *, kept: bool):
        self.kept = kept
        super().__init__(message)


class WorldError(Exception):
    """The world failed during one attempt; it becomes that attempt's system error.

    kind: a short stable name that rows and metrics are grouped by, such as `tool_timeout` or `user_endpoint`.
    """

    def __init__(self, kind: str, message: str):
        self.kind = kind
        self.message = message
        super().__init__(f"{kind}: {message}")

    def __reduce__(self) -> tuple[type[WorldError], tuple[str, str]]:
        return type(self), (self.kind, self.message)


def counted(number: float, noun: str) -> str:
    """Such as `1 task` and `1,200 tasks`."""
    return f"{number:,.10g} {noun}" + ("" if number == 1 else "s")


def one_line(text: str) -> str:
    """A message of many lines, such as one that quotes a server's output, by its first and its last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}" if lines else ""
