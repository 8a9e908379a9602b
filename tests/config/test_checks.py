"""Cross-checks: each names the values, and the key to change."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tbexp.config.addresses import address_problems, host_fault
from tbexp.config.checks import check, key_names
from tbexp.config.compose import defaults_of, opened, plain, run_id_of
from tbexp.config.folders import conf_folder
from tbexp.config.here import check_here, packages
from tbexp.config.schema import Config
from tbexp.config.secrets import planted, provide
from tbexp.config.validate import validate

with opened(conf_folder()) as compose:
    SHIPPED = plain(compose([]))


# What the cases below count on, whatever the default experiment is tuned to.
FIXED = {"group__size": 8, "group__groups_per_update": 8, "probe__attempts": 8, "optimizer__lr": 3e-4}
FIXED |= {"training__steps": 40, "training__mini_batches": 1, "training__max_prompt_tokens": None}


def config(**changes: Any) -> Config:
    """The default config with dotted keys changed (`__` for the dot)."""
    values = copy.deepcopy(SHIPPED)
    changes = FIXED | changes
    for key, value in changes.items():
        node = values
        *parents, leaf = key.split("__")
        for part in parents:
            node = node[part]
        node[leaf] = value
    return Config.model_validate(values)


GPU = {"topology__device": "cuda", "topology__rollout": "vllm"}
CHAT = {"policy__kind": "chat", "policy__endpoint__base_url": "http://localhost/v1", "policy__endpoint__model": "m"}


REFERENCE = {
    "selection__reference__policy__kind": "chat",
    "selection__reference__policy__endpoint__base_url": "http://x",
    "selection__reference__policy__endpoint__model": "big",
}


SERVED = {"policy__kind": "chat", "policy__serve": "vllm", "policy__vllm__model": "weights", "stages": ["probe"]}
SERVED_REFERENCE = {
    "selection__reference__policy__kind": "chat",
    "selection__reference__policy__serve": "vllm",
    "selection__reference__policy__vllm__model": "big",
}


@pytest.mark.parametrize(
    ("changes", "where", "parts"),
    [
        ({"policy__serve": "vllm", "policy__kind": "scripted"}, "policy.serve", ["scripted"]),
        (
            {"policy__serve": "vllm", "policy__vllm__model": "w", "stages": ["evaluate"]},
            "policy.vllm.model",
            ["weights of `model`"],
        ),
        ({**SERVED, "policy__vllm__model": None}, "policy.vllm.model", ["no weights"]),
        (
            {**SERVED, "policy__endpoint__base_url": "http://localhost/v1"},
            "policy.endpoint.base_url",
            ["a server of its own", "http://localhost/v1"],
        ),
        ({**SERVED, **SERVED_REFERENCE}, "selection.reference.policy.vllm.port", ["8001", "both"]),
        ({"stages": ["serve"], "serve__upstream": "localhost:8000"}, "serve.upstream", ["localhost:8000"]),
        ({"stages": ["serve"], "serve__upstream": "http://h/v1?k=1"}, "serve.upstream", ["query"]),
        ({"stages": ["serve"], "serve__upstream": "http://h:0/v1"}, "serve.upstream", ["no valid port"]),
        (
            {**CHAT, "stages": ["probe"], "policy__endpoint__base_url": "http:///v1"},
            "policy.endpoint.base_url",
            ["'http:///v1' names no host"],
        ),
        (
            {"user__kind": "chat", "user__endpoint__model": "m", "user__endpoint__base_url": "http://h:80x/v1"},
            "user.endpoint.base_url",
            ["no valid port"],
        ),
        (
            {"judge__kind": "chat", "judge__endpoint__model": "m", "judge__endpoint__base_url": "https://:8000"},
            "judge.endpoint.base_url",
            ["no host"],
        ),
        (
            REFERENCE | {"selection__reference__policy__endpoint__base_url": "http://h:70000"},
            "selection.reference.policy.endpoint.base_url",
            ["no valid port"],
        ),
        ({"sandbox__kind": "proxy", "sandbox__proxy__url": "http://[::1/x"}, "sandbox.proxy.url", ["no host"]),
        (
            {"sandbox__kind": "openenv", "sandbox__environment__url": "http://", "stages": ["probe"]},
            "sandbox.environment.url",
            ["no host"],
        ),
        (
            {"sandbox__kind": "openenv", "stages": ["probe"]},
            "sandbox.environment.url",
            ["null", "environment server"],
        ),
        (
            {"sandbox__kind": "openenv", "sandbox__environment__url": "http://h:1", "stages": ["serve"]},
            "sandbox.kind",
            ["serve", "backends of its own"],
        ),
        ({"stages": []}, "stages", ["no stage"]),
        ({"stages": ["probe", "probe"]}, "stages", ["probe", "twice"]),
        ({"stages": ["doctor", "probe"]}, "stages", ["doctor", "on its own"]),
        ({**CHAT}, "stages", ["train", "chat", "policy=local"]),
        ({"policy__kind": "scripted"}, "stages", ["train", "scripted"]),
        (
            {"launcher__kind": "slurm", "launcher__minutes": 10, "launcher__signal_seconds": 600},
            "launcher.signal_seconds",
            ["600 s", "10 minutes"],
        ),
        (
            {"launcher__kind": "slurm", "launcher__gpus_per_node": 4, "topology__gpus_per_node": 8},
            "launcher.gpus_per_node",
            ["4 GPUs", "topology.gpus_per_node is 8"],
        ),
        ({"evaluation__policies": []}, "evaluation.policies", ["no policy"]),
        ({"buckets__bands__hard__upper": 0.05}, "buckets.bands.hard.upper", ["0.05", "0.08", "out of order"]),
        ({"buckets__bands__often__upper": 0.6}, "buckets.bands.often.upper", ["0.6", "medium"]),
        ({"buckets__bands__often__upper": 1.0}, "buckets.bands.often.upper", ["1.0", "0 to 1"]),
        ({"buckets__bands__often__upper": None}, "buckets.bands.often.upper", ["no upper edge"]),
        ({"buckets__bands__nearly_always__upper": 0.95}, "buckets.bands.nearly_always.upper", ["null"]),
        ({f"buckets__bands__{b}__keep": False for b in ("hard", "medium", "often")}, "buckets.bands", ["empty"]),
        ({"selection__min_clean": 9}, "selection.min_clean", ["9", "8", "probe.attempts"]),
        ({"selection__reference__threshold": 0.5}, "selection.reference.probability", ["threshold"]),
        ({"probe__kind": "adaptive", "probe__least": 9}, "probe.least", ["9", "probe.attempts, which is 8"]),
        ({"probe__kind": "adaptive", "probe__max_attempts": 7}, "probe.max_attempts", ["7", "which is 8"]),
        (REFERENCE | {"selection__reference__rows": ["a"]}, "selection.reference.rows", ["its policy too"]),
        (REFERENCE | {"probe__rows": ["a"]}, "selection.reference.policy.kind", ["selection.reference.rows="]),
        (REFERENCE | {"selection__reference__min_passed": 5}, "selection.reference.min_passed", ["5 of 4"]),
        (
            {"selection__reference__policy__kind": "chat", "selection__reference__policy__endpoint__model": "m"},
            "selection.reference.policy.endpoint.base_url",
            ["no address"],
        ),
        (
            REFERENCE | {"selection__reference__policy__spending_cap_usd": 2.0},
            "selection.reference.policy.spending_cap_usd",
            ["2.0 USD", "'big'"],
        ),
        ({"user__kind": "chat", "user__endpoint__model": "m"}, "user.endpoint.base_url", ["no address"]),
        ({"judge__kind": "chat", "judge__endpoint__base_url": "http://x"}, "judge.endpoint.model", ["no model"]),
        ({**CHAT, "stages": ["probe"], "policy__endpoint__base_url": "x:1"}, "policy.endpoint.base_url", ["http"]),
        (
            {
                **{"user__kind": "chat", "user__endpoint__base_url": "http://x", "user__endpoint__model": "m"},
                "user__spending_cap_usd": 2.0,
            },
            "user.spending_cap_usd",
            ["2.0 USD", "no price", "'m'"],
        ),
        (
            {
                **{"user__kind": "chat", "user__endpoint__base_url": "http://x", "user__endpoint__model": "m"},
                **{"user__spending_cap_usd": 2.0, "prices__models": {"m": {"attempt": 1.0}}},
            },
            "user.spending_cap_usd",
            ["no price of tokens"],
        ),
        ({"model__kind": "folder"}, "model.path", ["no folder"]),
        ({"model__tiny__hidden": 130}, "model.tiny.hidden", ["130", "4 heads"]),
        ({"model__tiny__kv_heads": 3}, "model.tiny.kv_heads", ["4 heads", "3"]),
        (
            {"policy__sampling__max_tokens": 64, "model__max_context": 64},
            "policy.sampling.max_tokens",
            ["64", "model.max_context"],
        ),
        (
            {"training__max_prompt_tokens": 4000, "model__max_context": 2048},
            "training.max_prompt_tokens",
            ["4000", "2048"],
        ),
        ({**GPU, "topology__gpus_per_node": 6, "topology__sequence_parallel": 4}, "topology.sequence_parallel", ["6"]),
        (
            {**GPU, "topology__gpus_per_node": 8, "topology__rollout_tensor_parallel": 3},
            "topology.rollout_tensor_parallel",
            ["8 is not a multiple of 3"],
        ),
        (
            {
                **GPU,
                **{"topology__nodes": 3, "topology__gpus_per_node": 8, "topology__sequence_parallel": 4},
                "group__groups_per_update": 17,
            },
            "group.groups_per_update",
            ["17 x 8 = 136", "not a multiple of 6"],
        ),
        ({"training__mini_batches": 3}, "training.mini_batches", ["8", "3"]),
        (
            {**GPU, "topology__gpus_per_node": 8, "group__groups_per_update": 3, "training__mini_batches": 3}
            | {"group__size": 8, "topology__nodes": 3},
            "training.mini_batches",
            ["1 x 8", "24"],
        ),
        ({"topology__rollout": "vllm"}, "topology.rollout", ["vllm", "cpu", "transformers"]),
        ({"tasks__root": "data"}, "tasks.held_out", ["held out"]),
        ({"tasks__root": ""}, "tasks.root", ["no folder"]),
        ({"sandbox__kind": "proxy", "sandbox__proxy__url": "x:1"}, "sandbox.proxy.url", ["'x:1'", "http"]),
        ({"sandbox__kind": "proxy", "sandbox__search": "embedded"}, "sandbox.search", ["embedded", "proxy"]),
    ],
)
def test_what_cannot_work_is_told_with_its_numbers(changes: dict[str, Any], where: str, parts: list[str]) -> None:
    found = [problem for problem in check(config(**changes)) if problem.where.startswith(where)]
    assert len(found) == 1, check(config(**changes))
    assert all(part in str(found[0]) for part in parts), str(found[0])


@pytest.mark.parametrize(
    ("changes", "serve"),
    [
        ({}, "none"),
        ({"topology__device": "cuda", "topology__rollout": "vllm", "topology__dtype": "bfloat16"}, "vllm"),
        ({"topology__device": "cuda", "topology__rollout": "vllm", "policy__serve": "none"}, "none"),
        ({"topology__device": "cuda", "topology__rollout": "vllm", "policy__kind": "chat"}, "none"),
        ({"policy__serve": "vllm"}, "vllm"),
    ],
)
def test_local_weights_are_generated_by_what_generates_in_training(changes: dict[str, Any], serve: str) -> None:
    assert config(**{"policy__serve": "auto"} | changes).policy.serve == serve


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        (GPU, True),
        (GPU | {"topology__attention": "sdpa"}, False),
        (GPU | {"launcher__kind": "slurm"}, False),
        (GPU | {"stages": ["probe"]}, False),
        ({}, False),
    ],
)
def test_flash_attention_is_missed_where_a_training_here_would_import_it(
    changes: dict[str, Any], missed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "flash_attn" else object())
    told = [problem for problem in packages(config(**changes)) if problem.where == "topology.attention"]
    assert [problem.what for problem in told] == (
        ["flash-attn is not installed, and topology.attention=flash_attention_2 needs it"] if missed else []
    )


def test_a_server_that_is_started_needs_no_address_and_no_name() -> None:
    two = {"selection__reference__policy__vllm__port": 8002}
    assert check(config(**SERVED)) == check(config(**SERVED, **SERVED_REFERENCE, **two)) == []
    assert check(config(**SERVED, **SERVED_REFERENCE, launcher__kind="slurm")) == []  # jobs take ports that are free


def test_a_server_for_others_serves_the_weights_that_are_named_also_where_attempts_have_one_of_their_own() -> None:
    assert not check(config(**GPU, policy__serve="vllm", policy__vllm__model="w", stages=["serve"]))


def test_the_default_config_has_no_problems() -> None:
    assert check(config()) == []


@pytest.mark.train  # an install that lacks nothing
@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"tasks__root": "nowhere"}, "tasks.root"),
        ({"tasks__root": ".", "tasks__held_out": "no.yaml"}, "tasks.held_out"),
        ({"model__kind": "folder", "model__path": "."}, "model.path"),
        ({"probe__rows": ["a.jsonl"]}, "probe.rows"),
        ({"evaluation__rows": ["a.jsonl"]}, "evaluation.rows"),
        ({"selection__reference__rows": ["a.jsonl"]}, "selection.reference.rows"),
        ({"selection__exclude": "a.yaml"}, "selection.exclude"),
        ({"sandbox__servers": "a.yaml"}, "sandbox.servers"),
        ({"launcher__secrets_file": "a"}, "launcher.secrets_file"),
        ({**CHAT, "policy__endpoint__api_key_env": "TBEXP_NO_SUCH_VARIABLE"}, "policy.endpoint.api_key_env"),
        (
            {"sandbox__kind": "proxy", "sandbox__proxy__api_key_env": "TBEXP_NO_SUCH_VARIABLE"},
            "sandbox.proxy.api_key_env",
        ),
        ({"store": "/dev/null/stages"}, "store"),
        ({"topology__nodes": 2}, "topology.nodes"),
    ],
)
def test_what_this_machine_lacks_is_told(
    changes: dict[str, Any], where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert [problem.where for problem in check_here(config(**changes), tmp_path / "run")] == [where]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.train  # an install that lacks nothing
def test_a_report_is_made_where_the_weights_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gone = {"model__kind": "folder", "model__path": "gone", "stages": ["report"]}
    assert check_here(config(**gone), tmp_path / "run") == []


@pytest.mark.train  # an install that lacks nothing
def test_a_secrets_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text("NAME=value\n")
    secrets.chmod(0o644)
    (problem,) = check_here(config(launcher__secrets_file=str(secrets)), tmp_path)
    assert "chmod 600" in problem.fix
    secrets.chmod(0o600)
    assert check_here(config(launcher__secrets_file=str(secrets)), tmp_path) == []


def test_on_a_cluster_a_key_comes_from_the_secrets_file_and_never_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = tmp_path / "secrets"
    secrets.touch(mode=0o600)
    secrets.write_text("# of the endpoint\nOTHER = x\n")
    changes = {**CHAT, "policy__endpoint__api_key_env": "MY_KEY", "launcher__kind": "slurm", "stages": ["probe"]}
    monkeypatch.setenv("MY_KEY", "exported")
    for file in (None, str(secrets)):
        (problem,) = check_here(config(**changes, launcher__secrets_file=file), tmp_path)
        assert problem.where == "policy.endpoint.api_key_env" and "launcher.secrets_file" in problem.fix
    secrets.write_text("export MY_KEY='from the file'\n")
    asked = config(**changes, launcher__secrets_file=str(secrets))
    assert check_here(asked, tmp_path) == []
    provide(asked.launcher.secrets_file, key_names(asked))
    assert os.environ["MY_KEY"] == "from the file" and "OTHER" not in os.environ


@pytest.mark.parametrize("launcher", ["local", "slurm"])
@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("MY_KEY=", "MY_KEY is empty"),
        ("MY_KEY='  '", "MY_KEY is empty"),
        ('export MY_KEY=""', "MY_KEY is empty"),
        ("MY_KEY=schlüssel", "what MY_KEY holds is no key"),
        ("MY_KEY=fine", ""),
    ],
)
def test_a_key_in_the_secrets_file_that_is_none_is_told_with_the_file_whatever_the_environment_has(
    line: str, wrong: str, launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = tmp_path / "secrets"
    secrets.touch(mode=0o600)
    secrets.write_text(f"{line}\n")
    monkeypatch.setenv("MY_KEY", "exported")
    changes = {**CHAT, "policy__endpoint__api_key_env": "MY_KEY", "launcher__kind": launcher, "stages": ["probe"]}
    found = check_here(config(**changes, launcher__secrets_file=str(secrets)), tmp_path)
    assert [problem.where for problem in found] == (["policy.endpoint.api_key_env"] if wrong else [])
    assert all(wrong in p.what and str(secrets) in p.what and "into that file" in p.fix for p in found), found
    assert "schlüssel" not in str(found)


@pytest.mark.parametrize(
    ("value", "wrong"), [(None, "no variable MY_KEY"), (" ", "MY_KEY is empty"), ("a\nb", "no key")]
)
def test_a_variable_that_holds_no_key_says_what_is_wrong_with_it(
    value: str | None, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("MY_KEY", raising=False)
    else:
        monkeypatch.setenv("MY_KEY", value)
    changes = {**CHAT, "policy__endpoint__api_key_env": "MY_KEY", "stages": ["probe"]}
    (problem,) = check_here(config(**changes), tmp_path)
    assert wrong in problem.what and "export MY_KEY=" in problem.fix


@pytest.mark.parametrize("stage", ["status", "cancel"])
def test_looking_at_jobs_needs_neither_secrets_nor_tasks_nor_a_place_to_write(stage: str, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text("KEY=value\n")
    secrets.chmod(0o644)
    for file in (secrets, tmp_path / "gone"):
        lacking = {"tasks__root": "nowhere", "probe__rows": ["gone.jsonl"], "store": "/dev/null/stages"}
        asked = config(**lacking, stages=[stage], launcher__secrets_file=str(file))
        assert check_here(asked, Path("/dev/null/run")) == []


@pytest.mark.parametrize("fault", ["it can be read by others", "it is not there", "a line is wrong"])
def test_a_secrets_file_that_cannot_be_used_is_one_problem_and_not_one_for_each_key_too(
    tmp_path: Path, fault: str
) -> None:
    secrets = tmp_path / "secrets"
    if fault != "it is not there":
        secrets.write_text("MY_KEY=x\n" if "others" in fault else "MY_KEY\n")
        secrets.chmod(0o644 if "others" in fault else 0o600)
    changes = {**CHAT, "policy__endpoint__api_key_env": "MY_KEY", "launcher__kind": "slurm", "stages": ["probe"]}
    (problem,) = check_here(config(**changes, launcher__secrets_file=str(secrets)), tmp_path)
    assert str(secrets) in str(problem) and "MY_KEY" not in str(problem)


@pytest.mark.train  # an install that lacks nothing
def test_a_line_of_the_secrets_file_that_is_wrong_is_not_repeated(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.touch(mode=0o600)
    secrets.write_text("quite-open-sesame\n")
    (problem,) = check_here(config(launcher__secrets_file=str(secrets)), tmp_path)
    assert problem.where == f"{secrets}:1" and "sesame" not in str(problem)


def test_a_key_that_is_not_used_by_the_stages_need_not_be_there(tmp_path: Path) -> None:
    unused = config(**CHAT, policy__endpoint__api_key_env="TBEXP_NO_SUCH_VARIABLE", stages=["select"])
    assert check_here(unused, tmp_path) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("policy.endpoint.api_key_env", "sk-0123456789abcdefghij"),
        ("policy.endpoint.api_key_env", "not a name"),
        ("policy.endpoint.base_url", "https://user:hidden@host/v1"),
        ("policy.endpoint.extra_body.api_key", "hidden"),
        ("training.verl.note", "Bearer 0123456789abcdef"),
        ("tracking.uri", "http://me:hidden@host:5000"),
        ("policy.endpoint.extra_body.headers.Authorization", "hidden"),
    ],
)
def test_what_looks_like_a_secret_is_refused_and_not_repeated(key: str, value: str) -> None:
    nested: Any = value
    for part in reversed(key.split(".")):
        nested = {part: nested}
    (problem,) = planted(nested)
    assert problem.where == key
    assert value not in str(problem) and "hidden" not in str(problem)


def test_numbers_that_are_no_secrets_pass() -> None:
    assert planted({"policy": {"sampling": {"max_tokens": 3}, "endpoint": {"api_key_env": "OPENAI_API_KEY"}}}) == []


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"stages": ["probe"]}, True),
        ({"force": ["probe"]}, True),
        ({"dry_run": True}, True),
        ({"launcher__name": "slurm", "launcher__kind": "slurm"}, True),
        ({"tracking__kind": "none"}, True),
        ({"store": "elsewhere"}, True),
        ({"optimizer__lr": 3e-4}, True),
        ({"seed": 2}, False),
        ({"optimizer__lr": 1e-4}, False),
        ({"buckets__bands__hard__upper": 0.41}, False),
        ({"training__steps": 41}, False),
    ],
)
def test_the_runs_folder_follows_from_what_decides_its_results(changes: dict[str, Any], same: bool) -> None:
    name, default = run_id_of(config(**changes)), run_id_of(config())
    assert name.startswith(f"seed{config(**changes).seed}-")
    assert (name == default) is same


def test_the_store_is_absolute_whatever_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert config().store == str(tmp_path / "outputs" / "stages")


def test_the_defaults_are_the_schemas() -> None:
    assert defaults_of(Config)["group"] == {"name": "???", "size": "???", "groups_per_update": "???"}
    assert defaults_of(Config)["policy"]["sampling"]["max_tokens"] == 128


@example({"store": "~nobody-has-this-name"})
@settings(max_examples=40)
@given(
    st.dictionaries(
        st.sampled_from(sorted(SHIPPED)), st.one_of(st.none(), st.text(), st.integers(), st.lists(st.integers()))
    )
)
def test_whatever_stands_in_a_config_ends_in_problems_that_name_a_key(wrong: dict[str, Any]) -> None:
    _, problems = validate({**SHIPPED, **wrong}, lambda: SHIPPED)
    assert all(problem.where for problem in problems)
    for key, value in wrong.items():
        if isinstance(SHIPPED[key], dict):
            assert any(problem.where.startswith(key) for problem in problems), (key, value, problems)


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        *((url, "") for url in ("http://h", "https://h.example:443/v1", "http://[::1]:8000/v1", "http://my_pod-1:1/")),
        *(
            (url, "names no host")
            for url in ("http://", "http:///v1", "http://:80", "http://a b/", "http://[::1", "http://?")
        ),
        *((url, "has no valid port") for url in ("http://h:0", "http://h:65536/v1", "http://h:x", "http://h:-1")),
    ],
)
def test_an_address_has_a_host_and_a_port_that_can_be_or_none(url: str, fault: str) -> None:
    assert host_fault(url) == fault
    problems = list(address_problems(url, "k"))
    assert [fault in problem.what for problem in problems] == ([True] if fault else [])


def test_of_user_and_password_in_an_address_nothing_is_repeated() -> None:
    (problem,) = address_problems("http://me:a/b@host", "k")
    assert "no valid port" in problem.what and "me:a" not in problem.what
