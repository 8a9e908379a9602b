"""A stronger model screens the candidates in the same command: it goes first, and what it does not solve is never
probed. Adaptive probing on the same endpoint.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

FIGS = "garden.py:test_figs"  # that nobody can grow


def words(place: Any) -> list[str]:
    policy = "selection.reference.policy"
    return [
        f"{policy}.kind=chat",
        f"{policy}.endpoint.base_url={place.gardener.url}",
        f"{policy}.endpoint.model=big",
        f"{policy}.endpoint.api_key_env=BIG_KEY",
        f"{policy}.endpoint.retries=0",
        "selection.reference.attempts=3",
    ]


def reference_rows(place: Any) -> list[dict[str, Any]]:
    (file,) = place.folder.glob("stages/reference/*/attempts.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def screened(new_place: Callable[[], Any]) -> Any:
    """A run with a reference, killed while the reference was probed and started again: its place, both endings, and
    what each start asked.
    """
    place = new_place()
    place.environment["BIG_KEY"] = place.gardener.key = place.environment["GARDEN_KEY"]
    process: Any = None

    def before(number: int) -> None:
        if number == 30:
            process.kill()

    place.gardener.before = before
    process = place.start(*words(place))
    process.communicate(timeout=240)
    place.gardener.before = lambda number: None
    first = list(place.gardener.asked)
    place.gardener.asked = []
    done = place.run(*words(place))
    return place, process.returncode, first, done, list(place.gardener.asked)


def test_the_reference_goes_first_and_the_base_policy_never_attempts_what_it_does_not_solve(screened: Any) -> None:
    place, killed, first, done, asked = screened
    assert killed == -signal.SIGKILL and {model for model, _ in first} == {"big"}
    assert done.returncode == 0, done.stderr
    models = [model for model, _ in asked]
    assert models.index("m") == models.count("big")  # all of the reference's requests, then the base policy's
    assert ("big", "figs") in first + asked and ("m", "figs") not in asked
    assert {(row["uid"], row["attempt"]) for row in reference_rows(place)} == {
        (uid, n) for uid in {row["uid"] for row in reference_rows(place)} for n in range(3)
    }
    assert len(reference_rows(place)) == 24  # what was there before the kill was not made again
    assert len(place.rows()) == 42 and FIGS not in place.counts()


def test_the_screen_is_in_rows_progress_report_and_manifest(screened: Any) -> None:
    place, _, _, done, _ = screened
    rows = {row["uid"]: row for row in map(json.loads, (place.run_dir / "select" / "tasks.jsonl").open())}
    assert rows[FIGS]["reasons"] == ["reference_gate"] and rows[FIGS]["clean"] == 0
    assert not any("reference_gate" in row["reasons"] for uid, row in rows.items() if uid != FIGS)
    assert "probe reference: 24 attempts" in done.stderr and "1 screened out" in done.stdout
    manifest = json.loads((place.run_dir / "manifest.json").read_text())
    assert manifest["facts"]["reference"] == {
        **{"model": "big", "attempts": 24, "tasks": 8, "solvable": 7},
        "pass_rate": pytest.approx(21 / 24),
    }
    html = (place.run_dir / "report" / "report.html").read_text()
    assert "big solves 7 of 8 candidates" in html


def test_the_key_of_the_reference_is_nowhere_and_missing_is_told_before_anything_starts(screened: Any) -> None:
    place, *_ = screened
    key = place.environment["BIG_KEY"].encode()
    assert not [file for file in place.folder.rglob("*") if file.is_file() and key in file.read_bytes()]
    place.environment.pop("BIG_KEY")
    place.gardener.asked = []
    refused = place.run(*words(place), "hydra.run.dir=other")
    place.environment["BIG_KEY"] = key.decode()
    assert refused.returncode == 2 and not place.gardener.asked
    assert "selection.reference.policy.endpoint.api_key_env" in refused.stderr and "BIG_KEY" in refused.stderr
    place.gardener.key = "another"
    refused = place.run(*words(place), "hydra.run.dir=other", "seed=5")
    place.gardener.key = key.decode()
    assert refused.returncode == 2 and "selection.reference.policy.endpoint.api_key_env" in refused.stderr
    assert "selection.reference.policy.endpoint.api_key_env: 127.0.0.1 refuses the key in BIG_KEY" in refused.stderr


def test_another_screen_and_an_adaptive_probe_find_the_attempts_that_are_there(screened: Any) -> None:
    place, *_ = screened
    place.gardener.asked = []
    other = place.run(*words(place), "selection.reference.min_passed=0", "hydra.run.dir=loose")
    assert other.returncode == 0, other.stderr
    assert set(place.gardener.asked) == {("m", "figs")}
    place.gardener.asked = []
    adaptive = place.run(*words(place), "probe=adaptive", "probe.attempts=6", "hydra.run.dir=adaptive")
    assert adaptive.returncode == 0, adaptive.stderr
    assert not place.gardener.asked and "stopped early" in adaptive.stdout
    facts = json.loads((place.folder / "adaptive" / "manifest.json").read_text())["facts"]
    assert facts["probe"]["attempts"] + facts["probe"]["attempts_saved"] == 42 and facts["probe"]["attempts_saved"] > 0
    assert facts["reference"]["attempts"] < 24  # one pass is enough


def test_an_adaptive_probe_from_nothing_makes_just_the_prefixes_of_the_full_one(
    screened: Any, new_place: Callable[[], Any]
) -> None:
    whole, *_ = screened
    place = new_place()
    place.environment["BIG_KEY"] = "x"
    done = place.run(*words(place), "probe=adaptive", "probe.attempts=6")
    assert done.returncode == 0, done.stderr
    full = {(row["uid"], row["attempt"]): row["passed"] for row in whole.rows()}
    made = {(row["uid"], row["attempt"]): row["passed"] for row in place.rows()}
    assert made.items() <= full.items() and len(made) < 42
    counts = json.loads((place.run_dir / "manifest.json").read_text())["facts"]["probe"]
    assert counts["attempts"] == len(made)
    adaptive = (whole.folder / "adaptive" / "select" / "pool.yaml").read_bytes()
    assert (place.run_dir / "select" / "pool.yaml").read_bytes() == adaptive
