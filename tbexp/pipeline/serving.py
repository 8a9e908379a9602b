"""`tbexp stages=[serve]`: what other harnesses are offered, until Ctrl-C or SIGTERM.

Decided here: which weights are served where no server is named, in which order things start (the port is taken first,
so that nothing is loaded for nothing) and that all of it ends. Left to others: passing requests on (serving/proxy.py),
vLLM's process (serving/vllm_server.py).
"""

from __future__ import annotations

import asyncio
import shlex
import socket
from contextlib import ExitStack
from pathlib import Path

from tbexp.config.checks import key_names
from tbexp.config.schema import Config
from tbexp.config.secrets import provide
from tbexp.errors import Problem, UserError, WorldFailure
from tbexp.pipeline.progress import Progress
from tbexp.serving import vllm_server


def serve(config: Config, *, run_dir: Path) -> None:
    """Returns when a signal has ended it. UserError: port in use, no weights, vLLM not installed; WorldFailure: the
    server that was started has ended.
    """
    provide(config.launcher.secrets_file, key_names(config))
    with Progress() as progress:
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
        app = proxy_app(upstream, merge_system=wanted.merge_system)
        address = address_of(listening)
        progress.say(
            f"serving {upstream.base_url} at {address}/v1; ready when {address}/readyz says so; Ctrl-C ends it"
        )
        end = asyncio.run(serve_until_ended(app, listening, reason=upstream.ended))
    if end is not None:
        raise WorldFailure(end)
    progress.say("serving has ended")


def weights_of(config: Config, run_dir: Path) -> tuple[str, str]:
    """The weights that are served and their name: those named, else the run's trained ones, else the base model's.

    UserError when there are none.
    """
    chosen = run_dir / "train" / "chosen"
    if config.policy.vllm.model is not None:
        weights, name = config.policy.vllm.model, Path(config.policy.vllm.model).name
    elif (chosen / "config.json").is_file():
        weights, name = str(chosen.resolve()), f"{config.model.name}-trained"
    elif config.model.path is not None:
        weights, name = config.model.path, config.model.name
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
