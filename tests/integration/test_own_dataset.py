"""tbexp on a dataset outside the package, with an OpenAI-compatible endpoint as the policy: what it leaves, and what it
does about an endpoint or a server that fails.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml


def unchanging(place: Any) -> dict[Path, bytes]:
    """What a finished run keeps as it is: all but logs, the tracker's files, and the seconds in the manifest."""
    files = [
        *(place.run_dir / "select").rglob("*"),
        *(place.run_dir / "report").rglob("*"),
        *place.folder.glob("stages/**/*"),
    ]
    files += [place.run_dir / "config.yaml", place.run_dir / "overrides.txt"]
    return {file: file.read_bytes() for file in files if file.is_file()}


@pytest.fixture(scope="module")
def again(unbroken: Any, new_place: Callable[[], Any]) -> Any:
    """The same command once more: its ending, its requests, and the selection's files before it."""
    place, *_ = unbroken
    files = unchanging(place)
    place.gardener.quiet()
    return place.run("tracking=mlflow"), place.gardener.count, files


def test_the_run_ends_well_and_says_what_it_found(unbroken: Any) -> None:
    place, first, _ = unbroken
    assert first.returncode == 0, first.stderr
    assert "probe: done, 48/48 attempts" in first.stderr and "Traceback" not in first.stderr
    assert f"mlflow ui --backend-store-uri sqlite:///{place.folder}/mlflow.db" in first.stderr


def test_pass_rates_differ_as_the_gardener_s_skills_do(unbroken: Any) -> None:
    place, *_ = unbroken
    counts = place.counts()
    assert len(counts) == 8 and {clean for clean, _ in counts.values()} == {6}
    assert counts["garden.py:test_beans"] == (6, 6) and counts["garden.py:test_figs"] == (6, 0)
    assert len({passed for _, passed in counts.values()}) >= 4
    assert {row["domain"] for row in place.rows()} == {"sowing", "asking", "watering", "refusing"}
    asked = [row for row in place.rows() if row["domain"] == "asking"]
    assert {row["turns"] for row in asked} == {3}  # question, call, farewell


def test_the_pool_is_what_the_counts_say(unbroken: Any) -> None:
    place, *_ = unbroken
    folder = place.run_dir / "select"
    tasks = {row["uid"]: row for row in map(json.loads, (folder / "tasks.jsonl").open())}
    for uid, (clean, passed) in place.counts().items():
        row = tasks[uid]
        assert (row["clean"], row["passed"], row["alpha"], row["beta"]) == (
            clean,
            passed,
            passed + 0.5,
            clean - passed + 0.5,
        )
        assert row["band"] == max(row["masses"], key=row["masses"].get)
    pool, train, validation = (
        yaml.safe_load((folder / f"{n}.yaml").read_text()) for n in ("pool", "train", "validation")
    )
    assert pool == sorted(uid for uid, row in tasks.items() if row["kept"])
    assert sorted(train + validation) == pool and validation
    assert "garden.py:test_beans" not in pool and "garden.py:test_figs" not in pool


def test_the_report_shows_the_run(unbroken: Any) -> None:
    place, *_ = unbroken
    page = (place.run_dir / "report" / "report.html").read_text()
    assert "<svg" in page or "data:image" in page
    for band in ("rarely", "hard", "medium", "often"):
        assert band in page


def test_mlflow_holds_the_run_once(unbroken: Any, again: Any) -> None:
    place, *_ = unbroken
    with sqlite3.connect(place.folder / "mlflow.db") as database:
        runs = database.execute("select name, status from runs").fetchall()
        metrics = dict(database.execute("select key, value from latest_metrics").fetchall())
        params = dict(database.execute("select key, value from params").fetchall())
    assert runs == [("run", "FINISHED")]
    clean, passed = (sum(column) for column in zip(*place.counts().values(), strict=True))
    assert metrics["probe/pass_rate"] == pytest.approx(passed / clean)
    assert metrics["probe/system_errors"] == 0 and metrics["select/pool_size"] == 6
    assert params["policy.endpoint.model"] == "m" and params["policy.endpoint.api_key_env"] == "GARDEN_KEY"
    assert list(place.folder.glob("mlflow-artifacts/**/report.html"))


def test_the_same_command_again_asks_nobody_and_says_so(unbroken: Any, again: Any) -> None:
    place, _, requests = unbroken
    second, more, files = again
    assert requests > 48 and more == 0
    assert second.returncode == 0
    for line in (
        "probe: done, 48/48 attempts, 0:00, finished before, nothing to do",
        "tasks kept, as before",
        "report: finished before",
    ):
        assert line in second.stderr
    assert unchanging(place) == files


def test_an_endpoint_that_often_fails_gives_the_same_counts_and_pool(
    unbroken: Any, new_place: Callable[[], Any]
) -> None:
    sound, *_ = unbroken
    place = new_place()

    def fails(number: int) -> Any:
        if number % 7 == 0:
            return (503, {"error": "busy"}) if number % 2 else (0, None)
        return (200, "no json") if number % 11 == 0 else None

    place.gardener.before = fails
    done = place.run()
    assert done.returncode == 0, done.stderr
    assert place.counts() == sound.counts() and place.selected() == sound.selected()
    assert place.gardener.count > len(place.rows()) + 60  # some requests were made again


def test_an_endpoint_that_always_fails_ends_the_run_and_is_recorded(new_place: Callable[[], Any]) -> None:
    place = new_place()
    settings = ("policy.endpoint.retries=1", "probe.attempts=3", "stages=[probe,select]")
    place.gardener.before = lambda number: (500, {"error": "the shed is on fire"})
    done = place.run(*settings)
    assert done.returncode == 3
    assert "policy_endpoint" in done.stderr and "the shed is on fire" in done.stderr
    assert "Traceback" not in done.stderr
    assert place.gardener.count <= 100  # 24 attempts x 4 tries x 2 requests would be 192
    rows = place.rows()
    assert rows and all(row["passed"] is None and row["system_error"]["kind"] == "policy_endpoint" for row in rows)
    assert not (place.run_dir / "select").exists()
    # The world is mended: the same command goes on.
    place.gardener.quiet()
    done = place.run(*settings)
    assert done.returncode == 0, done.stderr
    assert {clean for clean, _ in place.counts().values()} == {3}


def test_a_server_that_dies_is_the_world_s_failure_of_that_attempt_alone(new_place: Callable[[], Any]) -> None:
    place = new_place()
    done = place.run(
        *("tasks.candidates=[garden.py:test_beans,mole.py:test_mole]", "probe.attempts=3", "probe.retries=1"),
        "buckets.bands.nearly_always.keep=true",
    )
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert "3 of 6 probe attempts are system errors" in done.stderr
    assert place.counts() == {"garden.py:test_beans": (3, 3)}
    died = [row for row in place.rows() if row["uid"] == "mole.py:test_mole"]
    assert {row["system_error"]["kind"] for row in died} == {"server_crashed"}
    assert sorted((row["attempt"], row["tries"]) for row in died) == [(a, t) for a in range(3) for t in (1, 2)]


def test_a_run_that_keeps_nothing_shows_its_probe_in_a_report(unbroken: Any) -> None:
    place, *_ = unbroken
    done = place.run("hydra.run.dir=nothing", "buckets.min_band_mass=0.999")
    assert done.returncode == 2 and "no task of 8 is kept" in done.stderr and "Traceback" not in done.stderr
    page = (place.folder / "nothing" / "report" / "report.html").read_text()
    assert "The probe" in page and "48 attempts with a verdict" in page and "no task of 8 is kept" in page
    assert not (place.folder / "nothing" / "select").exists()
