"""Gates, their reasons, and the files."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from selection_settings import buckets, selection

from tbexp.attempts import Counts
from tbexp.config.schema import Reference
from tbexp.errors import UserError
from tbexp.selection import Selection, read_exclusions, read_tasks, select, write_selection

COUNTS = Counts.of(
    {
        "a.py:zero": (8, 0, 0),
        "a.py:hard": (8, 2, 1),
        "a.py:half": (8, 4, 0),
        "a.py:often": (8, 6, 0),
        "b.py:always": (8, 8, 0),
        "b.py:few": (2, 1, 6),
        "b.py:never_ran": (0, 0, 0),
        "b.py:hard": (8, 3, 0),
    }
)


def choose(counts: Counts = COUNTS, **more: Any) -> Selection:
    settings = {"buckets": buckets(), "selection": selection(), "group_size": 8, **more}
    return select(counts, **settings)


def reasons(chosen: Selection) -> dict[str, tuple[str, ...]]:
    return {row.uid: row.reasons for row in chosen.rows if row.reasons}


def test_every_task_gets_a_row_and_the_removed_ones_their_reasons() -> None:
    chosen = choose()
    assert [row.uid for row in chosen.rows] == list(COUNTS.uids)
    assert reasons(chosen) == {
        "a.py:zero": ("difficulty_not_retained",),
        "b.py:always": ("difficulty_not_retained",),
        "b.py:few": ("insufficient_clean_runs",),
        "b.py:never_ran": ("insufficient_clean_runs",),
    }
    assert chosen.pool == ("a.py:half", "a.py:hard", "a.py:often", "b.py:hard")
    assert chosen.removed == {"insufficient_clean_runs": 2, "difficulty_not_retained": 2}
    assert chosen.bands == {"rarely": 1, "hard": 3, "medium": 1, "often": 1, "nearly_always": 1}


def test_excluded_and_benchmark_tasks_and_their_copies_meet_no_further_gate() -> None:
    chosen = choose(
        selection=selection(exclude=["a.py:hard", "not.there:1"]),
        benchmark=frozenset({"b.py:always"}),
        content_hashes={"a.py:hard": "h1", "b.py:hard": "h1", "a.py:half": "h2"},
    )
    assert reasons(chosen) == {
        "a.py:hard": ("excluded",),
        "a.py:zero": ("difficulty_not_retained",),
        "b.py:always": ("benchmark",),
        "b.py:hard": ("duplicate_of_excluded",),
        "b.py:few": ("insufficient_clean_runs",),
        "b.py:never_ran": ("insufficient_clean_runs",),
    }


def test_of_tasks_with_equal_content_the_first_that_passes_the_gates_stays() -> None:
    chosen = choose(content_hashes={"a.py:zero": "h", "a.py:hard": "h", "b.py:hard": "h"})
    assert "a.py:hard" in chosen.pool
    assert reasons(chosen)["b.py:hard"] == ("duplicate",)


def test_a_band_needs_its_mass() -> None:
    chosen = choose(buckets=buckets(min_band_mass=0.6))
    assert reasons(chosen)["a.py:half"] == ("band_mass_too_small",)
    assert reasons(chosen)["b.py:hard"] == ("band_mass_too_small",)
    assert chosen.pool == ("a.py:hard", "a.py:often")


def test_selection_by_signal_ignores_bands() -> None:
    chosen = choose(buckets=buckets(by="signal", min_mixed_probability=0.8))
    assert all(row.kept == (row.mixed_probability >= 0.8 and row.clean >= 3) for row in chosen.rows)
    assert reasons(chosen)["b.py:always"] == ("too_little_signal",)


@pytest.mark.parametrize(
    ("gate", "solved"),
    [
        (Reference(), {"a.py:hard", "b.py:hard", "a.py:half"}),
        (Reference(min_passed=2), {"b.py:hard", "a.py:half"}),
        (Reference(min_clean=4), {"b.py:hard", "a.py:half"}),
        (Reference(min_passed=0, min_clean=3, threshold=0.4, probability=0.6), {"b.py:hard", "a.py:half"}),
    ],
)
def test_the_reference_must_show_that_a_task_can_be_solved(gate: Reference, solved: set[str]) -> None:
    reference = Counts.of(
        {"a.py:hard": (3, 1, 0), "b.py:hard": (8, 4, 0), "a.py:half": (8, 8, 0), "a.py:often": (8, 0, 0)}
    )
    chosen = choose(selection=selection(reference=gate), reference=reference)
    assert set(chosen.pool) == solved
    assert reasons(chosen)["a.py:often"] == ("reference_gate",)
    assert reasons(chosen)["a.py:zero"] == ("difficulty_not_retained", "reference_gate")


def test_a_reference_threshold_without_its_probability_is_refused() -> None:
    with pytest.raises(UserError, match=r"set selection\.reference\.probability"):
        choose(selection=selection(reference=Reference(threshold=0.5)), reference=COUNTS)


def test_an_empty_pool_says_which_gate_removed_how_many() -> None:
    with pytest.raises(UserError) as caught:
        choose(selection=selection(min_clean=9))
    text = str(caught.value)
    assert (
        "no task of 8 is kept" in text and "8 insufficient clean runs" in text and "2 difficulty not retained" in text
    )
    assert "lower selection.min_clean" in text


def test_a_pool_of_one_cannot_be_split() -> None:
    with pytest.raises(UserError, match="cannot be split"):
        choose(Counts.of({"a": (8, 4, 0)}))


def test_where_every_file_holds_one_task_the_pool_is_split_as_a_whole() -> None:
    chosen = choose(Counts.of({f"{i}.yaml:{i}": (8, 4, 0) for i in range(10)}))
    assert (len(chosen.train), len(chosen.validation)) == (8, 2)


@pytest.mark.parametrize(
    ("text", "found"),
    [("- a\n- b\n", {"a", "b"}), ('["a"]', {"a"}), ("uids: [a, b]", {"a", "b"}), ("[]", set())],
)
def test_exclusion_files(tmp_path: Path, text: str, found: set[str]) -> None:
    file = tmp_path / "exclude.yaml"
    file.write_text(text)
    assert read_exclusions(str(file)) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- a\n", "more than once"),
        ("uids: [a]\nmore: 1", "no list of uids"),
        ("- 1\n", "no list of uids"),
        ("", "no list of uids"),
        ("a: [", "neither YAML nor JSON"),
    ],
)
def test_bad_exclusion_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "exclude.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        read_exclusions(str(file))
    assert str(file) in str(caught.value)


def test_the_files_hold_the_decision_and_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    folder = write_selection(tmp_path / "one", choose())
    again = write_selection(tmp_path / "two", choose(Counts.of(dict(reversed(COUNTS.as_dict().items())))))
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["manifest.json", "pool.yaml", "tasks.jsonl", "train.yaml", "validation.yaml"]
    for name in names:
        assert (folder / name).read_bytes() == (again / name).read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, sha in manifest["outputs"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == sha
    assert manifest["inputs"]["counts"] == COUNTS.digest()
    assert manifest["summary"]["pool"] == 4
    pool, train, validation = (
        yaml.safe_load((folder / f"{n}.yaml").read_text()) for n in ("pool", "train", "validation")
    )
    assert pool == sorted(pool) == sorted(train + validation)


@pytest.mark.parametrize(
    "uid", ["a.py:t", "a-b_c.2.yaml:x.y-z", "true", "1e3", "é.py:ü", "a: b", "x.py:#y", "'", "a\nb", "- z"]
)
def test_a_selector_file_is_what_yaml_writes(tmp_path: Path, uid: str) -> None:
    folder = write_selection(tmp_path, choose(Counts.of({uid: (8, 4, 0), "0": (8, 4, 0)})))
    text = (folder / "pool.yaml").read_text()
    assert text == yaml.safe_dump(sorted([uid, "0"]), default_flow_style=False, allow_unicode=True, width=10_000)


def test_a_task_row_has_the_documented_fields(tmp_path: Path) -> None:
    rows = read_tasks(write_selection(tmp_path, choose()))
    posterior = ["alpha", "beta", "masses", "band", "interval", "training_value", "priority", "mixed_probability"]
    decision = ["kept", "reasons"]
    assert list(rows[0]) == ["uid", "clean", "passed", "failed", "system_errors", *posterior, *decision]
    (row,) = [row for row in rows if row["uid"] == "b.py:hard"]
    assert (row["clean"], row["passed"], row["failed"], row["alpha"], row["beta"]) == (8, 3, 5, 3.5, 5.5)
    assert (row["band"], row["kept"], row["reasons"]) == ("hard", True, [])
    assert row["masses"]["hard"] == pytest.approx(0.5396, abs=1e-4)
    assert row["interval"] == pytest.approx([0.1190, 0.7052], abs=1e-4)
    assert 0.9 < row["mixed_probability"] < 1.0


def test_a_folder_that_cannot_be_written_is_the_users_to_fix_and_holds_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_selection(tmp_path / "file" / "select", choose())


def test_the_forecast_is_that_of_the_pool() -> None:
    chosen = choose(groups_per_update=18, seconds_per_attempt=60.0)
    kept = [row.mixed_probability for row in chosen.rows if row.kept]
    assert chosen.forecast.mixed_rate == pytest.approx(sum(kept) / len(kept))
    assert chosen.forecast.attempts_per_update == pytest.approx(18 * 8 / chosen.forecast.mixed_rate)
    assert not math.isinf(chosen.forecast.thrown_away_per_update)


MANY = Counts.of({f"{name}.py:t{i:02d}": (8, (i * 7 + len(name)) % 9, 0) for name in ("a", "bb") for i in range(40)})


def test_a_random_pool_is_as_large_as_the_selected_one_and_drawn_whatever_the_difficulty() -> None:
    chosen = choose(MANY)
    drawn = choose(MANY, selection=selection(pool="random"))
    assert len(drawn.pool) == len(chosen.pool) and drawn.pool != chosen.pool
    assert {row.band for row in drawn.rows if row.kept} > {row.band for row in chosen.rows if row.kept}
    assert drawn.removed == {"not_drawn": 80 - len(drawn.pool)}
    assert drawn.pool == choose(MANY, selection=selection(pool="random")).pool
    assert drawn.pool != choose(MANY, selection=selection(pool="random", seed=1)).pool


def test_a_larger_random_pool_contains_the_smaller_one_of_the_same_seed() -> None:
    small, large = (
        choose(MANY, selection=selection(pool="random"), buckets=buckets(keep=keep)).pool
        for keep in (("medium",), ("hard", "medium"))
    )
    assert set(small) < set(large)


@pytest.mark.parametrize("pool", ["random", "all"])
def test_only_the_difficulty_gates_do_not_hold_for_a_random_pool_and_for_all(pool: str) -> None:
    chosen = choose(
        buckets=buckets(keep=("medium", "nearly_always")),
        selection=selection(pool=pool, exclude=["a.py:hard"]),
        content_hashes={"a.py:half": "x", "a.py:often": "x"},
        reference=Counts.of({uid: (1, int(uid != "b.py:hard"), 0) for uid in COUNTS.uids}),
    )
    found = {uid: why for uid, why in reasons(chosen).items() if why != ("not_drawn",)}
    assert found == {
        "a.py:hard": ("excluded",),
        "a.py:often": ("duplicate",),
        "b.py:few": ("insufficient_clean_runs",),
        "b.py:hard": ("reference_gate",),
        "b.py:never_ran": ("insufficient_clean_runs",),
    }
    assert ("not_drawn" in chosen.removed) is (pool == "random")
