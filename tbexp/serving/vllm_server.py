"""`vllm serve` for a policy's weights, as `policy.vllm` says: its command, its start, and its end.

Decided here: when it is ready (its /health answers 200), what is told when it is not, and that nothing of it outlives
this process (guard.py). A dry run shows the command. Left to others: who needs it, and when.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx

from tbexp.config.here import no_program, program
from tbexp.config.schema import VllmServer
from tbexp.errors import Problem, UserError, WorldFailure
from tbexp.serving.ports import is_free

GUARD = Path(__file__).with_name("guard.py")
HOST = "127.0.0.1"
SHOWN = 15  # last lines of the server's output that are told
POLL_S = 0.2


AUTO_TOOL_CHOICE = "enable-auto-tool-choice"


def serve_command(settings: VllmServer, *, served_name: str | None, host: str | None = None) -> list[str]:
    """`vllm serve MODEL ...`. served_name: the name that the endpoint is asked for (policy.endpoint.model)."""
    words = [*settings.command, "serve", settings.model or "MODEL"]
    if served_name is not None:
        words += ["--served-model-name", served_name]
    if host is not None:
        words += ["--host", host]
    for name in (
        "tensor_parallel_size",
        "dtype",
        "max_model_len",
        "gpu_memory_utilization",
        "max_num_seqs",
        "max_num_batched_tokens",
        "tool_call_parser",
        "reasoning_parser",
        "port",
    ):
        value = getattr(settings, name)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    # vLLM refuses this flag without a parser, and without this flag leaves the parser unused.
    flags = [flag for flag in settings.flags if flag != AUTO_TOOL_CHOICE]
    flags += [AUTO_TOOL_CHOICE] if settings.tool_call_parser is not None else []
    return words + [f"--{flag}" for flag in flags]


class RunningServer:
    """One `vllm serve` of ours; see `start`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, name: str, log_file: Path, begin: int):
        self.name, self.log_file = name, log_file
        self.url = f"http://{HOST}:{port}"
        self._process, self._begin = process, begin

    def ended(self) -> str | None:
        """What happened, if it runs no more, with the last lines that it wrote; None while it runs."""
        code = self._process.poll()
        return None if code is None else self._told(f"vLLM ended with exit code {code}")

    def wait_until_ready(self, seconds: float) -> None:
        """Raises WorldFailure when it ends, or is not ready after so many seconds."""
        deadline = time.monotonic() + seconds
        with httpx.Client(trust_env=False, timeout=5.0) as client:
            while True:
                if (end := self.ended()) is not None:
                    raise WorldFailure(end)
                try:
                    if client.get(f"{self.url}/health").status_code == 200:
                        return
                except httpx.HTTPError:
                    pass  # not yet
                if time.monotonic() > deadline:
                    late = f"vLLM was not ready within {seconds:g} s (policy.vllm.ready_timeout_s)"
                    raise WorldFailure(self._told(late))
                time.sleep(POLL_S)

    def stop(self) -> None:
        """Ends it with everything it started. It may have ended."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()

    def _told(self, what: str) -> str:
        with self.log_file.open("rb") as file:
            file.seek(self._begin)
            lines = file.read().decode("utf-8", "replace").splitlines()
        last = [f"  | {line[:300]}" for line in lines[-SHOWN:]]
        return "\n".join([f"{what}; its output is in {self.log_file}", *(last or ["  | (it wrote nothing)"])])


def start(
    settings: VllmServer,
    *,
    weights: str,
    served_name: str,
    log_file: Path,
    say: Callable[[str], None] = lambda text: None,
    hidden: Iterable[str] = (),
    where: str = "policy.vllm",
) -> RunningServer:
    """The server, ready. hidden: environment variables that it does not get, such as those that hold keys.

    Raises UserError (no such program, port in use) and WorldFailure (it ended, or was not ready in time).
    """
    problems = [*no_program(settings, where)]
    if not is_free(HOST, settings.port):
        problems.append(Problem(f"port {settings.port} is in use", f"{where}.port", f"{where}.port=<one that is free>"))
    if problems:
        raise UserError(problems)
    words = serve_command(settings.model_copy(update={"model": weights}), served_name=served_name, host=HOST)
    words[0] = str(program(settings.command))
    log_file.parent.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name not in set(hidden)}
    with log_file.open("ab") as file:
        begin = file.tell()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), str(os.getpid()), *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us, and we end it
        )
    server = RunningServer(process, settings.port, served_name, log_file, begin)
    try:
        say(f"vLLM starts with {weights}; its output: {log_file}")
        begun = time.monotonic()
        server.wait_until_ready(settings.ready_timeout_s)
        say(f"vLLM is ready after {time.monotonic() - begun:.0f} s at {server.url}/v1 as {served_name}")
    except BaseException:
        server.stop()
        raise
    return server
