"""The order of the rooms."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tbexp

ROOT = Path(tbexp.__file__).resolve().parent.parent


def test_rooms_import_only_rooms_below_them() -> None:
    script = (
        "import sys; from importlinter.cli import lint_imports_command as lint; sys.argv[0] = 'lint-imports'; lint()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "--no-cache", "--config", str(ROOT / "pyproject.toml")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
