"""What `dry_run=true launcher=slurm` prints: the jobs, their nodes, and the text that sbatch would be given.

`TBEXP_GOLDEN=1 pytest tests/cluster/test_dry_run.py` writes the golden file anew.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

import pytest

import tbexp
from tbexp.app import main

pytestmark = pytest.mark.usefixtures("composed_once")

GOLDEN = Path(__file__).parent / "golden" / "dry_run.txt"
ROOT = str(Path(tbexp.__file__).resolve().parent.parent)
OVERRIDES = [
    *("dry_run=true", "experiment=smoke", "launcher=slurm", "topology=h100x3", "group.size=3"),
    *("launcher.partition=h100", "launcher.cpu_partition=cpu", "launcher.account=lab", "launcher.qos=long"),
    *("launcher.minutes=600", "launcher.signal_seconds=900", "launcher.exclude=h7", "launcher.memory_gb=1800"),
    *("launcher.container=/images/tbexp.sqsh", "launcher.container_mounts=[/data]", "launcher.python=python3"),
    *("launcher.setup=[module load cuda]", "+launcher.sbatch={comment: tbexp}"),
]


def printed(capsys: pytest.CaptureFixture[str], folder: Path) -> str:
    out = capsys.readouterr().out
    out = out.replace(sys.executable, "<python>").replace(ROOT, "<code>").replace(str(folder), "<here>")
    out = re.sub(r"\b[0-9a-f]{16}\b", "<key>", re.sub(r"seed1-[0-9a-f]{8}", "<run>", out))
    return "".join(f"{line.rstrip()}\n" for line in out.splitlines() if not line.startswith("verl "))  # may be missing


def test_the_text_for_sbatch_is_as_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")  # neither Slurm nor anything else is asked
    assert main(OVERRIDES) == 0
    text = printed(capsys, tmp_path)
    if os.environ.get("TBEXP_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    assert not list(tmp_path.iterdir())


def test_rows_made_elsewhere_need_no_probe_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"uid": "test_extend_1", "test_result": {"result": true}, "is_system_error": false}\n')
    words = ["dry_run=true", "experiment=smoke", "launcher=slurm", "stages=[probe,select]"]
    assert main(words) == 0
    assert "2 Slurm jobs" in capsys.readouterr().out
    assert main([*words, f"probe.rows=[{rows}]"]) == 0
    assert "1 Slurm jobs" in capsys.readouterr().out


def test_nothing_is_submitted_from_inside_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert main(["experiment=smoke", "launcher=slurm"]) == 2
    assert "inside the Slurm job 77" in capsys.readouterr().err


def test_endpoints_and_a_tracker_that_nobody_listens_at_are_told_together_before_anything_is_queued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (program := tmp_path / "sbatch").write_text("#!/bin/sh\ntouch submitted\n")  # what a submission looks for
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as open_port, socket.create_server(("127.0.0.1", 0)) as closing:
        heard, closed = (f"http://127.0.0.1:{place.getsockname()[1]}" for place in (open_port, closing))
        closing.close()
        words = [
            *("experiment=smoke", "launcher=slurm", "stages=[probe,select]", "policy=chat", "policy.endpoint.model=m"),
            *(f"policy.endpoint.base_url={closed}/v1", "user=chat", f"user.endpoint.base_url={heard}/v1"),
            *("user.endpoint.model=u", f"tracking.uri={closed}"),
        ]
        assert main(words) == 2
    told = capsys.readouterr().err
    assert "policy.endpoint.base_url: nothing can be reached at " + closed in told and "tracking.uri" in told
    assert "user.endpoint" not in told and "launcher.check_endpoints=false" in told
    assert not (tmp_path / "submitted").exists()
