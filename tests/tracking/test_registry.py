"""Chosen weights in the registry of a database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tbexp.config.schema import Tracking
from tbexp.tracking import all_sent, open_run

# SQLAlchemy's complaint about how MLflow uses it.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader:DeprecationWarning")

MLFLOW = Tracking(name="mlflow", kind="mlflow")
TAGS = {"tbexp.step": 4, "tbexp.validation_pass_rate": 0.5}


def weights_in(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def told(folder: Path, run: str, weights: Path, uri: str, **more: Any) -> str | None:
    """A run that tells of the weights; its id at the tracker."""
    place = folder / run
    same: dict[str, Any] = {"experiment": "e", "run_name": run, "run_key": f"e/{run}", "folder": place, "params": {}}
    with open_run(MLFLOW, default_uri=uri, patience=120, **same) as opened:
        opened.model(weights, name="desk", key="abc", tags=TAGS, **more)
        run_id = opened.run_id
    return run_id


def test_each_chosen_checkpoint_is_one_version_however_often_and_by_whom_it_is_told(
    tmp_path: Path, database: Path
) -> None:
    from mlflow.tracking import MlflowClient

    uri, weights = f"sqlite:///{database}", weights_in(tmp_path / "stages" / "chosen-step-4")
    first = told(tmp_path, "first", weights, uri)
    assert all_sent(tmp_path / "first", uri=uri, run_key="e/first", parent_run_id=None)
    assert told(tmp_path, "first", weights, uri) == first
    (tmp_path / "first" / "mlflow_run.json").unlink()  # as if it had been killed before it could note what it sent
    assert told(tmp_path, "first", weights, uri) == first
    second = told(tmp_path, "second", weights, uri)  # another run with the same training
    client = MlflowClient(uri)
    (version,) = client.search_model_versions("name = 'desk'")
    assert version.run_id == first and version.source == weights.as_uri()
    assert version.tags == {
        "tbexp.step": "4",
        "tbexp.validation_pass_rate": "0.5",
        "tbexp.key": "abc",
        "tbexp.folder": str(weights),
        "tbexp.weights": "referred to",
    }
    for run in (first, second):
        assert client.get_run(run).data.tags["tbexp.registered_model"] == "desk/1"
    assert not list((tmp_path / "mlflow-artifacts").rglob("*.safetensors"))  # nothing was copied


def test_weights_are_copied_when_that_is_asked_for_later(tmp_path: Path, database: Path) -> None:
    from mlflow.tracking import MlflowClient

    uri, weights = f"sqlite:///{database}", weights_in(tmp_path / "stages" / "chosen-step-4")
    for upload in (False, True, True, False):
        told(tmp_path, "run", weights, uri, upload=upload)
    versions = sorted(MlflowClient(uri).search_model_versions("name = 'desk'"), key=lambda v: int(v.version))
    assert [version.tags["tbexp.weights"] for version in versions] == ["referred to", "uploaded"]
    (copy,) = (tmp_path / "mlflow-artifacts").rglob("*.safetensors")
    assert copy.read_bytes() == b"weights" and copy.parent.as_uri() == versions[1].source


def test_what_an_outage_kept_back_is_registered_at_the_next_start(
    tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    weights, uri = weights_in(tmp_path / "stages" / "chosen-step-4"), f"sqlite:///{database}"
    assert told(tmp_path, "run", weights, "http://127.0.0.1:9") is None  # the discard port: nothing listens
    assert "the run goes on" in caplog.text
    rows = [json.loads(line) for line in (tmp_path / "run" / "models.jsonl").read_text().splitlines()]
    assert [row["key"] for row in rows] == ["abc"]
    place = {"experiment": "e", "run_name": "run", "run_key": "e/run", "folder": tmp_path / "run"}
    with open_run(MLFLOW, default_uri=uri, params={}, patience=120, **place):
        pass
    assert len(MlflowClient(uri).search_model_versions("name = 'desk'")) == 1


def test_a_registry_that_refuses_holds_nothing_up(
    tmp_path: Path, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from mlflow.tracking import MlflowClient

    uri, weights = f"sqlite:///{database}", weights_in(tmp_path / "chosen-step-4")
    place = {"experiment": "e", "run_name": "run", "run_key": "e/run", "folder": tmp_path / "run"}
    with open_run(MLFLOW, default_uri=uri, params={}, patience=120, **place) as run:
        run.model(weights, name="a/b", key="abc", tags={})  # MLflow takes no such name
        run.model(tmp_path / "gone", name="desk", key="abc", tags={})
        run.model(weights, name="desk", key="def", tags={})
    assert "does not register" in caplog.text and "is gone" in caplog.text
    (version,) = MlflowClient(uri).search_model_versions()
    assert (version.name, version.tags["tbexp.key"]) == ("desk", "def")
