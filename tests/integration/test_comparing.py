"""What an entry of compare.runs means, and what is said about those that mean nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tbexp.app import main
from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder
from tbexp.config.schema import Config
from tbexp.config.validate import validated
from tbexp.errors import UserError
from tbexp.pipeline.comparing import FILES, Meant, place, resolve
from tbexp.tracking import open_archive, open_run
from tbexp.tracking.lookup import Archive, nested

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader:DeprecationWarning")

Make = Callable[..., Config]


@pytest.fixture(scope="module")
def make() -> Make:
    def config(*overrides: str) -> Config:
        with opened(conf_folder()) as compose:
            return validated(plain(compose(["stages=[compare]", *overrides])))

    return config


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory, make: Make) -> tuple[Archive, dict[str, str], Path]:
    """A tracker with runs of two experiments, one of them a sweep; the runs' ids by name."""
    folder = tmp_path_factory.mktemp("tracker")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    tracking = make("compare.runs=[x]", f"tracking.uri={uri}").tracking
    ids: dict[str, str] = {}

    def add(experiment: str, name: str, parent: str | None = None) -> None:
        with open_run(
            tracking,
            default_uri=uri,
            experiment=experiment,
            run_name=name,
            run_key=f"{experiment}/{name}",
            folder=folder / "runs" / name,
            params={"seed": 3, "optimizer": {"lr": 1e-6}, "model": {"name": "tiny"}, "stages": ["probe"]},
            parent_run_id=ids[parent] if parent else None,
            patience=120,
        ) as run:
            for step in (1, 2):
                run.metrics({"train/reward_mean": step / 10, "train/mixed_group_rate": 0.5, "other": 1.0}, step)
            ids[name] = str(run.run_id)

    for name in ("seed1-aaaa", "seed2-aaaa", "seed2-bbbb"):
        add("laptop", name)
    add("other", "fast-cccc")
    add("laptop", "sweep-dddd")
    for name in ("job-1", "job-2"):
        add("laptop", name, parent="sweep-dddd")
    return Archive(uri), ids, folder


def meanings(found: Sequence[Meant]) -> list[str]:
    return [each.identity.replace("run ", "") if each.tracked else each.identity for each in found]


def test_names_ids_sweeps_folders_and_published_models_are_found(
    tracker: tuple[Archive, dict[str, str], Path], make: Make, tmp_path: Path
) -> None:
    archive, ids, _ = tracker
    own = tmp_path / "own"
    (own / "select").mkdir(parents=True)
    entries = ["seed1", ids["seed2-bbbb"], "seed2-aaaa", "other/fast", "sweep", str(own), "published:kimi-k3", "job-1"]
    config = make(f"compare.runs={json.dumps(entries)}", "compare.baseline=job-2")
    found = resolve(config, archive, "laptop", tmp_path)
    names = ("seed1-aaaa", "seed2-bbbb", "seed2-aaaa", "fast-cccc", "job-1", "job-2")
    expected = [*(ids[name] for name in names), f"folder {own}", "published kimi-k3"]
    assert meanings(found) == expected  # job-1 once, though the sweep has it too


def test_all_that_can_not_be_told_is_told_at_once(
    tracker: tuple[Archive, dict[str, str], Path], make: Make, tmp_path: Path
) -> None:
    archive, ids, _ = tracker
    empty = tmp_path / "empty"
    empty.mkdir()
    entries = ["seed2", "seed9", "see%", "published:kimi-k2", str(empty), "0" * 32, "seed1", "~no-such-user/seed1"]
    with pytest.raises(UserError) as refusal:
        resolve(make(f"compare.runs={json.dumps(entries)}"), archive, "laptop", tmp_path)
    texts = [str(problem) for problem in refusal.value.problems]
    assert len(texts) == 7 and all(text.startswith("compare.runs: ") for text in texts)
    assert f"seed2-aaaa ({ids['seed2-aaaa']}), seed2-bbbb ({ids['seed2-bbbb']})" in texts[0]
    assert "seed9 is no folder, no run at sqlite" in texts[1]
    assert "did you mean kimi-k3?" in texts[3]
    assert "of no run" in texts[4]
    assert "home folder" in texts[-1]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["compare.runs=[]"], "names no run"),
        (["compare.runs=[a,a]"], "a stands there twice"),
        (["compare.runs=[published:kimi-k3]"], "published results alone"),
        (["compare.runs=[seed1]"], "no tracker to look it up at"),
    ],
)
def test_what_can_not_be_compared_ends_with_exit_code_2_and_writes_nothing(
    overrides: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["stages=[compare]", "tracking=none", *overrides]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.rglob("compare-*"))


def test_without_a_tracker_names_are_looked_up_among_the_runs_folders(make: Make, tmp_path: Path) -> None:
    for name in ("seed1-aa", "seed2-aa", "seed2-bb", "compare-cc"):
        (tmp_path / name).mkdir()
        if not name.startswith("compare"):
            (tmp_path / name / "config.yaml").write_text("seed: 1\n")
    found = resolve(make("compare.runs=[seed1,seed2-aa]", "tracking=none"), None, "laptop", tmp_path)
    assert [each.folder for each in found] == [tmp_path / "seed1-aa", tmp_path / "seed2-aa"]
    with pytest.raises(UserError, match="seed2 means 2 runs"):
        resolve(make("compare.runs=[seed2]", "tracking=none"), None, "laptop", tmp_path)


def test_a_run_that_logged_no_files_is_read_from_its_params_and_metrics(
    tracker: tuple[Archive, dict[str, str], Path], tmp_path: Path
) -> None:
    archive, ids, _ = tracker
    run = archive.by_id(ids["seed1-aaaa"])
    assert run is not None and run.status == "FINISHED" and run.experiment == "laptop"
    assert sorted(archive.fetch(run, FILES, tmp_path)) == ["config.yaml", "train/metrics.jsonl"]
    rows = [json.loads(line) for line in (tmp_path / "train/metrics.jsonl").open()]
    assert rows == [{"step": step, "train/reward_mean": step / 10, "train/mixed_group_rate": 0.5} for step in (1, 2)]
    assert "lr: 1.0e-06" in (tmp_path / "config.yaml").read_text()


def test_a_database_that_does_not_exist_is_not_made_by_looking(tmp_path: Path) -> None:
    assert open_archive(f"sqlite:///{tmp_path / 'none.db'}") is None and open_archive(None) is None
    assert not list(tmp_path.iterdir())


def test_params_become_the_config_again() -> None:
    params = {"seed": "3", "a.b": "null", "a.c": "text", "a.d": "[1, 2]", "long": "artifact params/long.txt"}
    assert nested(params) == {"seed": 3, "a": {"b": None, "c": "text", "d": [1, 2]}}


def test_the_folder_depends_on_the_runs_and_not_on_how_they_are_written(make: Make, tmp_path: Path) -> None:
    from tbexp.config.compose import run_id_of

    one, two = Meant("x", folder=tmp_path / "x"), Meant("y", folder=tmp_path / "y")
    config = make("compare.runs=[x,y]")
    run_dir = tmp_path / run_id_of(config)
    first = place(config, run_dir, [one, two])
    assert first.parent == tmp_path and first.name.startswith("compare-")
    assert place(make("compare.runs=[z,y]"), run_dir, [Meant("z", folder=tmp_path / "x"), two]) == first
    assert place(config, run_dir, [two, one]) != first
    assert place(make("compare.runs=[x,y]", "compare=pairs"), run_dir, [one, two]) != first
    assert place(config, tmp_path / "mine", [one, two]) == tmp_path / "mine"
