"""What the tests of trainings share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for toy.py


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the toy's weights in it, for all trainings of a file."""
    pytest.importorskip("verl")
    from toy import build_model

    folder = tmp_path_factory.mktemp("training")
    build_model(folder / "model")
    return folder
