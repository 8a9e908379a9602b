"""A garden outside the package, a gardener behind an OpenAI-compatible endpoint, and tbexp as a process."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import tbexp

DATA = Path(__file__).parent / "data"
SKILLS = {"beans": 1.0, "peas": 0.8, "kale": 0.5, "leeks": 0.6, "mint": 0.3, "figs": 0.0, "Water": 0.7, "melons": 0.4}

Answer = tuple[int, Any] | None  # status and body instead of the gardener's own answer


class Gardener(ThreadingHTTPServer):
    """A chat model on loopback. It is better at some tasks than at others; whether it does well in an attempt depends
    on the request's seed alone. The model `big` does well wherever it can. asked: for each request its model and topic.

    key: what it wants in the Authorization header. before: called with the number of a request (from 1); a status and a
    body that it returns are the answer.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: str = "127.0.0.1", port: int = 0, key: str = "") -> None:
        super().__init__((address, port), Handler)
        self.key = key
        self.before: Callable[[int], Answer] = lambda number: None
        self.count = 0
        self.asked: list[tuple[str, str]] = []
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_port}/v1"

    def quiet(self) -> None:
        """As new."""
        self.key, self.count, self.asked, self.before = "", 0, [], lambda number: None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no error here."""

    def answer(self, authorization: str, body: dict[str, Any]) -> tuple[int, Any]:
        with self.lock:
            self.count += 1
            number = self.count
        if (instead := self.before(number)) is not None:
            return instead
        if self.key and authorization != f"Bearer {self.key}":
            return 401, {"error": {"message": f"{authorization} is not known here"}}
        topic = topic_of(body["messages"])
        self.asked.append((body["model"], topic))
        skill = float(SKILLS[topic] > 0) if body["model"] == "big" else SKILLS[topic]
        message = reply(body["messages"], body["seed"], topic, skill)
        finish = "tool_calls" if "tool_calls" in message else "stop"
        return 200, {
            "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
        }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gardener

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = self.server.answer(self.headers.get("Authorization", ""), body)
        if status == 0:  # hang up
            self.close_connection = True
            return
        data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *values: Any) -> None:
        """Nothing: the tests look at what tbexp says."""


def topic_of(messages: list[dict[str, Any]]) -> str:
    first = next(m["content"] for m in messages if m["role"] == "user")
    return next(word for word in SKILLS if word in first)


def reply(messages: list[dict[str, Any]], seed: int, topic: str, skill: float) -> dict[str, Any]:
    """The gardener's next message."""
    said = [m["content"] for m in messages if m["role"] == "user"]
    if messages[-1]["role"] == "tool":
        return {"content": "That is done. <DONE>"}
    draw = int.from_bytes(hashlib.sha256(f"{topic} {seed}".encode()).digest()[:4], "big") / 2**32
    well = draw < skill
    bed = re.findall(r"B\d", said[0])[0]
    if topic == "melons" and well:
        return call("look_at_bed", bed=bed)
    numbers = re.findall(r"(?<![B\d])\d+", " ".join(said))
    if not numbers:
        return {"content": "How many rows shall it be?"}
    count = int(numbers[0]) + (0 if well or topic == "melons" else 1)
    if topic == "Water":
        return call("water", bed=bed, litres=count)
    return call("sow", bed=bed, plant=topic, rows=count)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


@dataclasses.dataclass
class Place:
    """A working folder with the garden in it, and the command that is given there."""

    folder: Path
    gardener: Gardener
    environment: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def garden(self) -> Path:
        return self.folder / "garden"

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def words(self, *more: str) -> list[str]:
        """The command's words; a key in `more` replaces the one here."""
        common = {
            "stages": "[probe,select,report]",
            "tasks": "folder",
            "tasks.root": str(self.garden),
            "tasks.candidates": "releases/candidates.yaml",
            "policy": "chat",
            "policy.endpoint.base_url": self.gardener.url,
            "policy.endpoint.model": "m",
            "policy.endpoint.api_key_env": "GARDEN_KEY",
            "probe.attempts": "6",
            "tracking": "none",
            "hydra.run.dir": "run",
            "store": "stages",
        }
        given = dict(word.split("=", 1) for word in more)
        return [f"{key}={value}" for key, value in (common | given).items()]

    def start(self, *more: str, program: tuple[str, ...] = ("-m", "tbexp")) -> subprocess.Popen[str]:
        base = {"PATH": os.environ["PATH"], "HOME": str(self.folder.parent), "OMP_NUM_THREADS": "1"}
        base["PYTHONPATH"] = str(Path(tbexp.__file__).parent.parent)
        return subprocess.Popen(
            [sys.executable, *program, *self.words(*more)],
            cwd=self.folder,
            env=base | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *more: str, program: tuple[str, ...] = ("-m", "tbexp")) -> subprocess.CompletedProcess[str]:
        with self.start(*more, program=program) as process:
            try:
                out, err = process.communicate(timeout=240)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def rows(self) -> list[dict[str, Any]]:
        """What the probe's store holds, in the order of its lines."""
        found = [line for file in self.folder.glob("stages/probe/*/attempts.jsonl") for line in file.open()]
        return [json.loads(line) for line in found if line.endswith("\n")]

    def counts(self) -> Mapping[str, tuple[int, int]]:
        """Clean attempts and passed ones by task."""
        rows = [row for row in self.rows() if row["system_error"] is None]
        names = sorted({row["uid"] for row in rows})
        return {
            uid: (sum(r["uid"] == uid for r in rows), sum(r["uid"] == uid and r["passed"] for r in rows))
            for uid in names
        }

    def selected(self) -> dict[str, bytes]:
        """Every file of the selection but its manifest, with its bytes."""
        files = (self.run_dir / "select").iterdir()
        return {file.name: file.read_bytes() for file in files if file.name != "manifest.json"}


@pytest.fixture(scope="session")
def gardener() -> Iterator[Gardener]:
    server = Gardener()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def new_place(gardener: Gardener, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Place]:
    """Makes places, each with a garden of its own and a gardener that has forgotten everything."""

    def make() -> Place:
        folder = tmp_path_factory.mktemp("place")
        shutil.copytree(DATA / "garden", folder / "garden", ignore=shutil.ignore_patterns("__pycache__"))
        gardener.quiet()
        return Place(folder, gardener, {"GARDEN_KEY": "quite-open-sesame"})

    return make


@pytest.fixture(scope="session")
def unbroken(new_place: Callable[[], Place]) -> tuple[Place, subprocess.CompletedProcess[str], int]:
    """The whole run, tracked: its place, its ending, and how many requests it took."""
    place = new_place()
    place.gardener.key = place.environment["GARDEN_KEY"]
    done = place.run("tracking=mlflow")
    return place, done, place.gardener.count


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow server with a database and artifacts of its own."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}", "--artifacts-destination", str(folder / "files")),
    ]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    uri = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 180
        while not answers(f"{uri}/health"):
            assert process.poll() is None and time.monotonic() < until, (folder / "log").read_text()[-2000:]
            time.sleep(0.3)
        yield uri
    finally:
        os.killpg(process.pid, 15)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=2):
            return True
    except OSError:
        return False
