"""Against values computed by running the published selection code (golden/selection.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from selection_settings import buckets, selection

from tbexp.attempts import read_counts
from tbexp.config.schema import Reference
from tbexp.selection import BANDS, posterior, probability_above, select, write_selection
from tbexp.selection.posterior import PUBLISHED_NAMES, VALUES
from tbexp.selection.split import rank, stable_seed, stratum_of

GOLDEN = Path(__file__).parent / "golden"
EXPECTED = json.loads((GOLDEN / "selection.json").read_text())


@pytest.mark.parametrize("case", EXPECTED["count_vectors"], ids=lambda c: f"{c['k']} of {c['n']}")
def test_posterior_band_interval_value_priority_and_stratum(case: dict[str, Any]) -> None:
    n, k = case["n"], case["k"]
    post = posterior([n], [k])
    masses = dict(zip(BANDS, post.masses[0], strict=True))
    for band in BANDS:
        assert masses[band] == pytest.approx(case["posterior_band_masses"][PUBLISHED_NAMES[band]], abs=1e-9)
    band = BANDS[post.band[0]]
    assert PUBLISHED_NAMES[band] == case["difficulty"]
    assert masses[band] == pytest.approx(case["difficulty_mass"], abs=1e-9)
    assert (post.alpha[0], post.beta[0]) == (case["posterior_alpha"], case["posterior_beta"])
    assert [post.low[0], post.high[0]] == pytest.approx(case["credible_interval"], abs=1e-9)
    assert VALUES[post.value[0]] == case["training_value"]
    assert post.priority[0] == case["priority_score"]
    assert stratum_of(case["difficulty"], case["training_value"], n, k) == case["stratum"]


def test_probability_above_a_threshold() -> None:
    for case in EXPECTED["probability_above"]:
        found = probability_above([case["n"]], [case["k"]], case["threshold"])[0]
        assert found == pytest.approx(case["value"], abs=1e-9), case


def test_ranking_hash() -> None:
    for case in EXPECTED["stable_seed"]:
        assert stable_seed(case["seed"], case["key"]) == case["value"]
    for case in EXPECTED["rank"]:
        assert rank(case["seed"], case["key"], case["uid"]) == case["value"]


def test_the_published_pool_without_reference(tmp_path: Path) -> None:
    run = EXPECTED["runs"][0]
    chosen = select(read_counts([GOLDEN / "p_small.jsonl"]), buckets=buckets(), selection=selection(), group_size=8)
    folder = write_selection(tmp_path / "select", chosen)
    assert (folder / "pool.yaml").read_text() == run["outputs"]["selected.yaml"]
    _same_rows(chosen, run)
    assert chosen.removed == {"difficulty_not_retained": 6, "insufficient_clean_runs": 1}


def test_the_published_split_with_reference_and_exclusions(tmp_path: Path) -> None:
    run = EXPECTED["runs"][1]
    chosen = select(
        read_counts([GOLDEN / "p_small.jsonl", GOLDEN / "p_small_b.jsonl"]),
        buckets=buckets(keep=("hard", "medium", "often", "nearly_always")),
        selection=selection(
            min_clean=4,
            exclude=str(GOLDEN / "excl_list.yaml"),
            validation_fraction=0.34,
            seed=7,
            reference=Reference(min_clean=4, min_passed=2),
        ),
        group_size=8,
        reference=read_counts([GOLDEN / "r_small.jsonl"]),
    )
    folder = write_selection(tmp_path / "select", chosen)
    assert (folder / "train.yaml").read_text() == run["outputs"]["train.yaml"]
    assert (folder / "validation.yaml").read_text() == run["outputs"]["test.yaml"]
    assert yaml.safe_load((folder / "pool.yaml").read_text()) == sorted(chosen.train + chosen.validation)
    _same_rows(chosen, run)


def _same_rows(chosen: Any, run: dict[str, Any]) -> None:
    expected = {row["uid"]: row for row in map(json.loads, run["outputs"]["aggregates.jsonl"].splitlines())}
    excluded = {"excluded"}
    compared = [row for row in chosen.rows if not excluded & set(row.reasons) and row.clean]
    assert [row.uid for row in compared] == list(expected)
    for row in compared:
        golden = expected[row.uid]
        assert (row.clean, row.passed, row.failed, row.system_errors) == (
            golden["clean_runs"],
            golden["successes"],
            golden["failures"],
            golden["system_errors"],
        )
        assert list(row.reasons) == golden["rejection_reasons"]
        assert row.kept == golden["eligible"]
        assert PUBLISHED_NAMES[row.band] == golden["difficulty"]
        assert row.training_value == golden["training_value"]
        assert row.priority == golden["priority_score"]
        assert list(row.interval) == pytest.approx(golden["credible_interval"], abs=1e-9)
        for band in BANDS:
            assert row.masses[band] == pytest.approx(golden["posterior_band_masses"][PUBLISHED_NAMES[band]], abs=1e-9)
