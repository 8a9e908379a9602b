"""`stages=[serve]` as a process, with a server that runs already and with one that it starts."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tbexp

STAND_IN = Path(__file__).with_name("stand_in_vllm.py")
PATIENCE_S = 60.0
KEY = "quite-open-sesame"


class Served:
    """The command with a run folder, its output as it comes."""

    def __init__(self, folder: Path, *words: str):
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "OMP_NUM_THREADS": "1", "GARDEN_KEY": KEY}
        environment["PYTHONPATH"] = str(Path(tbexp.__file__).parent.parent)
        self.folder, self.out, self.err = folder, folder / "out", folder / "err"
        with self.out.open("ab") as out, self.err.open("ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tbexp", "stages=[serve]", "serve.port=0", "hydra.run.dir=run", *words],
                cwd=folder,
                env=environment,
                stdout=out,
                stderr=err,
            )

    @property
    def said(self) -> str:
        return self.out.read_text() + self.err.read_text()

    @property
    def log(self) -> str:
        file = self.folder / "run" / "serve" / "vllm.log"
        return file.read_text() if file.exists() else ""

    def url(self) -> str:
        """Where it serves, once it does."""
        found = until(lambda: re.search(r"at (http://127\.0\.0\.1:\d+)/v1; ready when", self.said) or self.over())
        assert isinstance(found, re.Match), self.said
        return found[1]

    def over(self) -> bool:
        return self.process.poll() is not None

    def engine(self) -> int:
        """The process id of the stand-in's engine, which has left its process group."""
        return int(until(lambda: re.search(r"engine (\d+)", self.log))[1])

    def end(self, signum: int = signal.SIGTERM) -> int:
        self.process.send_signal(signum)
        return self.process.wait(PATIENCE_S)


def until(look: Callable[[], Any]) -> Any:
    """What `look` gives, once it gives something."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    started = []

    def begin(*words: str) -> Served:
        started.append(Served(tmp_path, *words))
        return started[-1]

    yield begin
    for each in started:
        if not each.over():
            each.end(signal.SIGKILL)


def vllm(*mode: str) -> list[str]:
    """Settings that start the stand-in."""
    command = ",".join([sys.executable, str(STAND_IN), *mode])
    return [f"policy.vllm.command=[{command}]", "policy.vllm.model=weights", f"policy.vllm.port={free_port()}"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_runs_is_served_until_a_signal_ends_it(
    start: Callable[..., Served], gardener: Any, signum: int
) -> None:
    gardener.quiet()
    gardener.key = KEY
    served = start(f"serve.upstream={gardener.url}", "serve.api_key_env=GARDEN_KEY")
    asked = {"model": "m", "seed": 1, "messages": [{"role": "user", "content": "3 rows of beans in B1"}]}
    answer = httpx.post(f"{served.url()}/v1/chat/completions", json=asked, timeout=PATIENCE_S)
    assert answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "sow"
    assert served.end(signum) == 0 and "serving has ended" in served.said
    assert KEY not in served.said and "Traceback" not in served.said
    assert not (served.folder / "run").exists()


def test_a_port_in_use_is_one_message_and_exit_code_2(start: Callable[..., Served], gardener: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        served = start(f"serve.upstream={gardener.url}", f"serve.port={port}")
        assert served.process.wait(PATIENCE_S) == 2
    assert f"serve.port: port {port} of 127.0.0.1 is in use" in served.said and served.said.count("tbexp:") == 1


def test_without_a_server_vllm_is_started_and_nothing_of_it_stays(start: Callable[..., Served]) -> None:
    served = start(*vllm("slow"), "serve.model=mine", "policy.vllm.tool_call_parser=hermes")
    url = served.url()
    assert httpx.get(f"{url}/readyz").status_code == 200
    assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "mine"
    assert "weights weights; further options:" in served.log and "--tool-call-parser hermes" in served.log
    engine = served.engine()
    assert alive(engine)
    assert served.end() == 0
    until(lambda: not alive(engine))


def test_nothing_stays_when_the_command_is_killed_with_9(start: Callable[..., Served]) -> None:
    served = start(*vllm())
    served.url()
    engine = served.engine()
    served.end(signal.SIGKILL)
    until(lambda: not alive(engine))


@pytest.mark.parametrize(
    ("mode", "more", "told"),
    [
        ("crash", (), ("vLLM ended with exit code 1", "RuntimeError: no such device")),
        ("never", ("policy.vllm.ready_timeout_s=1.0",), ("was not ready within 1 s", "further options")),
    ],
)
def test_a_server_that_does_not_start_is_told_with_its_last_lines(
    start: Callable[..., Served], mode: str, more: tuple[str, ...], told: tuple[str, ...]
) -> None:
    served = start(*vllm(mode), *more)
    assert served.process.wait(PATIENCE_S) == 3
    assert all(text in served.said for text in told) and "run/serve/vllm.log" in served.said
    engine = served.engine()
    until(lambda: not alive(engine))


def test_a_server_that_ends_while_it_is_used_ends_the_serving(start: Callable[..., Served]) -> None:
    served = start(*vllm("in_use"))
    answer = httpx.post(f"{served.url()}/v1/chat/completions", json={"messages": []}, timeout=PATIENCE_S)
    assert answer.status_code == 502
    assert served.process.wait(PATIENCE_S) == 3
    assert "vLLM ended with exit code 7" in served.said and "CUDA error" in served.said


def test_without_vllm_all_that_is_missing_is_told_before_anything_starts(start: Callable[..., Served]) -> None:
    served = start("policy.vllm.command=[vllm-of-nowhere]", "policy.vllm.model=weights")
    assert served.process.wait(PATIENCE_S) == 2
    assert "there is no program vllm-of-nowhere" in served.said and "tbexp[gpu]" in served.said
    none = start("policy.vllm.command=[python]")
    assert none.process.wait(PATIENCE_S) == 2 and "there is no run in" in none.said


def test_a_dry_run_shows_what_would_be_started(start: Callable[..., Served]) -> None:
    served = start(*vllm(), "dry_run=true")
    assert served.process.wait(PATIENCE_S) == 0
    assert "would serve" in served.said and "stand_in_vllm.py serve weights" in " ".join(served.said.split())
    assert json.dumps(sorted(path.name for path in served.folder.iterdir())) == '["err", "out"]'
