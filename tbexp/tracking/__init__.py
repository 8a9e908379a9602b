"""One run per job, in local files first and at MLflow as well as it goes; and runs that are there already."""

from __future__ import annotations

from tbexp.tracking.address import tracker_uri, ui_line
from tbexp.tracking.lookup import Archive, TrackedRun, artifacts_elsewhere, open_archive
from tbexp.tracking.run import Run, all_sent, flatten, metric_name, open_run
from tbexp.tracking.scheduled import page_of_scheduled

__all__ = [
    "Archive",
    "Run",
    "TrackedRun",
    "all_sent",
    "artifacts_elsewhere",
    "flatten",
    "metric_name",
    "open_archive",
    "open_run",
    "page_of_scheduled",
    "tracker_uri",
    "ui_line",
]
