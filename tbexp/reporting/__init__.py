"""The report of a run, and runs side by side: one HTML file each, with its figures and tables."""

from __future__ import annotations

from tbexp.reporting.comparison import versus, write_comparison
from tbexp.reporting.report import is_current, write_report
from tbexp.reporting.side_by_side import Comparison, Source, compare_runs, holds_results, read_source

__all__ = [
    "Comparison",
    "Source",
    "compare_runs",
    "holds_results",
    "is_current",
    "read_source",
    "versus",
    "write_comparison",
    "write_report",
]
