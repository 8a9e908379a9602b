"""What a config names and this machine lacks: files, folders, keys, packages. Looks only, writes nothing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tbexp.config.checks import named_keys, started_here
from tbexp.config.schema import Config, Topology, VllmServer
from tbexp.config.secrets import key_in, no_key, read_secrets
from tbexp.errors import Problem, UserError

LOOKING = {"status", "cancel"}  # at jobs, by their record in the run's folder, which needs nothing else
FLASH_ATTENTION = "flash_attn"
FLASH_ATTENTION_FIX = (
    "pip install flash-attn --no-build-isolation, or topology.attention=sdpa topology.sequence_parallel=1"
)


def no_file(named: str) -> str:
    return f"{named} is a folder" if Path(named).is_dir() else f"there is no file {named}"


def check_here(config: Config, run_dir: Path) -> list[Problem]:
    """Everything that is missing."""
    if set(config.stages) <= LOOKING:
        return []
    return [*files(config), *environment(config), *packages(config), *machines(config), *writable(config, run_dir)]


def files(config: Config) -> Iterator[Problem]:
    root = config.tasks.root
    if root and not Path(root).exists():
        test_lists = [named for named in (config.tasks.candidates, config.tasks.held_out) if isinstance(named, str)]
        what = f", and so no task list {' or '.join(test_lists)} in it" if test_lists else ""
        yield Problem(f"there is no folder {root}{what}", "tasks.root", "a folder in ThinkingBox format")
    python = config.tasks.server_python
    if python is not None and config.launcher.kind == "local" and shutil.which(python) is None:
        yield Problem(f"{python} is no program", "tasks.server_python", "the python of the servers' environment")
    if root and Path(root).exists():
        for key in ("candidates", "held_out"):
            named = getattr(config.tasks, key)
            if isinstance(named, str) and not any((base / named).exists() for base in (Path(), Path(root))):
                yield Problem(f"there is no test list {named}, here or in {root}", f"tasks.{key}", "a YAML list")
    makes = {"probe", "train", "evaluate", "serve"} & set(config.stages)  # others need no weights
    if makes and config.policy.kind == "local" and config.model.kind != "tiny" and config.model.path is not None:
        folder = Path(config.model.path)
        if not (folder / "config.json").is_file():
            what = "has no config.json" if folder.is_dir() else "does not exist"
            yield Problem(f"{folder} {what}", "model.path", "a Hugging Face folder")
    lists = {
        "probe.rows": config.probe.rows,
        "evaluation.rows": config.evaluation.rows,
        "selection.reference.rows": config.selection.reference.rows,
    }
    if isinstance(config.selection.exclude, str):
        lists["selection.exclude"] = [config.selection.exclude]
    if "parity" in config.stages:
        lists["parity.recordings"] = config.parity.recordings
        lists["parity.tools"] = [config.parity.tools] if config.parity.tools else []
        yield from parity_folders(config)
    if config.sandbox.servers is not None:
        lists["sandbox.servers"] = [config.sandbox.servers]
    for key, named_files in lists.items():
        for named in named_files:
            if not Path(named).is_file():
                yield Problem(no_file(named), key, "name a file that exists")
    secrets = config.launcher.secrets_file if set(config.stages) - {"doctor", "compare"} else None
    if secrets is not None and not Path(secrets).is_file():
        yield Problem(no_file(secrets), "launcher.secrets_file", "a file of NAME=value lines, mode 0600")
    elif secrets is not None:
        try:
            read_secrets(Path(secrets))
        except UserError as error:
            yield from error.problems


def machines(config: Config) -> Iterator[Problem]:
    """More than this one."""
    trains = "train" in config.stages and config.policy.kind == "local"
    if trains and config.topology.nodes > 1 and config.launcher.kind == "local":
        what = f"{config.topology.nodes} nodes, and launcher=local trains on this machine alone"
        yield Problem(what, "topology.nodes", "launcher=slurm, or topology.nodes=1")


def inputs_absent(config: Config) -> bool:
    """Whether files that stages read before they make anything (tasks, rows) are not on this machine. A test list that
    is missing where its dataset is there is a mistake, and not absent.
    """
    others = {"model.path", "launcher.secrets_file", "tasks.candidates", "tasks.held_out"}
    return config.tasks.root == "" or any(problem.where not in others for problem in files(config))


def parity_folders(config: Config) -> Iterator[Problem]:
    wanted = config.parity
    if wanted.python is not None and not os.access(wanted.python, os.X_OK):
        yield Problem(f"{wanted.python} is no program", "parity.python", "the python of an environment")
    if wanted.tokenizer is not None and not (Path(wanted.tokenizer) / "tokenizer.json").is_file():
        yield Problem(f"{wanted.tokenizer} has no tokenizer.json", "parity.tokenizer", "a Hugging Face folder")


def environment(config: Config) -> Iterator[Problem]:
    """Named keys that are not where the endpoint's caller will look: in the secrets file, or in the environment."""
    if not {"probe", "train", "evaluate", "serve", "regrade", "parity"} & set(config.stages):
        return
    held = secrets_held(config.launcher.secrets_file)
    for key, variable in named_keys(config):
        if config.stages == ["regrade"] and not key.startswith("judge."):
            continue  # of a run's endpoints it asks the judge alone
        if held is None:
            continue
        if variable in held:  # it counts, also where the environment has another one
            if wrong := no_key(variable, held[variable]):
                yield Problem(
                    f"{wrong} (in {config.launcher.secrets_file})",
                    key,
                    f"write {variable}=<the key> into that file, or name another one; null: it needs no key",
                )
        elif config.launcher.kind == "slurm":
            # Slurm would keep an exported key in files of its own.
            where = config.launcher.secrets_file or "launcher.secrets_file, which is not set"
            fix = f"write {variable}=... into a file of mode 0600 and name it in launcher.secrets_file"
            yield Problem(f"on a cluster {variable} is read from {where}, and is not there", key, fix)
        elif wrong := key_in(variable)[1]:
            yield Problem(wrong, key, f"export {variable}=..., or name another one; null: it needs no key")


def secrets_held(file: str | None) -> dict[str, str] | None:
    """What is in the secrets file, nothing without one; None: it cannot be read, which `files` tells."""
    try:
        return {} if file is None else read_secrets(Path(file))
    except UserError:
        return None


def packages(config: Config) -> Iterator[Problem]:
    """Those that the stages import; of a cluster's job the node's own count."""
    needed: tuple[str, ...] = ()
    if config.policy.kind == "local" and config.launcher.kind == "local":
        generates = {"train"} | ({"probe"} if not config.probe.rows else set())
        if (generates | ({"evaluate"} if not config.evaluation.rows else set())) & set(config.stages):
            needed = ("torch", "transformers")
        if "train" in config.stages:
            needed += ("verl", "ray", "tensordict", "transfer_queue")
        if "train" in config.stages and config.topology.rollout == "vllm":
            needed += ("vllm",)
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        extra = "gpu" if config.topology.device == "cuda" else "train"
        what = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        yield Problem(
            f"{what}, and the stages {', '.join(config.stages)} need {'it' if len(missing) == 1 else 'them'}",
            "policy.kind",
            f"pip install 'tbexp[{extra}]', or policy=chat with an endpoint",
        )
    trains = "train" in config.stages and config.policy.kind == "local" and config.launcher.kind == "local"
    if trains and needs_flash_attention(config.topology) and importlib.util.find_spec(FLASH_ATTENTION) is None:
        what = f"flash-attn is not installed, and topology.attention={config.topology.attention} needs it"
        yield Problem(what, "topology.attention", FLASH_ATTENTION_FIX)
    asks = config.sandbox.kind == "openenv" and bool({"probe", "evaluate"} & set(config.stages))
    offers = "serve" in config.stages and config.serve.kind == "openenv"
    if (asks or offers) and importlib.util.find_spec("openenv") is None:
        key = "serve.kind" if offers else "sandbox.kind"
        yield Problem("the package openenv is not installed", key, "pip install 'tbexp[serve]'")
    proxied = "serve" in config.stages and config.serve.kind == "proxy" and config.serve.upstream is None
    used = started_here(config) if {"probe", "evaluate"} & set(config.stages) else set()
    if proxied or ("policy" in used and config.launcher.kind == "local"):
        yield from no_program(config.policy.vllm, "policy.vllm")
    if "selection.reference.policy" in used and config.launcher.kind == "local":
        yield from no_program(config.selection.reference.policy.vllm, "selection.reference.policy.vllm")


def needs_flash_attention(topology: Topology) -> bool:
    """Whether a training in this topology imports the package: on a CPU it is given torch's own attention."""
    return topology.device == "cuda" and topology.attention == "flash_attention_2"


def program(command: Sequence[str]) -> str | None:
    """Where a command's program is: on the path, or beside this Python; None: nowhere."""
    beside = str(Path(sys.executable).parent)
    return shutil.which(command[0], path=os.pathsep.join([os.environ.get("PATH", os.defpath), beside]))


def no_program(settings: VllmServer, where: str) -> Iterator[Problem]:
    """What keeps `vllm serve` from being started here. where: the settings' place in the config."""
    if not settings.command:
        yield Problem("names no program", f"{where}.command", f"{where}.command=[vllm]")
    elif program(settings.command) is None:
        other = "serve.upstream" if where == "policy.vllm" else f"{where.removesuffix('.vllm')}.endpoint"
        yield Problem(
            f"there is no program {settings.command[0]} on this machine",
            f"{where}.command",
            "pip install 'tbexp[gpu]', name the program of another environment "
            f"({where}.command=[VENV/bin/vllm]), or use a server that runs already ({other})",
        )


def writable(config: Config, run_dir: Path) -> Iterator[Problem]:
    if "doctor" in config.stages:
        return
    for key, folder in (("hydra.run.dir", run_dir), ("store", Path(config.store))):
        folder = folder.absolute()
        place = next(parent for parent in (folder, *folder.parents) if parent.exists())
        if not place.is_dir():
            yield Problem(f"{folder} cannot be made: {place} is a file", key, "name another folder")
        elif not os.access(place, os.W_OK | os.X_OK):
            yield Problem(f"{folder} cannot be written: no right to write in {place}", key, "name another folder")
