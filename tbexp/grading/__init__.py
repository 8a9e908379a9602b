"""Runs a task's test on the end of an attempt, in a process of its own, and says passed, failed or broken.

Decided here: what the test sees, the limits it runs under, and whose fault an exception is. Left to others: who answers
the judge's questions (policy, episode) and what is done with a system error (episode).
"""

from __future__ import annotations

from tbexp.grading.context import TestContext
from tbexp.grading.grader import Grader, Judge, Verdict, open_grader

__all__ = ["Grader", "Judge", "TestContext", "Verdict", "open_grader"]
