"""What an installed package finds: conf/ and sweeps/, laid out as in a checkout and as in a wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tbexp

ROOT = Path(tbexp.__file__).resolve().parent.parent
SWEEP = "# do larger groups pay?\nhydra:\n  sweeper:\n    params:\n      group.size: 4,8\nprobe: {attempts: 5}\n"


@pytest.fixture(params=["checkout", "wheel"])
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the package and conf/, laid out as in a checkout and as in a wheel, with one sweep."""
    root = tmp_path / "installed"
    shutil.copytree(ROOT / "tbexp", root / "tbexp", ignore=shutil.ignore_patterns("__pycache__", "conf"))
    conf = root / "conf" if request.param == "checkout" else root / "tbexp" / "conf"
    shutil.copytree(ROOT / "conf", conf)
    sweeps = root / "sweeps" if request.param == "checkout" else conf / "sweep"
    sweeps.mkdir(exist_ok=True)
    (sweeps / "sizes.yaml").write_text(f"# @package _global_\n{SWEEP}")
    return root


def test_conf_and_sweeps_are_found_in_a_checkout_and_in_an_installed_package(installed: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from tbexp import app\n"
        "def run(config, *, overrides, **_): print(config.probe.attempts, config.group.size, overrides)\n"
        "app.pipeline_run = lambda: run\n"
        "sys.exit(app.main(sys.argv[1:]))"
    )

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-c", script, *words],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(installed)},
        )

    assert "do larger groups pay?" in command("--help").stdout
    done = command("-m", "+sweep=sizes", "seed=2")
    assert done.returncode == 0, done.stderr
    assert "\n5 4 " in f"\n{done.stdout}" and "\n5 8 " in done.stdout
    alone = command("+sweep=sizes")
    assert alone.returncode == 2 and "tbexp -m +sweep=sizes" in alone.stderr
    wrong = command("-m", "+sweep=size")
    assert wrong.returncode == 2 and "did you mean sizes?" in wrong.stderr
