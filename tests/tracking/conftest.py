from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tbexp.tracking.mlflow_link import _make


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    database = tmp_path_factory.mktemp("tracking") / "mlflow.db"
    _make(database)
    return database


@pytest.fixture
def database(tmp_path: Path, made_once: Path) -> Path:
    """One without a run, copied from one made as on first use: MLflow's migrations take over a second."""
    return Path(shutil.copy(made_once, tmp_path / "mlflow.db"))
