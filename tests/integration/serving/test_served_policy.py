"""`policy.serve=vllm`: probe starts the server of its policy, and ends it; a stand-in takes vLLM's place."""

from __future__ import annotations

import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STAND_IN = Path(__file__).with_name("stand_in_vllm.py")
PATIENCE_S = 60.0


def served(place: Any, *mode: str) -> list[str]:
    """Settings of a policy whose server is started, and answers as the gardener does."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    place.environment["GARDENER"] = place.gardener.url
    return [
        *("policy.serve=vllm", "policy.endpoint.base_url=null", "policy.vllm.model=weights"),
        *(f"policy.vllm.port={port}", f"policy.vllm.command=[{','.join([sys.executable, str(STAND_IN), *mode])}]"),
    ]


def log_of(place: Any) -> str:
    file = place.run_dir / "serve" / "vllm-policy.log"
    return file.read_text() if file.exists() else ""


def until(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def engine_is_gone(place: Any) -> bool:
    for pid in re.findall(r"engine (\d+)", log_of(place)):
        stat = Path(f"/proc/{pid}/stat")
        try:
            if stat.read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
                return False
        except OSError:
            continue
    return "engine" in log_of(place)


@pytest.mark.parametrize("parser", [(), ("policy.vllm.tool_call_parser=qwen3_xml",)])
def test_the_attempts_are_those_of_an_endpoint_and_the_server_is_gone_after_them(
    parser: tuple[str, ...], new_place: Callable[[], Any], unbroken: Any
) -> None:
    place = new_place()
    done = place.run(*served(place, "slow"), *parser)
    assert done.returncode == 0, done.stderr
    assert place.counts() == unbroken[0].counts()
    assert "vLLM is ready after" in done.stderr + done.stdout
    assert log_of(place).count("weights weights") == 1 and "--served-model-name m" not in done.stderr
    assert "GARDEN_KEY" not in log_of(place) and "GARDENER" in log_of(place)
    assert engine_is_gone(place)
    again = place.run(*served(place, "crash"), *parser)  # nothing is left to be asked, so nothing is started
    assert again.returncode == 0 and log_of(place).count("weights weights") == 1


@pytest.mark.parametrize(
    ("mode", "more", "told"),
    [
        ("crash", (), ("vLLM ended with exit code 1", "no such device")),
        ("never", ("policy.vllm.ready_timeout_s=1.0",), ("was not ready within 1 s",)),
        ("in_use", (), ("vLLM ended with exit code 7", "CUDA error", "the same command goes on from here")),
    ],
)
def test_a_server_that_fails_ends_the_run_with_its_last_lines(
    new_place: Callable[[], Any], mode: str, more: tuple[str, ...], told: tuple[str, ...]
) -> None:
    place = new_place()
    done = place.run(*served(place, mode), *more)
    assert done.returncode == 3 and all(text in done.stderr for text in told), done.stderr
    assert place.rows() == [] and engine_is_gone(place)


def test_nothing_of_the_server_stays_when_the_run_is_killed_with_9(new_place: Callable[[], Any]) -> None:
    place = new_place()
    with place.start(*served(place)) as process:
        until(lambda: place.rows())
        process.send_signal(signal.SIGKILL)
    until(lambda: engine_is_gone(place))


def test_jobs_of_slurm_on_one_node_have_a_server_and_a_log_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tbexp.config.compose import opened, plain
    from tbexp.config.folders import conf_folder
    from tbexp.config.schema import Config
    from tbexp.pipeline.context import Context, Untracked
    from tbexp.pipeline.progress import Progress

    words = ["launcher=slurm", "policy=chat", "policy.endpoint.model=m", "policy.serve=vllm", "policy.vllm.model=w"]
    with opened(conf_folder()) as compose, socket.create_server(("127.0.0.1", 0)) as taken:
        values = plain(compose(words))
        values["policy"]["vllm"] |= {"command": [sys.executable, str(STAND_IN)], "port": taken.getsockname()[1]}
        config = Config.model_validate(values)
        policies: list[Any] = []
        try:
            for job in ({"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}, {"SLURM_ARRAY_TASK_ID": "2"}):
                for name, value in (job | {"SLURM_JOB_ID": "8"}).items():
                    monkeypatch.setenv(name, value)
                with Progress() as progress:
                    policies.append(Context(config, tmp_path, progress, Untracked()).base_policy())
        finally:
            for policy in policies:
                policy.stop()
    assert sorted(file.name for file in (tmp_path / "serve").iterdir()) == [
        "vllm-policy-7_1.log",
        "vllm-policy-7_2.log",
    ]


def test_an_address_and_a_server_of_its_own_and_a_port_in_use_are_told(new_place: Callable[[], Any]) -> None:
    place = new_place()
    both = place.run(*served(place), "policy.endpoint.base_url=http://127.0.0.1:1/v1", "dry_run=true")
    assert both.returncode == 2 and "policy.endpoint.base_url" in both.stderr
    plan = place.run(*served(place), "dry_run=true")
    assert plan.returncode == 0 and "started for the attempts" in " ".join(plan.stdout.split())
    settings = served(place)
    port = next(int(word.rpartition("=")[2]) for word in settings if "vllm.port" in word)
    with socket.create_server(("127.0.0.1", port)):
        taken = place.run(*settings)
    assert taken.returncode == 2 and f"policy.vllm.port: port {port} is in use" in taken.stderr
    none = place.run(*settings, "policy.vllm.command=[vllm-of-nowhere]")
    assert none.returncode == 2 and "tbexp[gpu]" in none.stderr and log_of(place) == ""
