"""Everything in conf/ composes, is valid, and says each thing once."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tbexp.config.compose import Composer, known_keys, opened, plain
from tbexp.config.folders import chosen_by_default, conf_folder, options
from tbexp.config.multirun import jobs_of
from tbexp.config.validate import schema_keys, validate, validated
from tbexp.evaluation import load_published
from tbexp.serving.vllm_server import serve_command

CONF = conf_folder()
OPTIONS = [(group, option) for group, files in options(CONF).items() if group != "sweep" for option in files]
NEEDS = {  # what an option can't do without
    ("tasks", "folder"): ["tasks.root=data", "tasks.held_out=held_out.yaml"],
    ("model", "folder"): ["model.path=weights"],
    ("group", "published"): ["topology=node8"],
    ("training", "published"): ["model.max_context=133120"],
    ("policy", "chat"): [
        *("policy.endpoint.base_url=http://localhost/v1", "policy.endpoint.model=m"),
        "stages=[probe,select]",
    ],
    ("policy", "scripted"): ["stages=[probe,select]"],
    ("user", "chat"): ["user.endpoint.base_url=http://localhost/v1", "user.endpoint.model=m"],
    ("judge", "chat"): ["judge.endpoint.base_url=http://localhost/v1", "judge.endpoint.model=m"],
    ("sandbox", "openenv"): ["sandbox.environment.url=http://localhost:8000", "stages=[probe,select]"],
    ("policy", "published"): ["model.max_context=133120"],
    ("topology", "h100x3"): ["group=published"],
    ("experiment", "bench_v1"): [
        *("tasks.root=data", "policy.endpoint.base_url=http://localhost/v1", "policy.endpoint.model=m"),
        *("user.endpoint.base_url=http://localhost/v1", "user.endpoint.model=m"),
        *("judge.endpoint.base_url=http://localhost/v1", "judge.endpoint.model=m"),
    ],
}


@pytest.fixture(scope="module")
def compose():
    with opened(CONF) as composer:
        yield composer


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_each_option_composes_and_is_valid(compose: Composer, group: str, option: str) -> None:
    values = plain(compose([f"{group}={option}", *NEEDS.get((group, option), [])]))
    config = validated(values)
    assert group == "experiment" or values[group]["name"] == option
    assert config.model_dump(mode="json")


def test_the_default_experiment_is_valid_and_has_a_value_for_every_key_of_the_schema(compose: Composer) -> None:
    values = plain(compose([]))
    config, problems = validate(values)
    assert not problems and config is not None
    assert config.name == "laptop"
    assert (config.group.size, config.group.groups_per_update) == (8, 8)
    assert sorted(set(schema_keys())) == sorted(set(known_keys(values)))


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_each_option_says_in_its_first_line_what_it_is(group: str, option: str) -> None:
    assert len(options(CONF)[group][option]) > 10


def test_every_group_of_the_schema_has_a_default_option() -> None:
    chosen = chosen_by_default(CONF)
    assert set(chosen) >= set(options(CONF)) - {"sweep"}
    assert all(option in options(CONF)[group] for group, option in chosen.items() if group in options(CONF))


@pytest.mark.parametrize("name", options(CONF)["experiment"])
def test_an_experiment_holds_only_deltas(compose: Composer, name: str) -> None:
    file = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text())
    options = [each for each in file.pop("defaults", []) if isinstance(each, dict)]
    chosen = [f"{key.removeprefix('override /')}={value}" for each in options for key, value in each.items()]
    shipped = plain(compose(["experiment=laptop", *chosen]))
    assert file.pop("name") == name
    assert [key for key in known_keys(file) if at(file, key) == at(shipped, key)] == []


@pytest.mark.parametrize(
    ("key", "published"),
    [
        ("optimizer.lr", 1e-6),
        ("optimizer.weight_decay", 0.0),
        ("group.size", 8),
        ("group.groups_per_update", 18),
        ("topology.nodes", 3),
        ("topology.gpus_per_node", 8),
        ("topology.sequence_parallel", 4),
        ("topology.rollout_tensor_parallel", 4),
        ("topology.offload", True),
        ("topology.gpu_memory_utilization", 0.70),
        ("training.steps", 50),
        ("training.save_every", 5),
        ("training.max_prompt_tokens", 26624),
        ("buckets.bands.rarely.upper", 0.08),
        ("buckets.bands.hard.upper", 0.40),
        ("buckets.bands.medium.upper", 0.60),
        ("buckets.bands.often.upper", 0.90),
        ("probe.attempts", 8),
        ("selection.min_clean", 3),
        ("selection.seed", 42),
        ("evaluation.attempts", 20),
    ],
)
def test_the_published_settings_are_the_published_ones(compose: Composer, key: str, published: float) -> None:
    options = ["optimizer=published", "group=published", "topology=h100x3", "training=published"]
    assert at(plain(compose(options)), key) == published


def test_the_benchmark_is_evaluated_as_published(compose: Composer) -> None:
    published = load_published()
    serving, protocol = published["evaluation_serving"], published["protocol"]
    needs = [*NEEDS["experiment", "bench_v1"], "policy.vllm.model=weights"]
    config = validated(plain(compose(["experiment=bench_v1", *needs])))
    agent, policy = serving["agent"], config.policy
    assert config.evaluation.attempts == protocol["attempts_per_task"] and config.sandbox.search == "external"
    found = (policy.sampling.temperature, policy.sampling.top_k, policy.sampling.top_p, policy.sampling.max_tokens)
    assert found == (agent["temperature"], agent["top_k"], agent["top_p"], agent["max_completion_tokens"])
    assert policy.endpoint.timeout_s == agent["timeout_s"]
    assert policy.concurrency == serving["max_num_seqs"]
    line = " ".join(serve_command(policy.vllm, served_name="m"))
    wanted = {
        "tensor-parallel-size": serving["tensor_parallel"],
        "port": serving["ports"]["vllm"],
        **{
            name.replace("_", "-"): serving[name]
            for name in ("dtype", "max_model_len", "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens")
        },
        **{name.replace("_", "-"): serving[name] for name in ("reasoning_parser", "tool_call_parser")},
    }
    assert line.startswith("vllm serve weights --served-model-name m ")
    assert all(f"--{name} {value}" in line for name, value in wanted.items())
    assert all(line.count(f"--{flag}") == 1 for flag in serving["flags"])


@pytest.mark.parametrize("name", options(CONF).get("sweep", {}))
def test_each_sweep_has_several_valid_jobs_and_says_what_it_asks(compose: Composer, name: str) -> None:
    jobs = jobs_of(compose, [f"+sweep={name}"])
    assert len(jobs) > 1 and options(CONF)["sweep"][name].count("?") == 1
    assert all(validated(plain(compose(job))) for job in jobs)


def test_the_sweeps_ask_what_they_say(compose: Composer) -> None:
    configs = {
        name: [validated(plain(compose(job))) for job in jobs_of(compose, [f"+sweep={name}"])]
        for name in ("thresholds", "group_shape", "selected_vs_random", "probes_per_task")
    }
    assert len(configs["thresholds"]) == 12
    assert {c.group.size * c.group.groups_per_update for c in configs["group_shape"]} == {64}
    assert {(c.selection.pool, c.selection.seed) for c in configs["selected_vs_random"]} == {
        (pool, seed) for pool in ("selected", "random", "all") for seed in range(1, 9)
    }
    assert [c.probe.attempts for c in configs["probes_per_task"]] == [4, 8, 16, 32]


def test_conf_has_no_file_that_nothing_reads() -> None:
    files = {path.relative_to(CONF) for path in CONF.rglob("*") if path.is_file()}
    known = {Path(group) / f"{option}.yaml" for group, option in OPTIONS}
    known |= {Path("sweep") / path.name for path in files if path.parent == Path("sweep")}
    assert files - known == {Path("config.yaml"), Path("hydra/job_logging/tbexp.yaml")}


def at(values, key: str):
    for part in key.split("."):
        if part not in values and key.startswith("training.verl."):  # its keys are verl's
            return None
        values = values[part]
    return values


def test_the_published_prices_follow_from_the_published_figures(compose: Composer) -> None:
    published = load_published()
    attempts, models = published["protocol"]["attempts"], published["models"]
    campaigns = {
        name: model.get("campaign_cost_usd") or model["cost_per_reliable_task_usd"] * model["tasks_passed_every_time"]
        for name, model in models.items()
        if "cost_per_reliable_task_usd" in model
    }
    prices = validated(plain(compose(["prices=published"]))).prices
    assert {name: price.attempt for name, price in prices.models.items()} == {
        name: pytest.approx(usd / attempts, abs=5e-7) for name, usd in campaigns.items()
    }
    assert all(price.by_attempt for price in prices.models.values()) and prices.gpu_hour_usd == 0
