"""One run per job, on local disk first and at MLflow as well as it goes."""

from __future__ import annotations

from tbexp.tracking.address import tracker_uri, ui_line
from tbexp.tracking.run import Run, flatten, metric_name, open_run

__all__ = ["Run", "flatten", "metric_name", "open_run", "tracker_uri", "ui_line"]
