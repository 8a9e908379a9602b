"""A run that jobs will make: it is known to the tracker before they start, so that its page can be told.

Decided here: of which trackers that is so (MLflow servers, whose pages have addresses), and that one which does not
answer keeps no submission back. The jobs find the run by its id or its key, as every later start of a run does.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from tbexp.tracking.journal import Sent, read_sent, write_sent
from tbexp.tracking.mlflow_link import Wanted, connect
from tbexp.tracking.run import ENVIRONMENT

log = logging.getLogger(__name__)


def page_of_scheduled(
    uri: str,
    *,
    experiment: str,
    run_name: str,
    run_key: str,
    folder: Path,
    parent_run_id: str | None,
    tags: dict[str, str],
) -> str | None:
    """The address of the run's page at an MLflow server; the run is made there, as SCHEDULED, if it is new. None:
    the tracker is no such server, or it does not answer, which is logged. The arguments are those of `open_run`.
    """
    if urlsplit(uri).scheme not in ("http", "https"):
        return None
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    file = folder / "mlflow_run.json"
    sent = read_sent(file, uri=uri, run_key=run_key)
    wanted = Wanted(uri, experiment, run_name, run_key, sent.run_id, parent_run_id, tags)
    try:
        link = connect(wanted)
        link.client.update_run(link.run_id, status="SCHEDULED")
        place = link.client.get_run(link.run_id).info.experiment_id
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        log.warning("the tracker was not told of the run (%s: %s); its jobs tell it", type(error).__name__, reason)
        return None
    folder.mkdir(parents=True, exist_ok=True)
    same = link.run_id == sent.run_id
    write_sent(file, replace(sent, ended=False) if same else Sent(uri, run_key, link.run_id))
    return f"{uri.rstrip('/')}/#/experiments/{place}/runs/{link.run_id}"
