"""`tbexp stages=[serve]`: what other harnesses are offered, until Ctrl-C or SIGTERM.

Decided here: which weights are served where no server is named, in which order things start (the port is taken first,
so that nothing is loaded for nothing) and that all of it ends. Left to others: passing requests on (serving/proxy.py),
vLLM's process (serving/vllm_server.py).
"""

from __future__ import annotations

import asyncio
import shlex
import socket
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from tbexp.config.checks import key_names
from tbexp.config.schema import Config
from tbexp.config.secrets import provide
from tbexp.episode import World, open_judge, open_user
from tbexp.errors import Problem, UserError, WorldFailure
from tbexp.grading import open_grader
from tbexp.pipeline.files import read_json
from tbexp.pipeline.identity import attempt_seed
from tbexp.pipeline.inputs import Inputs
from tbexp.pipeline.progress import Progress
from tbexp.sandbox import open_sandbox
from tbexp.serving import vllm_server


def serve(config: Config, *, run_dir: Path) -> None:
    """Returns when a signal has ended it. UserError: port in use, no weights, vLLM not installed; WorldFailure: the
    server that was started has ended.
    """
    provide(config.launcher.secrets_file, key_names(config))
    with Progress() as progress:
        if config.serve.kind == "openenv":
            serve_tasks(config, progress)
        else:
            serve_proxy(config, run_dir, progress)


def serve_proxy(config: Config, run_dir: Path, progress: Progress) -> None:
    from tbexp.serving.listening import address_of, listen, serve_until_ended
    from tbexp.serving.proxy import Upstream, proxy_app

    wanted = config.serve
    weights, name = ("", "") if wanted.upstream else weights_of(config, run_dir)
    if config.dry_run:
        settings = config.policy.vllm.model_copy(update={"model": weights})
        words = vllm_server.serve_command(settings, served_name=name, host=vllm_server.HOST)
        behind = wanted.upstream or shlex.join(words)
        progress.say(f"would serve {behind} at http://{wanted.host}:{wanted.port}/v1; nothing was started")
        return
    with ExitStack() as stack:
        listening: socket.socket = stack.enter_context(listen(wanted.host, wanted.port))
        if wanted.upstream:
            upstream = Upstream(wanted.upstream, wanted.api_key_env, wanted.model)
        else:
            server = vllm_server.start(
                config.policy.vllm,
                weights=weights,
                served_name=name,
                log_file=run_dir / "serve" / "vllm.log",
                say=progress.say,
                hidden=key_names(config),
            )
            stack.callback(server.stop)
            upstream = Upstream(f"{server.url}/v1", None, name, server.ended)
        merge = joins_systems(config, weights) if wanted.merge_system is None else wanted.merge_system
        app = proxy_app(upstream, merge_system=merge)
        address = address_of(listening)
        progress.say(
            f"serving {upstream.base_url} at {address}/v1; ready when {address}/readyz says so; Ctrl-C ends it"
        )
        end = asyncio.run(serve_until_ended(app, listening, reason=upstream.ended))
    if end is not None:
        raise WorldFailure(end)
    progress.say("serving has ended")


def joins_systems(config: Config, weights: str) -> bool:
    """Whether a policy with these weights was given its leading system messages as one. weights: a folder, or "" for a
    server of others.
    """
    if not weights or not Path(weights, "tokenizer_config.json").is_file():
        return True
    try:
        from transformers import AutoTokenizer
    except ImportError:
        return True

    from tbexp.interpret import Renderer

    return Renderer(AutoTokenizer.from_pretrained(weights), format=config.model.format).joins_systems


def serve_tasks(config: Config, progress: Progress) -> None:
    """The config's tasks as an OpenEnv environment."""
    from tbexp.serving.listening import address_of, listen, serve_until_ended

    wanted, inputs = config.serve, Inputs()
    tasks = {"candidates": inputs.candidates(config), "held_out": inputs.held_out(config)}
    servers = inputs.servers(config)
    told = f"{len(tasks['candidates'])} candidates and {len(tasks['held_out'])} held-out tasks"
    if config.dry_run:
        progress.say(f"would serve {told} at http://{wanted.host}:{wanted.port}; nothing was started")
        return

    async def offered(listening: socket.socket) -> None:
        from tbexp.serving.openenv_server import Offer, openenv_app

        async with AsyncExitStack() as stack:
            user, judge = open_user(config.user, config.prices), open_judge(config.judge, config.prices)
            for person in (user, judge):
                if (close := getattr(person, "close", None)) is not None:
                    stack.push_async_callback(close)
            sandbox = await stack.enter_async_context(open_sandbox(config.sandbox, servers))
            grader = await stack.enter_async_context(open_grader(config.sandbox))
            offer = Offer(
                tasks,
                World(sandbox=sandbox, grader=grader, user=user, judge=judge),
                config.policy.limits,
                lambda uid, attempt: attempt_seed(config.seed, uid, attempt),
                wanted.trajectories,
            )
            app = openenv_app(offer, sessions=wanted.sessions)
            address = address_of(listening)
            progress.say(f"serving {told} at {address} (OpenEnv: reset and step at /ws); Ctrl-C ends it")
            await serve_until_ended(app, listening)

    with listen(wanted.host, wanted.port) as listening:
        asyncio.run(offered(listening))
    progress.say("serving has ended")


def weights_of(config: Config, run_dir: Path) -> tuple[str, str]:
    """The weights that are served and their name: those named, else the run's trained ones, else the base model's.

    UserError when there are none.
    """
    chosen = trained_weights(run_dir / "train", config.training.steps)
    if config.policy.vllm.model is not None:
        weights, name = config.policy.vllm.model, Path(config.policy.vllm.model).name
    elif chosen is not None:
        weights, name = str(chosen), f"{config.model.name}-trained"
    elif (base := base_weights(config)) is not None:
        weights, name = base, config.model.name
    else:
        raise UserError(
            Problem(
                f"there are no weights to serve: {run_dir} has no trained checkpoint (train/chosen)",
                "policy.vllm.model",
                "name a Hugging Face folder, the settings or the folder (hydra.run.dir) of a run that was trained, or "
                "a server that runs already (serve.upstream)",
            )
        )
    return weights, config.serve.model or name


def base_weights(config: Config) -> str | None:
    """Those of the base model; of one that the sample domain teaches what a run has built, not what it began with."""
    from tbexp.pipeline.context import place_of_base
    from tbexp.samples.bases import base_key

    if config.model.kind == "folder":
        return config.model.path
    try:
        place = place_of_base(Path(config.store), config.model.name, base_key(config.model))
    except UserError:  # what it would be built from is not here
        return None
    return str(place) if (place / "config.json").is_file() else None


def trained_weights(folder: Path, steps: int) -> Path | None:
    """The chosen weights of a training of so many steps, else those of the longest one in the run's folder."""
    from tbexp.training import chosen_weights

    result = read_json(folder / f"result-{steps}.json")
    places = [folder / "chosen"] if result is None else [chosen_weights(folder, result["chosen_step"])]
    return next((place.resolve() for place in places if (place / "config.json").is_file()), None)
