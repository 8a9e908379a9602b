"""Which node is blamed, and all-reduces between processes that stand for nodes."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbexp.cluster import network
from tbexp.cluster.network import Network
from tbexp.cluster.nodes import JobFailed, Nodes
from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder
from tbexp.config.schema import Config
from tbexp.pipeline.context import Context
from tbexp.pipeline.submit import Planned, spec_of


@given(st.integers(1, 12))
def test_in_a_tournament_each_meets_each_other_once_and_nobody_twice_in_a_round(count: int) -> None:
    rounds = network.pairings(list(range(count)))
    for pairs in rounds:
        met = [rank for pair in pairs for rank in pair]
        assert len(met) == len(set(met))
    pairs = [pair for one in rounds for pair in one]
    assert sorted(pairs) == [(a, b) for a in range(count) for b in range(a + 1, count)]


@pytest.mark.parametrize(
    ("failed", "out"),
    [
        ([], []),
        ([(0, 2), (1, 2)], [2]),
        ([(0, 1), (0, 2), (0, 3)], [0]),
        ([(0, 1)], [1]),  # they only fail each other: the later one
        ([(0, 3), (1, 3), (2, 3), (0, 1)], [1, 3]),
    ],
)
def test_the_nodes_that_have_to_go_are_blamed(failed: list[tuple[int, int]], out: list[int]) -> None:
    links = {(a, b): "refused" if (a, b) in failed else "" for a in range(4) for b in range(a + 1, 4)}
    assert network.blamed(links) == out


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(7, 9))))
def test_what_remains_has_no_failed_link(failed: set[tuple[int, int]]) -> None:
    out = set(network.blamed({pair: "x" for pair in failed}))
    assert all(out & set(pair) for pair in failed)


def test_the_interface_is_the_one_that_leads_to_the_first_node(monkeypatch: pytest.MonkeyPatch) -> None:
    assert network.interface_to("127.0.0.1") == "lo" and network.interface_to("no address") is None
    for name in network.INTERFACES:
        monkeypatch.delenv(name, raising=False)
    here = Network("cpu", 5.0)
    assert network.interface_variables(here, "127.0.0.1") == {name: "lo" for name in network.INTERFACES}
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    assert network.interface_variables(here, "127.0.0.1") == {"GLOO_SOCKET_IFNAME": "lo"}
    chosen = Network("cpu", 5.0, interface="eth7")
    assert network.interface_variables(chosen, "127.0.0.1") == {name: "eth7" for name in network.INTERFACES}


def ranks(count: int) -> list[Nodes]:
    return [Nodes("7", 7, 0, rank, ("localhost",) * count) for rank in range(count)]


def nothing() -> None:
    """Slurm has not asked for the end."""


@pytest.mark.train
def test_an_all_reduce_over_three_ranks_succeeds_and_says_nothing(tmp_path: Path) -> None:
    first, *others = ranks(3)
    setting = Network("cpu", 60.0)
    threads = [threading.Thread(target=network.follow, args=(node, tmp_path, setting, nothing)) for node in others]
    for thread in threads:
        thread.start()
    assert network.lead(first, tmp_path, setting, nothing) == {}
    for thread in threads:
        thread.join()
    assert sorted(file.name for file in tmp_path.glob("network-?-?.json")) == [
        f"network-0-{rank}.json" for rank in range(3)
    ]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    """Leads four nodes of which some pairs cannot talk; what comes out."""

    def lead(broken: set[int], *, whole: bool = True, silent: int | None = None) -> dict[str, str]:
        hosts = tuple(f"n{rank}" for rank in range(4))

        def told(number: int, groups: object, alive: list[int], *_: object) -> dict[int, str]:
            said = dict.fromkeys(alive, "" if number or whole else "reset by peer")
            for group in groups:  # type: ignore[attr-defined]
                if broken & set(group) and (
                    len(group) > 2 or 3 in broken or min(group) in broken or max(group) in broken
                ):
                    said |= dict.fromkeys(group, "timed out")
            said.pop(silent, None)
            return said

        monkeypatch.setattr(network, "round_of", told)
        return network.lead(Nodes("7", 7, 0, 0, hosts), tmp_path, Network("cpu", 1.0), nothing)

    return lead


def test_a_bad_node_is_named_with_whom_it_fails(answers: object, tmp_path: Path) -> None:
    assert answers({2}) == {"n2": "it fails with n0, n1, n3 (timed out)"}  # type: ignore[operator]
    assert json.loads((tmp_path / "network-4.json").read_text()) == {"groups": []}  # the others leave


def test_a_node_that_says_nothing_is_bad_itself(answers: object) -> None:
    assert answers(set(), silent=3) == {"n3": "it said nothing"}  # type: ignore[operator]


def test_a_failure_of_all_without_a_failed_pair_blames_nobody(answers: object) -> None:
    with pytest.raises(JobFailed, match="though each pair of them succeeds: n0: reset by peer"):
        answers(set(), whole=False)  # type: ignore[operator]


@pytest.mark.train
def test_a_peer_that_never_comes_is_told_within_the_deadline(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "network-1-at-0.json").write_text(json.dumps({"address": "127.0.0.1", "port": port}))
    said = network.all_reduce([0, 1], 1, ranks(2)[1], tmp_path, Network("cpu", 2.0), nothing)
    assert "Error" in said and "2000ms" in said.replace(" ", "")


@pytest.mark.parametrize(
    ("words", "device"),
    [
        ([], "cuda"),
        (["launcher.check_network=false"], None),
        (["topology=node8"], None),
        (["experiment=smoke", "topology.nodes=3"], "cpu"),
    ],
)
def test_the_network_is_tried_between_the_nodes_of_a_training(words: list[str], device: str | None) -> None:
    first = [] if any(word.startswith("experiment") for word in words) else ["experiment=q38_rlft"]
    with opened(conf_folder()) as compose:
        composed = plain(compose([*first, "launcher=slurm", "launcher.network_seconds=30.0", *words]))
    context = cast(Context, SimpleNamespace(config=Config.model_validate({**composed, "store": "/nowhere"})))
    for trains in (True, False):
        job = Planned("job", Path("x"), ({},), nodes=context.config.topology.nodes if trains else 1, trains=trains)
        (work,) = spec_of(context, job, [Path("plan")]).work
        assert work.network == (Network(device, 30.0) if device and trains else None)
