"""Cross-checks: what takes more than one key to decide, and holds on any machine.

Each problem names the values, why they cannot work, and the key to change. What a machine lacks is `here`'s.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tbexp.config import sbatch
from tbexp.config.addresses import address_problems
from tbexp.config.schema import (
    BANDS,
    STAGES,
    Config,
    Endpoint,
    JudgeConfig,
    PolicyConfig,
    Probe,
    Topology,
    UserConfig,
)
from tbexp.errors import Problem


def check(config: Config) -> list[Problem]:
    """What cannot work on any machine. A plan may do without what is still to be named, and says so."""
    return [
        *(() if config.dry_run and set(config.stages) & set(STAGES) else to_be_named(config)),
        *stages(config),
        *band_edges(config),
        *probe_and_selection(config),
        *endpoints(config),
        *model(config),
        *training(config),
        *launcher(config),
        *tasks(config),
        *sandbox(config),
        *compared(config),
        *read_twice(config),
        *served(config),
    ]


def stages(config: Config) -> Iterator[Problem]:
    if not config.stages:
        yield Problem("names no stage", "stages", f"stages=[{','.join(STAGES)}]")
    for stage in dict.fromkeys(stage for stage in config.stages if config.stages.count(stage) > 1):
        yield Problem(f"{stage} stands there twice", "stages", "name each stage once")
    alone = [stage for stage in config.stages if stage not in STAGES]
    if alone and len(config.stages) > 1:
        yield Problem(f"{alone[0]} runs on its own, not with other stages", "stages", f"stages=[{alone[0]}]")
    if {"probe", "train"} <= set(config.stages) and "select" not in config.stages:
        yield Problem("what is probed has to be selected from before it can be trained on", "stages", "add select")
    if "train" in config.stages and config.policy.kind != "local":
        yield Problem(
            f"train needs a policy whose weights are here, but policy.kind is {config.policy.kind}",
            "stages",
            "leave train out (stages=[probe,select,evaluate,report] evaluation.policies=[base]) or use policy=local",
        )
    if "evaluate" in config.stages and not config.evaluation.policies and not config.evaluation.rows:
        yield Problem("names no policy to evaluate", "evaluation.policies", "evaluation.policies=[base,trained]")


def band_edges(config: Config) -> Iterator[Problem]:
    edges = []
    for name in BANDS[:-1]:
        upper = getattr(config.buckets.bands, name).upper
        key = f"buckets.bands.{name}.upper"
        if upper is None:
            yield Problem("the band has no upper edge", key, f"set it: {key}=0.5")
        elif not 0.0 < upper < 1.0:
            yield Problem(f"{upper} is no edge inside the pass rates, which go from 0 to 1", key, "above 0 and below 1")
        else:
            edges.append((key, upper))
    for (lower_key, lower), (key, upper) in itertools.pairwise(edges):
        if upper <= lower:
            yield Problem(
                f"{upper} is not above {lower_key}, which is {lower}: the bands are out of order",
                key,
                f"raise {key} or lower {lower_key}",
            )
    if getattr(config.buckets.bands, BANDS[-1]).upper is not None:
        key = f"buckets.bands.{BANDS[-1]}.upper"
        yield Problem("the last band has no upper edge", key, f"{key}=null")
    if not any(getattr(config.buckets.bands, name).keep for name in BANDS):
        yield Problem("no band is kept, so the pool would be empty", "buckets.bands.<name>.keep", "keep one")


def probe_and_selection(config: Config) -> Iterator[Problem]:
    probed = {"probe", "select"} <= set(config.stages) and not config.probe.rows
    if probed and config.selection.min_clean > config.probe.attempts:
        yield Problem(
            f"{config.selection.min_clean} clean attempts are asked for, but probe.attempts is {config.probe.attempts}",
            "selection.min_clean",
            "lower it, or raise probe.attempts",
        )
    yield from adaptive(config.probe)
    shards = config.launcher.shards or config.topology.nodes
    if config.launcher.kind == "slurm" and shards > 1 and config.probe.kind == "adaptive" and config.probe.spend_saved:
        yield Problem(
            f"the {shards} jobs of a probe do not know what the others have saved, so they cannot spend it",
            "probe.spend_saved",
            "launcher.shards=1, or probe.spend_saved=false",
        )
    yield from reference_policy(config)
    reference = config.selection.reference
    if (reference.threshold is None) != (reference.probability is None):
        given, other = ("threshold", "probability") if reference.probability is None else ("probability", "threshold")
        yield Problem(
            f"selection.reference.{given} says nothing without selection.reference.{other}",
            f"selection.reference.{other}",
            "set both or neither",
        )


def reference_policy(config: Config) -> Iterator[Problem]:
    reference = config.selection.reference
    if reference.policy.kind is None:
        return
    key = "selection.reference"
    if reference.rows:
        yield Problem("the reference's attempts are given, and its policy too", f"{key}.rows", "give one of the two")
    if config.probe.rows:
        yield Problem(
            "a reference policy screens tasks before they are probed, but probe.rows gives rows made elsewhere",
            f"{key}.policy.kind",
            f"give the reference's rows too: {key}.rows=[...]",
        )
    for name in ("min_clean", "min_passed"):
        if getattr(reference, name) > reference.attempts:
            yield Problem(
                f"{getattr(reference, name)} of {reference.attempts} attempts ({key}.attempts) can never be reached",
                f"{key}.{name}",
                f"lower it, or raise {key}.attempts",
            )


def adaptive(probe: Probe) -> Iterator[Problem]:
    if probe.kind != "adaptive":
        return
    if probe.least > probe.attempts:
        yield Problem(
            f"{probe.least} attempts before a task can stop are more than probe.attempts, which is {probe.attempts}",
            "probe.least",
            "lower it, or raise probe.attempts",
        )
    if probe.max_attempts is not None and probe.max_attempts < probe.attempts:
        yield Problem(
            f"{probe.max_attempts} attempts per task at most are fewer than probe.attempts, which is {probe.attempts}",
            "probe.max_attempts",
            "raise it, or leave it null",
        )


def to_be_named(config: Config) -> Iterator[Problem]:
    """What only the user knows, and an experiment leaves open: addresses, and where the data is."""
    for name, endpoint in chat_endpoints(config):
        if name in started_here(config):
            continue
        key = f"{name}.endpoint"
        asked = "parity.readers names a server" if name == "parity" else f"{name}.kind is chat"
        if endpoint.base_url is None:
            yield Problem(f"{asked}, but the endpoint has no address", f"{key}.base_url", "http://HOST:8000/v1")
        if endpoint.model is None:
            yield Problem(f"{asked}, but no model is named", f"{key}.model", "the name the endpoint knows it by")
    if config.tasks.root == "":
        yield Problem("names no folder", "tasks.root", "a folder in ThinkingBox format; null: the sample domain")


def endpoints(config: Config) -> Iterator[Problem]:
    for name, endpoint in chat_endpoints(config):
        key = f"{name}.endpoint"
        if name in started_here(config):
            if endpoint.base_url is not None:
                what = f"{name}.serve=vllm starts a server of its own, but {endpoint.base_url} is given too"
                yield Problem(what, f"{key}.base_url", f"{key}.base_url=null, or {name}.serve=none")
            continue
        if endpoint.base_url is None:
            continue
        yield from address_problems(endpoint.base_url, f"{key}.base_url", "api_key_env")
    for name, part in spenders(config):
        cap = part.spending_cap_usd
        price = config.prices.models.get(part.endpoint.model or "")
        if cap is not None and part.kind == "chat" and (price is None or price.by_attempt):
            yield Problem(
                f"a cap of {cap} USD cannot be kept: prices.models has no price of tokens for {part.endpoint.model!r}",
                f"{name}.spending_cap_usd",
                "add the price to a file in conf/prices, or leave the cap out",
            )


def chat_endpoints(config: Config) -> Iterator[tuple[str, Endpoint]]:
    """The endpoints that this config speaks to, by the name of their group."""
    for name, part in spenders(config):
        if part.kind == "chat":
            yield name, part.endpoint
    if "parity" in config.stages and "server" in config.parity.readers:
        yield "parity", config.parity.endpoint


def started_here(config: Config) -> set[str]:
    """The sections whose endpoint is a server that tbexp starts."""
    parts = {"policy": config.policy, "selection.reference.policy": config.selection.reference.policy}
    return {name for name, part in parts.items() if part.kind in ("chat", "local") and part.serve == "vllm"}


def spenders(config: Config) -> tuple[tuple[str, PolicyConfig | UserConfig | JudgeConfig], ...]:
    """Whoever may speak to an endpoint, by the name of its section."""
    return (
        ("policy", config.policy),
        ("user", config.user),
        ("judge", config.judge),
        ("selection.reference.policy", config.selection.reference.policy),
    )


def named_keys(config: Config) -> Iterator[tuple[str, str]]:
    """The config keys that name a secret, each with the environment variable that holds it."""
    for name, endpoint in chat_endpoints(config):
        if endpoint.api_key_env is not None:
            yield f"{name}.endpoint.api_key_env", endpoint.api_key_env
    if "serve" in config.stages and config.serve.kind == "proxy" and config.serve.api_key_env is not None:
        yield "serve.api_key_env", config.serve.api_key_env
    if config.sandbox.kind == "proxy" and config.sandbox.proxy.api_key_env is not None:
        yield "sandbox.proxy.api_key_env", config.sandbox.proxy.api_key_env


def key_names(config: Config) -> list[str]:
    """The environment variables that hold the keys of this config's endpoints."""
    return [variable for _, variable in named_keys(config)]


def model(config: Config) -> Iterator[Problem]:
    local = config.policy.kind == "local"
    if local and config.model.kind == "folder" and config.model.path is None:
        yield Problem("model.kind is folder, but no folder is named", "model.path", "a Hugging Face folder")
    if local and config.model.kind == "tiny":
        tiny = config.model.tiny
        if tiny.hidden % tiny.heads:
            yield Problem(
                f"{tiny.hidden} is not a multiple of the {tiny.heads} heads", "model.tiny.hidden", "change one"
            )
        if tiny.heads % tiny.kv_heads:
            yield Problem(
                f"{tiny.heads} heads cannot share {tiny.kv_heads} key-value heads evenly",
                "model.tiny.kv_heads",
                "a divisor",
            )
    if local and config.policy.sampling.max_tokens >= config.model.max_context:
        yield Problem(
            f"{config.policy.sampling.max_tokens} tokens per completion leave no room for a prompt: "
            f"model.max_context is {config.model.max_context}",
            "policy.sampling.max_tokens",
            "lower it, or raise model.max_context",
        )
    prompt = config.training.max_prompt_tokens
    if "train" in config.stages and prompt is not None and prompt >= config.model.max_context:
        yield Problem(
            f"{prompt} tokens of prompt leave no room for an answer: model.max_context is {config.model.max_context}",
            "training.max_prompt_tokens",
            "lower it, or raise model.max_context",
        )


def training(config: Config) -> Iterator[Problem]:
    if "train" not in config.stages:
        return
    topology, group = config.topology, config.group
    yield from devices(topology)
    attempts = f"{group.groups_per_update} x {group.size} = {group.groups_per_update * group.size}"
    ranks = data_parallel(topology)
    if ranks is not None and group.groups_per_update * group.size % ranks:
        yield Problem(
            f"{attempts} attempts per update is not a multiple of {ranks}, the data-parallel ranks "
            f"({topology.nodes} x {topology.gpus_per_node} devices / {topology.sequence_parallel} sequence parallel)",
            "group.groups_per_update",
            f"change it or group.size, so that the product divides by {ranks}",
            ATTEMPTS,
        )
    batches = config.training.mini_batches
    if group.groups_per_update % batches:
        yield Problem(
            f"group.groups_per_update is {group.groups_per_update}, which does not divide into {batches} mini-batches",
            "training.mini_batches",
            f"a divisor of {group.groups_per_update}",
        )
    elif ranks is not None and batches > 1 and group.groups_per_update // batches * group.size % ranks:
        yield Problem(
            f"{group.groups_per_update // batches} x {group.size} attempts per mini-batch is not a multiple of {ranks}",
            "training.mini_batches",
            "use fewer mini-batches, or more groups",
            ATTEMPTS,
        )


DEVICES = ("topology.nodes", "topology.gpus_per_node")
ATTEMPTS = (*DEVICES, "topology.sequence_parallel", "group.size", "group.groups_per_update")


def devices(topology: Topology) -> Iterator[Problem]:
    world = topology.nodes * topology.gpus_per_node
    if world % topology.sequence_parallel:
        yield Problem(
            f"{world} devices ({topology.nodes} nodes x {topology.gpus_per_node}) is not a multiple of "
            f"{topology.sequence_parallel}",
            "topology.sequence_parallel",
            f"a divisor of {world}",
            DEVICES,
        )
    if topology.gpus_per_node % topology.rollout_tensor_parallel:
        yield Problem(
            f"topology.gpus_per_node is {topology.gpus_per_node}: {topology.gpus_per_node} is not a multiple of "
            f"{topology.rollout_tensor_parallel}",
            "topology.rollout_tensor_parallel",
            f"a divisor of {topology.gpus_per_node}",
        )
    if topology.device == "cuda" and topology.sequence_parallel > 1 and topology.attention != "flash_attention_2":
        # verl's ActorConfig.validate: sequence parallelism needs use_remove_padding, which we pair with flash-attn.
        yield Problem(
            f"{topology.sequence_parallel} devices share a sequence, which {topology.attention} cannot",
            "topology.attention",
            "topology.attention=flash_attention_2, or topology.sequence_parallel=1",
        )
    wanted = {"cpu": "transformers", "cuda": "vllm"}[topology.device]
    if topology.rollout != wanted:
        yield Problem(
            f"{topology.rollout} does not generate with topology.device={topology.device}",
            "topology.rollout",
            f"topology.rollout={wanted}",
        )


def data_parallel(topology: Topology) -> int | None:
    """Ranks that each train on a share of the attempts; None if the devices do not divide."""
    world = topology.nodes * topology.gpus_per_node
    return None if world % topology.sequence_parallel else world // topology.sequence_parallel


def tasks(config: Config) -> Iterator[Problem]:
    if "evaluate" in config.stages and not config.evaluation.rows and not config.tasks.held_out:
        yield Problem(
            "evaluate needs tasks that were held out, but none are named",
            "tasks.held_out",
            "a test list, or leave evaluate out of stages",
        )


def compared(config: Config) -> Iterator[Problem]:
    wanted = config.compare
    if "compare" not in config.stages:
        return
    if not wanted.runs:
        yield Problem(
            "names no run",
            "compare.runs",
            "compare.runs=[seed1,seed2]: names, MLflow run ids, run folders, a sweep's parent run, published:<model>",
        )
    for entry in dict.fromkeys(entry for entry in wanted.runs if wanted.runs.count(entry) > 1):
        yield Problem(f"{entry} stands there twice", "compare.runs", "name each run once")


def read_twice(config: Config) -> Iterator[Problem]:
    wanted = config.parity
    if "parity" not in config.stages:
        return
    if not wanted.recordings:
        fix = "parity.recordings=[trajectories.jsonl]: outputs of a model, see docs/parity.md"
        yield Problem("names no file", "parity.recordings", fix)
    if not wanted.readers:
        yield Problem("names nobody else who reads", "parity.readers", "parity.readers=[vllm]")
    if not wanted.compare:
        yield Problem("compares nothing", "parity.compare", "parity.compare=[calls,text,reasoning]")
    lists: dict[str, list[str]] = {
        "recordings": wanted.recordings,
        "readers": [*wanted.readers],
        "compare": [*wanted.compare],
    }
    for key, names in lists.items():
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            yield Problem(f"{name} stands there twice", f"parity.{key}", "name each once")
    if wanted.compare and not set(wanted.compare) & {"calls"} and wanted.readers == ["verl"]:
        yield Problem("verl reads calls alone, and they are not compared", "parity.compare", "add calls")
    if (
        "vllm" in wanted.readers
        and wanted.tokenizer is None
        and config.model.kind == "folder"
        and not config.model.path
    ):
        yield Problem("vLLM's parsers need a tokenizer", "parity.tokenizer", "the model's folder, or set model.path")


def environment(config: Config) -> Iterator[Problem]:
    url, key = config.sandbox.environment.url, "sandbox.environment.url"
    if url is None:
        yield Problem("null is no web address of an environment server", key, f"{key}=http://HOST:8000")
    else:
        yield from address_problems(url, key)
    for stage in ("train", "serve"):
        if stage in config.stages:
            what = f"{stage} needs backends of its own, but the attempts are at an environment server"
            yield Problem(what, "sandbox.kind", "sandbox=prefork")


def served(config: Config) -> Iterator[Problem]:
    for name in ("policy", "selection.reference.policy"):
        part = config.policy if name == "policy" else config.selection.reference.policy
        if part.serve == "vllm" and part.kind == "scripted":
            yield Problem(f"there is nothing to serve: {name}.kind is scripted", f"{name}.serve", f"{name}.serve=none")
        elif part.serve == "vllm" and part.kind == "local":
            # `stages=[serve]` serves whatever is named; no attempt is made there.
            if part.vllm.model is not None and config.stages != ["serve"]:
                what = "local policies have the weights of `model`, and trained ones those of their checkpoint"
                yield Problem(what, f"{name}.vllm.model", f"{name}.vllm.model=null, or {name}.kind=chat")
        elif part.serve == "vllm" and part.vllm.model is None and (name != "policy" or config.model.path is None):
            yield Problem("names no weights to serve", f"{name}.vllm.model", "a Hugging Face folder or name")
    ports = [config.policy.vllm.port, config.selection.reference.policy.vllm.port]
    if len(started_here(config)) == 2 and ports[0] == ports[1] and config.launcher.kind == "local":
        key = "selection.reference.policy.vllm.port"
        yield Problem(f"both the policy's and the reference's server would take port {ports[0]}", key, f"{key}=8002")
    wanted = config.serve
    if "serve" not in config.stages or wanted.kind != "proxy" or wanted.upstream is None:
        return
    yield from address_problems(wanted.upstream, "serve.upstream", "serve.api_key_env")


def sandbox(config: Config) -> Iterator[Problem]:
    if config.sandbox.kind == "openenv":
        yield from environment(config)
    if config.sandbox.kind != "proxy":
        return
    yield from address_problems(config.sandbox.proxy.url, "sandbox.proxy.url", "sandbox.proxy.api_key_env")
    if config.sandbox.search != "none":
        yield Problem(
            f"{config.sandbox.search} has no effect with a session proxy, whose servers have a search of their own",
            "sandbox.search",
            "sandbox.search=none, or sandbox=prefork",
        )


def launcher(config: Config) -> Iterator[Problem]:
    place, topology = config.launcher, config.topology
    if place.kind != "slurm":
        return
    if place.signal_seconds >= 60 * place.minutes:
        yield Problem(
            f"a warning {place.signal_seconds} s before the end is none in a job of {place.minutes} minutes",
            "launcher.signal_seconds",
            f"set it below {60 * place.minutes}, or raise launcher.minutes",
        )
    if "train" in config.stages and place.gpus_per_node and place.gpus_per_node < topology.gpus_per_node:
        yield Problem(
            f"{place.gpus_per_node} GPUs of a node are asked of Slurm, but topology.gpus_per_node is "
            f"{topology.gpus_per_node}",
            "launcher.gpus_per_node",
            f"raise it to {topology.gpus_per_node}, or leave it out",
        )
    yield from sbatch.problems(place)
