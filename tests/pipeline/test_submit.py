"""Which jobs a submission leaves out, without a Slurm: see tests/integration/test_slurm.py for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder
from tbexp.config.schema import Config
from tbexp.pipeline import submit
from tbexp.pipeline.context import Context, Untracked
from tbexp.pipeline.progress import Progress

LEFT = ("probe", "select/manifest.json", "train", "evaluate/summary.json")


def jobs(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, stages: str, probed: bool, trained: bool, left: tuple[str, ...]
) -> list[str]:
    """Names of the jobs of a run whose folder has `left`. probed, trained: what is in the shared store."""
    import tbexp.reporting

    for name in left:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    monkeypatch.setattr(submit, "finished", lambda context, name: probed if name == "probe" else trained)
    monkeypatch.setattr(submit, "is_trained", lambda context: trained)
    monkeypatch.setattr(submit, "store_of", lambda context, name: folder / "store")
    monkeypatch.setattr(tbexp.reporting, "is_current", lambda run_dir: bool(left))
    with opened(conf_folder()) as compose:
        values: dict[str, Any] = plain(compose(["experiment=smoke", "launcher=slurm", f"stages={stages}"]))
    with Progress() as progress:
        config = Config.model_validate({**values, "store": str(folder / "store")})
        return [job.name for job in submit.jobs_of(Context(config, folder, progress, Untracked()))]


ALL = "[probe,select,train,evaluate,report]"


@pytest.mark.parametrize(
    ("stages", "probed", "trained", "left", "submitted"),
    [
        (ALL, True, True, LEFT, []),
        (ALL, True, True, (), ["report"]),  # it tells what the others came to
        (ALL, True, False, LEFT, ["select", "train", "evaluate base", "evaluate trained", "report"]),
        # New attempts may make another pool, so what was trained and evaluated counts for nothing.
        (ALL, False, True, LEFT, ["probe", "select", "train", "evaluate trained", "report"]),
        ("[probe,select]", True, False, LEFT[:2], []),
        ("[probe,select]", True, False, (), ["select"]),  # another run has made the attempts
        ("[probe,select]", False, False, LEFT[:2], ["probe", "select"]),
    ],
)
def test_a_submission_leaves_out_what_is_finished_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    stages: str,
    probed: bool,
    trained: bool,
    left: tuple[str, ...],
    submitted: list[str],
) -> None:
    assert jobs(monkeypatch, tmp_path, stages=stages, probed=probed, trained=trained, left=left) == submitted


def test_the_training_of_another_run_on_the_same_pool_is_told_of_by_this_runs_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with opened(conf_folder()) as compose:
        config = Config.model_validate({**plain(compose(["experiment=smoke"])), "store": str(tmp_path)})
    run, shared = tmp_path / "run", tmp_path / "train" / "key"
    (run / "select").mkdir(parents=True)
    (run / "select" / "manifest.json").write_text("{}")
    shared.mkdir(parents=True)
    (shared / f"result-{config.training.steps}.json").write_text('{"chosen_step": 1}')
    monkeypatch.setattr(submit.stages, "training_folder", lambda context: (shared, [], []))
    monkeypatch.setattr("tbexp.training.weights_fault", lambda folder: "")
    with Progress() as progress:
        context = Context(config, run, progress, Untracked())
        assert not submit.is_trained(context)
        (run / "train").symlink_to(shared)
        assert submit.is_trained(context)
