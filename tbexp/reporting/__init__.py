"""The report of a run: one HTML file, its figures and tables."""

from __future__ import annotations

from tbexp.reporting.report import write_report

__all__ = ["write_report"]
