"""What composing keeps for the process shows nowhere in what is composed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException
from omegaconf import Container, DictConfig, OmegaConf

from tbexp.config import compose as composing
from tbexp.config.compose import Composer, opened, plain
from tbexp.config.folders import conf_folder

CHAT = ["policy=chat", "policy.endpoint.base_url=http://localhost/v1", "policy.endpoint.model=m"]


@pytest.fixture(scope="module")
def compose() -> Iterator[Composer]:
    with opened(conf_folder()) as composer:
        yield composer


def test_one_that_is_opened_within_another_leaves_it_as_it_was() -> None:
    with opened(conf_folder()) as outer:
        with opened(conf_folder()) as inner:
            assert plain(inner(["topology=gpu1_small"]))["topology"]["device"] == "cuda"
        assert plain(outer(["seed=7"]))["seed"] == 7
        with pytest.raises(ZeroDivisionError), opened(conf_folder()):
            raise ZeroDivisionError
        assert plain(outer(["seed=8"]))["seed"] == 8


def nodes(node: Any, where: str = "") -> Iterator[tuple[str, Any, Any, Any]]:
    """Of every node what decides how it can be changed: its flags and types."""
    data = node._metadata
    yield where, dict(data.flags or {}), data.ref_type, data.object_type
    if isinstance(node, Container) and not (node._is_none() or node._is_missing() or node._is_interpolation()):
        for key in node if isinstance(node, DictConfig) else range(len(node)):
            yield from nodes(node._get_node(key), f"{where}.{key}")


def outcome(call: Any, lines: list[str], *, multirun: bool) -> Any:
    try:
        made = call(lines, multirun=multirun)
    except (HydraException, ValueError) as error:
        return type(error), str(error), repr(error.__cause__)
    return OmegaConf.to_container(made), list(nodes(made))


@pytest.mark.parametrize(
    ("lines", "multirun"),
    [
        ([], False),
        (["seed=3", "hydra.run.dir=here", "group=one", "stages=[probe,select]"], False),
        ([*CHAT, "experiment=smoke", "~judge", "seed=${group.size}"], False),
        (["+optimizer.q=1", "~optimizer.lr", "++optimizer.more={a: 1}", "judge.answers.refund=true"], False),
        (["group={size: 4}", "+group={size: 8}", "+hydra.run.q=1", "hydra.sweep.dir=there"], False),
        (["hydra.job.name=x", "hydra.job.config.override_dirname.exclude_keys=[seed]", "seed=2"], False),
        (["hydra/job_logging=none", "seed=2"], False),
        (["seed=1,2", "group=one,laptop", "optimizer.lr=1", "hydra.sweep.dir=there", "experiment=smoke"], True),
        (["+sweep=thresholds", "hydra/launcher=basic", "seed=range(1,4)"], True),
        (["seed=1,2"], False),
        (["+optimizer.lr=1"], False),
        (["polcy=chat"], False),
        (["hydra.run.dirr=2"], False),
        (["group=nope"], False),
        (["foo@bar=x"], False),
        (["++group=one"], False),
        (["~launchr"], False),
        (["group.size=[1"], False),
    ],
)
def test_setting_values_in_a_copy_composes_what_hydra_composes_from_the_files(
    compose: Composer, lines: list[str], multirun: bool
) -> None:
    anew = Composer(compose.loader, conf_folder())
    assert outcome(anew, lines, multirun=multirun) == outcome(compose.from_files, lines, multirun=multirun)


def test_options_are_read_once_for_all_the_values_that_are_set(
    compose: Composer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(composing, "_OF_CHOICES", {})
    read: list[list[str]] = []

    def from_files(self: Composer, lines: list[str], **more: bool) -> DictConfig:
        read.append(list(lines))
        return real(self, lines, **more)

    real = Composer.from_files
    monkeypatch.setattr(Composer, "from_files", from_files)
    for number, folder in enumerate((tmp_path, tmp_path.parent)):
        monkeypatch.chdir(folder)  # as another command in the same process
        made = Composer(compose.loader, conf_folder())([f"seed={number}", "group=one"])
        assert (made.seed, made.hydra.runtime.cwd) == (number, os.getcwd())  # noqa: PTH109
        assert made.hydra.overrides.task == [f"seed={number}", "group=one"]
    assert read == [["group=one"]]


def test_what_is_done_to_a_composed_config_is_seen_by_nobody_else(compose: Composer) -> None:
    made = Composer(compose.loader, conf_folder())(["seed=7"])
    OmegaConf.update(made, "optimizer.lr", 7.0)
    again = Composer(compose.loader, conf_folder())(["seed=7"])
    assert plain(made)["optimizer"]["lr"] == 7.0 != plain(again)["optimizer"]["lr"]
