"""`tbexp stages=[doctor]`: what is installed, what fits together, and what this machine lacks for which topology.

Decided here: what each topology needs of a machine. Packages are judged by their metadata alone; torch is imported in a
process of its own, and only when it is installed.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

import tbexp
from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder
from tbexp.config.here import FLASH_ATTENTION, FLASH_ATTENTION_FIX, needs_flash_attention
from tbexp.config.schema import Config, SandboxConfig, Topology
from tbexp.errors import WorldError
from tbexp.grading import open_grader
from tbexp.policy.memory import memory

if TYPE_CHECKING:
    from rich.console import Console

GIB = 2**30
EXTRAS = ("base", "train", "gpu", "serve", "smollm2", "test")
LAPTOP_GIB = 8  # memory of the default experiment, its trainer's processes included
TORCH_SCRIPT = """
import json, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": [], "nccl": None}
if torch.cuda.is_available():
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        found["gpus"].append([gpu.name, gpu.total_memory])
    found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Package:
    """One requirement of tbexp. installed: its version, None if it is missing."""

    name: str
    extra: str
    wanted: str
    installed: str | None
    fits: bool

    @property
    def state(self) -> str:
        return "missing" if self.installed is None else "ok" if self.fits else "does not fit"


@dataclass(frozen=True, slots=True)
class Machine:
    """cores, memory (bytes): what this process may use. gpus: name and bytes of each. slurm: its commands are here.
    flash_attention: its package can be imported; it is of no extra, since it is built for one torch and CUDA.
    """

    cores: int
    memory: int
    gpus: tuple[tuple[str, int], ...] = ()
    cuda: str | None = None
    nccl: str | None = None
    driver: str | None = None
    slurm: bool = False
    torch_error: str | None = None
    flash_attention: bool = False


def doctor(config: Config) -> None:
    """Prints the findings to stdout."""
    from rich.console import Console

    found = packages(requirements(), installed_version)
    show(
        Console(width=None if sys.stdout.isatty() else 120, markup=False),
        config,
        found,
        conflicts(found, installed_requirements),
        look_around(),
    )
    print(f"checks: {asyncio.run(checks(config.sandbox))}")  # noqa: T201 - a long line stays one


# -- packages


def requirements() -> list[tuple[str, Requirement]]:
    """tbexp's own requirements with the extra that each belongs to (`base` for none)."""
    try:
        lines = importlib.metadata.requires("tbexp") or []
    except importlib.metadata.PackageNotFoundError:
        lines = checkout_requirements()
    found: dict[str, tuple[str, Requirement]] = {}
    for extra in EXTRAS:  # an extra that includes another one repeats its requirements
        for requirement in map(Requirement, lines):
            name = normal(requirement.name)
            if name != "tbexp" and name not in found and belongs(requirement, extra):
                found[name] = (extra, requirement)
    return list(found.values())


def belongs(requirement: Requirement, extra: str) -> bool:
    """Whether it is asked for on this machine, by this extra."""
    name = "" if extra == "base" else extra
    return (requirement.marker is None and not name) or (
        requirement.marker is not None and requirement.marker.evaluate({"extra": name})
    )


def checkout_requirements() -> list[str]:
    """The same lines from pyproject.toml, when tbexp runs from a checkout that was not installed."""
    file = Path(tbexp.__file__).resolve().parent.parent / "pyproject.toml"
    if not file.is_file():
        return []
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    lines: list[str] = list(project["dependencies"])
    for extra, more in project["optional-dependencies"].items():
        lines += [f'{line}; extra == "{extra}"' for line in more]
    return lines


def installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_requirements(name: str) -> list[Requirement]:
    """What an installed package itself asks for, without its extras."""
    try:
        lines = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = [Requirement(line) for line in lines]
    return [asked for asked in found if asked.marker is None or asked.marker.evaluate({"extra": ""})]


def packages(wanted: Iterable[tuple[str, Requirement]], version_of: Any) -> list[Package]:
    rows = []
    for extra, requirement in wanted:
        version = version_of(requirement.name)
        fits = version is not None and requirement.specifier.contains(version, prereleases=True)
        rows.append(Package(requirement.name, extra, str(requirement.specifier), version, fits))
    return rows


def conflicts(found: Sequence[Package], requirements_of: Any) -> list[str]:
    """What the installed packages ask of each other and do not get, one sentence each."""
    versions = {normal(package.name): package.installed for package in found if package.installed is not None}
    sentences = []
    for package in found:
        if package.installed is None:
            continue
        for asked in requirements_of(package.name):
            version = versions.get(normal(asked.name))
            if version is not None and not asked.specifier.contains(version, prereleases=True):
                who = f"{package.name} {package.installed}"
                sentences.append(f"{who} asks for {asked.name}{asked.specifier}, but {version} is installed")
    return sentences


def normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


# -- the machine


def look_around() -> Machine:
    """What this machine has. Starts one process when torch is installed, and one for nvidia-smi."""
    torch: Mapping[str, Any] = {}
    error = None
    if installed_version("torch") is not None:
        try:
            done = subprocess.run(
                [sys.executable, "-c", TORCH_SCRIPT], capture_output=True, text=True, timeout=120, check=True
            )
            torch = json.loads(done.stdout.splitlines()[-1])
        except subprocess.CalledProcessError as failed:
            error = (failed.stderr.strip().splitlines() or ["no message"])[-1]
        except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError, IndexError) as failed:
            error = str(failed)
    return Machine(
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=memory(),
        gpus=tuple((str(name), int(size)) for name, size in torch.get("gpus", ())),
        cuda=torch.get("cuda"),
        nccl=torch.get("nccl"),
        driver=driver(),
        slurm=shutil.which("sbatch") is not None,
        torch_error=error,
        flash_attention=importlib.util.find_spec(FLASH_ATTENTION) is not None,
    )


def driver() -> str | None:
    """Version of the NVIDIA driver."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    try:
        done = subprocess.run(
            [command, "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def lacking(topology: Topology, found: Sequence[Package], machine: Machine, *, slurm: bool) -> list[str]:
    """What training in this topology lacks here. slurm: the launcher submits, so that GPUs are on other machines."""
    by_extra: dict[str, list[Package]] = {}
    for package in found:
        if not package.fits:
            by_extra.setdefault(package.extra, []).append(package)
    wanted = ["base", "train", *(["gpu"] if topology.rollout == "vllm" else [])]
    missing = [
        f"{package.name} ({package.state}): pip install 'tbexp[{extra}]'" if extra != "base" else f"{package.name}"
        for extra in wanted
        for package in by_extra.get(extra, [])
    ]
    if machine.torch_error is not None:
        missing.append(f"torch does not start: {machine.torch_error}")
    if topology.device == "cpu":
        if machine.memory < LAPTOP_GIB * GIB:
            missing.append(f"{machine.memory / GIB:.1f} GiB of memory, about {LAPTOP_GIB} are needed")
        return missing
    if needs_flash_attention(topology) and not machine.flash_attention:
        missing.append(f"flash-attn (missing): {FLASH_ATTENTION_FIX}")
    if slurm or topology.nodes > 1:
        if not machine.slurm:
            missing.append("sbatch: Slurm's commands are not on PATH")
        if not slurm:
            missing.append(f"{topology.nodes} nodes: use launcher=slurm")
    if topology.nodes == 1 and not slurm and len(machine.gpus) < topology.gpus_per_node:
        missing.append(f"{topology.gpus_per_node} GPUs, {len(machine.gpus)} are here")
        if machine.driver is not None and not machine.gpus and machine.cuda is None:
            missing.append("a torch built for CUDA: this one is for the CPU")
    return missing


def topologies() -> dict[str, Topology]:
    """Every topology of conf/."""
    names = sorted(file.stem for file in (conf_folder() / "topology").glob("*.yaml"))
    with opened(conf_folder()) as compose:  # a topology may stand on another one
        return {name: Topology.model_validate(plain(compose([f"topology={name}"]))["topology"]) for name in names}


async def checks(config: SandboxConfig) -> str:
    """How well the tests of tasks are kept apart here: containers may forbid what it takes."""
    try:
        async with open_grader(config) as grader:
            found = await grader.what_is_within_reach()
    except WorldError as error:
        return error.message
    return "; ".join(found) or "without network and without a view of other processes"


# -- what one sees


def show(console: Console, config: Config, found: Sequence[Package], clashes: Sequence[str], machine: Machine) -> None:
    from rich.table import Table

    console.print(
        f"tbexp {tbexp_version()}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    )
    console.print(f"{machine.cores} cores, {machine.memory / GIB:.1f} GiB of memory", highlight=False)
    gpus = ", ".join(f"{name} ({size / GIB:.0f} GiB)" for name, size in machine.gpus) or "none"
    parts = {"CUDA": machine.cuda, "NCCL": machine.nccl, "driver": machine.driver}
    console.print(f"GPUs: {gpus}; " + ", ".join(f"{name} {version or 'none'}" for name, version in parts.items()))

    table = Table(title="packages", title_justify="left")
    for column in ("extra", "package", "wanted", "installed", ""):
        table.add_column(column)
    for package in found:
        table.add_row(package.extra, package.name, package.wanted, package.installed or "-", package.state)
    console.print(table)
    for sentence in clashes:
        console.print(f"does not fit together: {sentence}", highlight=False)
    if not clashes:
        console.print("what is installed fits together")

    table = Table(title="topologies (* is this config's)", title_justify="left")
    table.add_column("topology")
    table.add_column("missing here")
    slurm = config.launcher.kind == "slurm"
    for name, topology in {**topologies(), config.topology.name: config.topology}.items():
        mark = "*" if name == config.topology.name else " "
        missing = lacking(topology, found, machine, slurm=slurm)
        table.add_row(f"{mark} {name}", "\n".join(missing) or "nothing: ready")
    console.print(table)


def tbexp_version() -> str:
    return installed_version("tbexp") or "from a checkout"
