"""Addresses that a submission to Slurm refuses, since a node would ask itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tbexp.app import main
from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder
from tbexp.config.schema import Config
from tbexp.pipeline.preflight import addresses, asked_of_themselves

CHAT = ("policy=chat", "policy.endpoint.model=m", "stages=[probe,select]")
USER = ("user=chat", "user.endpoint.model=u")


def config(*words: str) -> Config:
    with opened(conf_folder()) as compose:
        return Config.model_validate(plain(compose(["launcher=slurm", *words])))


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ([*CHAT, "policy.endpoint.base_url=http://localhost:8000/v1"], ["policy.endpoint.base_url"]),
        ([*CHAT, "policy.endpoint.base_url=http://LOCALHOST/v1"], ["policy.endpoint.base_url"]),
        ([*CHAT, "policy.endpoint.base_url='http://[::1]:8000/v1'"], ["policy.endpoint.base_url"]),
        ([*CHAT, "policy.endpoint.base_url=http://0.0.0.0:8000/v1"], ["policy.endpoint.base_url"]),
        ([*CHAT, "policy.endpoint.base_url=http://127.0.1.1/v1"], ["policy.endpoint.base_url"]),
        ([*CHAT, "policy.endpoint.base_url=http://10.0.0.7:8000/v1"], []),
        ([*CHAT, "policy.endpoint.base_url=https://localhost.example.org/v1"], []),
        ([*CHAT, "policy.serve=vllm", "policy.vllm.model=w"], []),  # each job has its own
        ([*USER, "user.endpoint.base_url=http://127.0.0.1/v1"], ["user.endpoint.base_url"]),
        (
            ["judge=chat", "judge.endpoint.model=j", "judge.endpoint.base_url=http://localhost/v1"],
            ["judge.endpoint.base_url"],
        ),
        (["tracking.uri=http://127.0.0.1:5000"], ["tracking.uri"]),
        (["tracking.uri=http://127.0.0.1:5000", "tracking=none"], []),
        (["tracking.uri=sqlite:///127.0.0.1.db"], []),
        (["sandbox.kind=proxy"], ["sandbox.proxy.url"]),
        (["sandbox.kind=openenv", "sandbox.environment.url=http://localhost:8000"], ["sandbox.environment.url"]),
        (["sandbox.search=external"], []),
        (["sandbox.kind=proxy", "stages=[select,report]"], []),  # nobody asks
        (["sandbox.kind=proxy", "launcher.check_endpoints=false"], []),  # each node has one
        (["sandbox.kind=proxy", "tracking.uri=http://localhost:1", "launcher=local"], []),
    ],
)
def test_an_address_that_means_the_machine_that_asks_is_told_of_jobs_on_slurm(
    words: list[str], keys: list[str]
) -> None:
    found = asked_of_themselves(config(*words))
    assert [problem.where for problem in found] == keys
    assert all("asks itself" in problem.what and "check_endpoints=false" in problem.fix for problem in found)


def test_what_is_asked_is_what_others_have_started() -> None:
    asked = config(*CHAT, *USER, "policy.endpoint.base_url=http://a/v1", "user.endpoint.base_url=http://b/v1")
    assert addresses(asked) == {"policy.endpoint.base_url": "http://a/v1", "user.endpoint.base_url": "http://b/v1"}


def test_a_submission_refuses_such_an_address_and_a_plan_lists_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["experiment=smoke", "launcher=slurm", *CHAT, "policy.endpoint.base_url=http://localhost:9/v1"]
    told = "policy.endpoint.base_url: a node that asks http://localhost:9/v1 asks itself"
    assert main([*words, "dry_run=true"]) == 0
    assert told in " ".join(capsys.readouterr().out.split())
    assert main(words) == 2
    said = capsys.readouterr().err
    assert told in said and "nothing can be reached" not in said and not list(tmp_path.rglob("jobs.json"))
