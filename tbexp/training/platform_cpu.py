"""A CPU platform for verl, loaded into every verl process by `VERL_USE_EXTERNAL_MODULES=tbexp.training.platform_cpu`.

Decides what "the accelerator" is where there is none: torch's CPU, one device, gloo, and Ray's logical GPUs as the
thing that is counted. Chosen by `VERL_PLATFORM=cpu`; never chosen by itself. verl looks its engines up under a device
name, so `VERL_ENGINE_DEVICE=cuda` goes with it (see `run.environment`). Nothing installed is edited; the two places
of verl 0.9.1 that do not ask the platform are replaced below, each with its reason.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any

import torch
import verl.utils.distributed as verl_distributed
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _zero(*_: object, **__: object) -> int:
    return 0


def _nothing(*_: object, **__: object) -> None:
    return None


def cpu_as_accelerator() -> types.ModuleType:
    """torch.cpu, completed with what verl asks of torch.cuda; memory figures are 0, cache calls do nothing."""
    module = types.ModuleType("torch_cpu_as_accelerator")
    for name in dir(torch.cpu):
        if not name.startswith("__"):
            setattr(module, name, getattr(torch.cpu, name))
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, _zero)
    for name in (
        "empty_cache",
        "ipc_collect",
        "manual_seed",
        "manual_seed_all",
        "reset_peak_memory_stats",
        "set_device",
        "set_per_process_memory_fraction",
        "synchronize",
    ):
        setattr(module, name, _nothing)
    attributes: dict[str, Any] = {
        "current_device": lambda: "cpu",
        "get_device_name": lambda *_: "cpu",
        "get_rng_state": torch.get_rng_state,
        "is_available": lambda: False,
        "mem_get_info": lambda *_: (0, 1),
        "set_rng_state": torch.set_rng_state,
    }
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):  # type: ignore[misc]
    """One logical device per trainer rank; Ray counts it as a GPU that does not exist."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = cpu_as_accelerator()

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        return None

    def synchronize(self, device_index: int | None = None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "TBEXP_CPU_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def _use_gloo() -> None:
    # verl/utils/distributed.py builds "cpu:gloo,<device>:<backend>", and torch refuses the same device named twice.
    original = verl_distributed.initialize_global_process_group_ray

    @functools.wraps(original)
    def initialise(timeout_second: int | None = None, backend: str | None = None) -> None:
        original(timeout_second, backend or "gloo")

    verl_distributed.initialize_global_process_group_ray = initialise


_use_gloo()
