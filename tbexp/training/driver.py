"""The process that runs verl: forked by a `keeper`, or `python -m tbexp.training.driver PLAN`.

Decided here: which Ray it uses: the keeper's, one that is named (a Slurm job's), or one of its own, on loopback with a
temp folder of its own. A keeper's Ray that served a training before is joined only when nothing of that training is
left. How it ended is written to `outcome.json`, since exit codes do not carry messages. What verl is told is the
plan's, written by `run`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tbexp.config.whole import write_whole
from tbexp.errors import Problem, UserError, WorldFailure
from tbexp.training import mapping, processes
from tbexp.training.warm_workers import read_ready

log = logging.getLogger(__name__)

WATCH_SECONDS = 0.1


class NotJoined(Exception):
    """There is no Ray to train on; nothing has been done."""


def leave_nothing_behind(temp: Path) -> int:
    """Forks a watcher that ends Ray's processes and removes their folder when this process is killed.

    Most of them end with it, but Ray's agents wait for a raylet that does not come back. Whoever ends a job tells all
    of its processes at once (Slurm, a terminal), so the watcher is deaf to that. Its id is returned.
    """
    mark, driver = os.environ[processes.MARK], os.getpid()
    if (watcher := os.fork()) == 0:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        os.setsid()
        while os.getppid() == driver:  # a pipe would not tell its end: workers are forked from here, and keep it open
            time.sleep(WATCH_SECONDS)
        processes.end(mark, patience=60.0)
        shutil.rmtree(temp, ignore_errors=True)
        os._exit(0)
    return watcher


def start_ray(settings: dict[str, Any], verls: dict[str, str], outcome_file: Path) -> None:
    """verls: variables that verl gives its processes; a Ray of our own inherits them."""
    import ray

    runtime_env = {"env_vars": verls | settings["other_nodes"]}
    if settings["address"]:
        ray.init(address=settings["address"], log_to_driver=True, runtime_env=runtime_env)
        return
    if settings["kept"]:
        address = keepers_address(Path(settings["temp"]))
        with joined(outcome_file, settings["join_seconds"]):
            ray.init(address=address, log_to_driver=True, logging_level=logging.WARNING, runtime_env=runtime_env)
            while settings["join_seconds"] and not unused():
                time.sleep(0.1)
        return
    for name, value in verls.items():
        os.environ.setdefault(name, value)
    ray.init(
        address="local",
        num_cpus=settings["num_cpus"],
        num_gpus=settings["num_gpus"],
        include_dashboard=False,
        object_store_memory=settings["object_store_bytes"],
        log_to_driver=True,
        logging_level=logging.WARNING,
        _temp_dir=settings["temp"],
        _node_ip_address="127.0.0.1",
    )


def keepers_address(temp: Path) -> str:
    while not (told := read_ready(temp)):
        time.sleep(0.05)
    if "failed" in told:
        raise NotJoined(told["failed"])
    return str(told["address"])


@contextlib.contextmanager
def joined(outcome_file: Path, seconds: float | None) -> Iterator[None]:
    """Raises NotJoined, or ends this process when the block takes longer: a Ray that hangs does not let it go on."""
    done = threading.Event()

    def watch() -> None:
        if not done.wait(seconds):
            tell(outcome_file, NotJoined(f"Ray has not answered within {seconds or 0:.0f} s"))
            os._exit(1)

    threading.Thread(target=watch, name="join", daemon=True).start()
    try:
        yield
    except (ConnectionError, RuntimeError) as error:
        raise NotJoined(f"Ray cannot be joined: {error}") from error
    finally:
        done.set()


def unused() -> bool:
    """Whether nobody uses anything of this Ray: no device or core, no named actor."""
    import ray

    there, free = ray.cluster_resources(), ray.available_resources()
    taken = any(free.get(name, 0.0) < there[name] for name in ("CPU", "GPU") if name in there)
    return not taken and not ray.util.list_named_actors(all_namespaces=True)


def train(plan: dict[str, Any], outcome_file: Path) -> None:
    import ray
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

    config = judged(plan["overrides"], plan["config"]["training"]["verl"])
    start_ray(plan["ray"], get_ppo_ray_runtime_env(config)["env_vars"], outcome_file)
    try:
        run_ppo(config, TaskRunnerV1)
    finally:
        ray.shutdown()


def judged(overrides: Sequence[str], given: Mapping[str, Any]) -> Any:
    """verl's config, by its own checks, before Ray is started. given: `training.verl`.

    Raises UserError with verl's words if the user has told verl anything; else it is a defect of ours.
    """
    from hydra import compose, initialize_config_module
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config
    from verl.utils.device import auto_set_device

    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", overrides=list(overrides))
        auto_set_device(config)
        reference, critic = need_reference_policy(config), need_critic(config)
        validate_config(config=config, use_reference_policy=reference, use_critic=critic)
        for group in (config.actor_rollout_ref.rollout, config.algorithm):  # which verl reads on its workers
            omega_conf_to_dataclass(group)
    except Exception as error:
        if not given:
            raise
        said = " ".join(str(error).split())[:500] or type(error).__name__  # Hydra's has verl's words in the middle
        keys = ", ".join(key for key, _ in mapping.passed_through(given))
        fix = f"mend or leave out what it complains of: {keys}"
        raise UserError(Problem(f"verl refuses its configuration: {said}", "training.verl", fix)) from error
    return config


def outcome_of(error: BaseException | None) -> dict[str, str]:
    """status: done, user, world, ray (not joined) or failed. Ray's wrapper of a remote error is an instance of the
    error's own class.
    """
    if error is None:
        return {"status": "done", "message": ""}
    cause: BaseException = getattr(error, "cause", None) or error
    if isinstance(cause, NotJoined):
        return {"status": "ray", "message": str(cause)}
    status = "user" if isinstance(cause, UserError) else "world" if isinstance(cause, WorldFailure) else "failed"
    return {"status": status, "message": str(cause)}


def tell(outcome_file: Path, error: BaseException | None) -> None:
    write_whole(outcome_file, json.dumps(outcome_of(error)))


def main(arguments: list[str]) -> int:
    plan_file = Path(arguments[0])
    plan = json.loads(plan_file.read_text())
    if not plan["ray"]["kept"]:  # a keeper has a watcher
        leave_nothing_behind(Path(plan["ray"]["temp"]))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    outcome_file = plan_file.with_name("outcome.json")
    error: BaseException | None = None
    try:
        train(plan, outcome_file)
    except Exception as caught:
        traceback.print_exc()
        error = caught
    tell(outcome_file, error)
    return 0 if error is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
