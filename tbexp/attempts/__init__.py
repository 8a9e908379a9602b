"""Attempts: what one try at a task gave, and the files that keep it.

Decided here: the fields of a row, how rows are appended, resumed and merged, which of several rows of one attempt
counts, and how rows made elsewhere are read. Left to others: who makes attempts (episode), and what their counts mean
(selection, evaluation).
"""

from tbexp.attempts.content import Contents
from tbexp.attempts.counts import Counts, read_contents, read_counts, read_rows
from tbexp.attempts.infer import to_tb_infer_row
from tbexp.attempts.row import AttemptRow, canonical, digest
from tbexp.attempts.store import AttemptStore, Coverage

__all__ = [
    "AttemptRow",
    "AttemptStore",
    "Contents",
    "Counts",
    "Coverage",
    "canonical",
    "digest",
    "read_contents",
    "read_counts",
    "read_rows",
    "to_tb_infer_row",
]
