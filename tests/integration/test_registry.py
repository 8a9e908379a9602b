"""Chosen weights in the registry of an MLflow server, which takes no path of its clients as a source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tbexp.config.schema import Tracking
from tbexp.tracking import open_run


@pytest.mark.parametrize("upload", [False, True])
def test_a_server_gets_a_note_of_where_the_weights_are_or_the_weights(
    server: str, tmp_path: Path, upload: bool
) -> None:
    import mlflow.artifacts
    from mlflow.tracking import MlflowClient

    weights, name = tmp_path / "chosen-step-4", f"desk {upload}"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"weights")
    for _ in range(2):
        with open_run(
            Tracking(name="mlflow", kind="mlflow", uri=server),
            default_uri="",
            experiment="registry",
            run_name=name,
            run_key=f"registry/{upload}",
            folder=tmp_path / "run",
            params={},
            patience=120,
        ) as run:
            run.model(weights, name=name, key="abc", tags={"tbexp.step": 4}, upload=upload)
            run_id = run.run_id
    client = MlflowClient(server)
    (version,) = client.search_model_versions(f"name = '{name}'")
    assert version.run_id == run_id and version.tags["tbexp.step"] == "4" and version.tags["tbexp.key"] == "abc"
    assert version.tags["tbexp.weights"] == ("uploaded" if upload else "referred to")
    source = client.get_model_version_download_uri(name, version.version)
    got = Path(mlflow.artifacts.download_artifacts(source, dst_path=str(tmp_path / "got"), tracking_uri=server))
    (file,) = (path for path in got.rglob("*") if path.is_file())
    if upload:
        assert file.name == "model.safetensors" and file.read_bytes() == b"weights"
    else:
        note = json.loads(file.read_text())
        assert note["folder"] == str(weights) and note["bytes"] == {"model.safetensors": 7}
