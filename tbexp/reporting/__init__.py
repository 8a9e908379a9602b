"""The report of a run: one HTML file, its figures and tables. Runs side by side: `side_by_side`, `comparison`."""

from __future__ import annotations

from tbexp.reporting.report import is_current, write_report

__all__ = ["is_current", "write_report"]
