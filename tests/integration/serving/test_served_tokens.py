"""`policy.serve=vllm` with local weights: by token ids, so a server with our engine makes our attempts to the token."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.train
SERVER = Path(__file__).with_name("vllm_by_our_engine.py")
PROBE = [
    *("experiment=smoke", "stages=[probe]", "probe.attempts=2", "model.tiny.steps=20", "tracking=none"),
    "tasks.candidates=[extend.py:test_extend_1,ticket.py:test_ticket_1,swap.py:test_swap_best_1]",
]


def probe(folder: Path, run: str, *more: str) -> dict[tuple[str, int], Any]:
    """What the policy did in each attempt, to the token."""
    command = [sys.executable, "-m", "tbexp", *PROBE, f"hydra.run.dir={run}", *more]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    found = {}
    for line in (folder / run / "probe" / "trajectories.jsonl").read_text().splitlines():
        row = json.loads(line)
        found[row["uid"], row["attempt"]] = row["messages"]
    return found


def test_attempts_by_token_ids_of_a_server_are_those_of_the_engine(tmp_path: Path) -> None:
    for module in ("torch", "transformers"):
        pytest.importorskip(module)
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
    by_engine = probe(tmp_path, "engine")
    served = ("policy.serve=vllm", f"policy.vllm.command=[{sys.executable},{SERVER}]", f"policy.vllm.port={port}")
    by_server = probe(tmp_path, "server", *served)
    assert len(by_engine) == 6 and by_server == by_engine
    log = (tmp_path / "server" / "serve" / "vllm-policy.log").read_text()
    assert log.count("prompt of") >= 6
    with socket.create_server(("127.0.0.1", port)):  # the server is gone
        pass
