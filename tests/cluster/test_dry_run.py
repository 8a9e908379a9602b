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


@pytest.mark.parametrize("below", ["", "a" * 90])
def test_the_text_for_sbatch_is_as_written_down_wherever_one_is(
    below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / below
    here.mkdir(exist_ok=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PATH", "/nowhere")  # neither Slurm nor anything else is asked
    assert main(OVERRIDES) == 0
    text = printed(capsys, here)
    if os.environ.get("TBEXP_GOLDEN") and not below:
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    assert not list(here.iterdir())


ENDPOINT = ("policy=chat", "policy.endpoint.base_url=http://h/v1", "policy.endpoint.model=m", "topology=h100x3")


@pytest.mark.parametrize(
    ("words", "jobs"),
    [
        (ENDPOINT, {"probe": "3 x 1 node, 8 CPUs, 32 GB each", "select": "1 node, 1 CPU, 8 GB, after probe"}),
        ((*ENDPOINT, "launcher.cpus_without_gpu=null", "launcher.memory_gb_without_gpu=null"), {"probe": "3 x 1 node"}),
        ((*ENDPOINT, "launcher.shards=1", "launcher.gpus_per_node=8"), {"probe": "1 node, 8 CPUs, 32 GB"}),
        (
            ("policy=chat", "policy.endpoint.model=m", "policy.serve=vllm", "policy.vllm.model=/models/m"),
            {"probe": "1 node, 1 GPU, 8 CPUs, 96 GB"},
        ),
        (("topology=h100x3",), {"probe": "3 x 1 node, 8 GPUs, 64 CPUs, 768 GB each"}),
        (("topology=gpu1", "launcher.cpus_per_node=20"), {"probe": "1 node, 1 GPU, 20 CPUs, 96 GB"}),
        (("topology=gpu1", "launcher.gpus_per_node=0"), {"probe": "1 node"}),  # the site does not count them
        ((), {"probe": "1 node, 8 CPUs, 32 GB"}),
    ],
)
def test_a_job_asks_for_what_it_can_use(
    words: tuple[str, ...],
    jobs: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    sites = ("launcher.partition=gpu", "launcher.cpu_partition=cpu")
    assert main(["dry_run=true", "launcher=slurm", "stages=[probe,select]", *sites, *words]) == 0
    out = capsys.readouterr().out
    for name, asked in jobs.items():
        assert re.search(rf"^{name} +{re.escape(asked)}$", out, re.MULTILINE), out
    (probe,) = re.findall(r"# ---- probe\n.*?# ---- select", out, re.DOTALL)
    assert ("--gpus-per-node" in probe) == (" GPU" in jobs["probe"])
    assert f"--partition={'gpu' if ' GPU' in jobs['probe'] or 'topology=gpu1' in words else 'cpu'}" in probe
    assert probe.count("--cpus-per-task=") == 2 * (" CPU" in jobs["probe"])  # srun does not take it from sbatch


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
    monkeypatch.setattr("tbexp.policy.endpoint.is_loopback", lambda host: False)  # as if it were another machine's
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
