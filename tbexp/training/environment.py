"""The environment of verl's processes.

Decided here: what is set, for all processes and for those on a CPU, and what is taken away, because it would make verl
or Ray do something else than the configuration says. Keys of endpoints stay where the user put them: they are inherited
by the processes of this machine, and are in no file, argument or Ray runtime environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import tbexp
from tbexp.config.schema import Config
from tbexp.training.processes import MARK

TAKEN_AWAY = ("RAY_", "VERL_", "MLFLOW_", "HYDRA_", "WANDB_")
METRICS = "VERL_FILE_LOGGER_PATH"
# Not for the workers of a Ray that is joined: they have its own, so that whoever ends that Ray finds them.
OF_THIS_MACHINE = ("TMPDIR", "RAY_AUTH_TOKEN_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", MARK)


def own_variables(config: Config, *, mark: str, temp: Path, metrics_file: Path | None) -> dict[str, str]:
    """What verl's processes need whatever else is set. metrics_file: None for what trainings have in common."""
    own = {
        "PYTHONUNBUFFERED": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(temp / "token"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "TMPDIR": str(temp),  # verl leaves lock files there
        "TQ_LOGGING_LEVEL": "ERROR",  # it warns of fewer than 8 cores at every call
        "TRANSFER_QUEUE_ENABLE": "1",
        MARK: mark,
    }
    if metrics_file is not None:
        own[METRICS] = str(metrics_file)
    if config.topology.device == "cuda":
        # Asking whether there is a GPU must not start CUDA in the process that warm workers are forked from.
        own |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "VERL_USE_EXTERNAL_MODULES": "tbexp.training.apart"}
    if config.topology.device == "cpu":
        devices = config.topology.nodes * config.topology.gpus_per_node
        own |= {
            # No process sees a GPU, and Ray, which wants an id for each logical one, has its ids.
            "CUDA_VISIBLE_DEVICES": ",".join(["-1"] * devices),
            "VERL_USE_EXTERNAL_MODULES": "tbexp.training.platform_cpu",
            "VERL_PLATFORM": "cpu",
            "VERL_ENGINE_DEVICE": "cuda",
            "TBEXP_TORCH_THREADS": str(config.topology.threads),
            "OMP_NUM_THREADS": str(config.topology.threads),
            "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads of several processes slowed a step 5 to 10 times
            "TOKENIZERS_PARALLELISM": "false",
            "ARROW_DEFAULT_MEMORY_POOL": "system",  # Arrow's own starts a thread, which a fork would lose
        }
    return own


def for_driver(own: Mapping[str, str], *, inherited: Mapping[str, str], joins: bool) -> dict[str, str]:
    """The driver's whole environment. joins: it joins a running Ray, whose token is then the inherited one."""
    env = {key: value for key, value in inherited.items() if not key.startswith(TAKEN_AWAY)}
    env |= own
    if joins:
        env = {key: value for key, value in env.items() if not key.startswith("RAY_AUTH_")}
        env |= {key: value for key, value in inherited.items() if key.startswith("RAY_AUTH_")}
    env["PYTHONPATH"] = python_path(inherited)
    local = "127.0.0.1,localhost"
    for name in ("NO_PROXY", "no_proxy"):
        env[name] = f"{local},{env[name]}" if env.get(name) else local
    return env


def python_path(inherited: Mapping[str, str]) -> str:
    """PYTHONPATH by which this very package is found, installed or not."""
    root = str(Path(tbexp.__file__).resolve().parent.parent)
    others = [path for path in inherited.get("PYTHONPATH", "").split(os.pathsep) if path and path != root]
    return os.pathsep.join([root, *others])


def for_other_nodes(own: Mapping[str, str]) -> dict[str, str]:
    """What a Ray that is joined has to set for our processes: no secrets, nothing of this machine."""
    return {key: value for key, value in own.items() if key not in OF_THIS_MACHINE and not key.startswith("RAY_")}
