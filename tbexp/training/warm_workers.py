"""Ray workers that are forked from a process that has imported the libraries already.

verl's trainer needs eight Ray processes, and each would spend 6 seconds of a core on importing torch, transformers
and the like, 5.3 of them on what is neither verl nor Ray. The keeper (`keeper`) imports that once; Ray starts its
workers through a shim that asks the keeper for a fork, runs Ray's own worker program in it, and stays as the fork's
stand-in until it ends. Every other Python process of Ray is started as usual. Decided here: what a fork takes over from
the process Ray asked for (arguments, environment, folder, standard streams). A request that the keeper cannot serve
falls back to a plain start. Ray itself must not be imported before the fork: it reads its settings, such as its
raylet's id, from the environment when it is.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import runpy
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

# What verl 0.9.1 imports, measured with -X importtime, without what imports Ray.
LIBRARIES = (
    "torch",
    "tensordict",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint.state_dict",
    "transformers",
    "transformers.modeling_utils",
    "transformers.processing_utils",
    "transformers.models.auto",
    "transformers.generation.utils",
    "datasets",
    "peft",
    "torchdata.stateful_dataloader",
    "hydra",
    "pandas",
    "aiohttp",
    "zmq",
    "pydantic",
    "requests",
)

READY = "ray.json"  # in the keeper's temporary folder: its Ray's address and processes, or why there is none
END = b"k"  # what a keeper is told to end a driver by; an order begins with a zero

SHIM = """
import json, os, socket, sys
program = next((i for i, a in enumerate(sys.argv) if a.endswith("default_worker.py")), None)
if program is None:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
try:
    ask = socket.socket(socket.AF_UNIX)
    ask.connect({address!r})
    order = {{"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}}
    data = json.dumps(order).encode()
    socket.send_fds(ask, [len(data).to_bytes(8, "big")], [0, 1, 2])
    ask.sendall(data)
    answer = ask.recv(1)
except OSError:
    answer = b""
if answer != b"y":
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
ask.recv(1)  # until the fork ends and its end of the connection closes
"""


def import_libraries() -> None:
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def write_shim(folder: Path, address: Path) -> str:
    """The program that Ray is to start its workers with, written into the folder. address: the keeper's socket."""
    shim, program = folder / "python", folder / "shim.py"
    program.write_text(SHIM.format(python=sys.executable, address=str(address)))
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{program}" "$@"\n')
    shim.chmod(0o700)
    return str(shim)


def read_ready(temp: Path) -> dict[str, Any]:
    """What is known of a keeper's Ray; empty until it is there."""
    try:
        told: dict[str, Any] = json.loads((temp / READY).read_text())
    except FileNotFoundError:
        return {}
    return told


def send_order(to: socket.socket, order: dict[str, Any], streams: list[int]) -> None:
    data = json.dumps(order).encode()
    socket.send_fds(to, [len(data).to_bytes(8, "big")], streams)
    to.sendall(data)


def take_order(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What to run, and the standard streams to run it with. Raises EOFError when there is nobody any more."""
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    if not head:
        raise EOFError
    size = int.from_bytes(head, "big")
    data = b""
    while len(data) < size:
        if not (part := connection.recv(size - len(data))):
            raise ValueError("the order ends early")
        data += part
    return json.loads(data), streams


def become(run: Callable[[], int | None], streams: list[int], environment: dict[str, str], folder: str) -> NoReturn:
    """In the fork: takes over what a process of its own would have been started with, runs, and ends."""
    status = 1
    try:
        os.setpgrp()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        random.seed()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()
        status = run() or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def become_worker(order: dict[str, Any], streams: list[int], connection: socket.socket) -> NoReturn:
    """In the fork: become the process that Ray asked for, and run its program to the end."""

    def run() -> None:
        sys.argv = arguments
        connection.send(b"y")
        runpy.run_path(arguments[0], run_name="__main__")

    environment, arguments = worker_call(order)
    become(run, streams, environment, order["cwd"])


def worker_call(order: dict[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Environment and arguments of Ray's worker program: what its setup program would have passed on."""
    argv: list[str] = order["argv"]
    environment: dict[str, str] = dict(order["env"])
    start = next(i for i, a in enumerate(argv) if a.endswith("default_worker.py"))
    for argument in argv:
        if argument.startswith("--serialized-runtime-env-context="):
            context = json.loads(argument.partition("=")[2] or "{}")
            environment |= context.get("env_vars") or {}
    ours = ("--serialized-runtime-env-context=", "--language=")
    return environment, [a for a in argv[start:] if not a.startswith(ours)]
