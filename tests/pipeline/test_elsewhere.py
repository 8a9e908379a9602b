"""The time of a stage whose attempts were made by other jobs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tbexp.attempts import AttemptRow, AttemptStore
from tbexp.config.compose import opened, plain
from tbexp.config.folders import conf_folder
from tbexp.config.schema import Config
from tbexp.pipeline import probing, sharing, stages
from tbexp.pipeline.context import Context, Place, Untracked
from tbexp.pipeline.elsewhere import covered, spans
from tbexp.pipeline.progress import Progress
from tbexp.pipeline.run import run_stages
from tbexp.pipeline.sharing import Campaign, Shard
from tbexp.pipeline.wanted import FixedNumber


@pytest.mark.parametrize(
    ("found", "seconds"),
    [
        ([], 0.0),
        ([(10.0, 40.0), (12.0, 30.0)], 30.0),  # one within the other
        ([(30.0, 50.0), (10.0, 40.0)], 40.0),
        ([(10.0, 20.0), (100.0, 105.0)], 15.0),  # in the queue between them
        ([(10.0, 9.0)], 0.0),  # the clock was set back
    ],
)
def test_jobs_beside_each_other_count_once_and_waiting_does_not(
    found: list[tuple[float, float]], seconds: float
) -> None:
    assert covered(found) == seconds


def test_the_time_is_that_of_jobs_that_the_run_made_or_waited_for(tmp_path: Path) -> None:
    def told(shard: str, *lines: dict[str, Any]) -> None:
        (tmp_path / f"times-{shard}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    told("0-of-2", {"run": "/runs/a", "begun": 10.0}, {"ended": 20.0}, {"run": "/runs/b", "begun": 50.0}, {"ended": 60})
    # Killed, then once more: of the first start no end is known, of the last its last attempt.
    told("1-of-2", {"run": "/runs/a", "begun": 11.0}, {"run": "/runs/a", "begun": 15.0})
    (tmp_path / "attempts-1-of-2.jsonl").touch()
    os.utime(tmp_path / "attempts-1-of-2.jsonl", (18.0, 18.0))
    assert spans(tmp_path, Path("/runs/a")) == [(10.0, 20.0), (15.0, 18.0)]
    assert spans(tmp_path, Path("/runs/c")) == []  # it has found them finished
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "jobs.json").write_text(json.dumps({"runs": ["/runs/c"]}))
    assert spans(tmp_path, Path("/runs/c")) == [(10.0, 20.0), (50.0, 60.0), (15.0, 18.0)]


def test_a_stage_that_reads_finished_parts_has_the_time_of_the_jobs_that_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("tbexp.pipeline.elsewhere.time.time", lambda: now[0])
    store, made = tmp_path / "store", {"probe": 0}
    campaign = Campaign("probe", store, [], FixedNumber(["a", "b"], 2), 1, lambda: None, None)  # type: ignore

    def attempts(*_: Any, shard: str | None, wanted: Any, **__: Any) -> None:
        with AttemptStore(store, shard=shard) as opened_store:
            for uid, number in wanted.missing(opened_store):
                opened_store.append(AttemptRow(uid, number, passed=True, reward=1.0))
        now[0] += 30.0

    monkeypatch.setattr(sharing, "run_campaign", attempts)
    monkeypatch.setattr(AttemptStore, "refuse_foreign", lambda self, uids: None)
    with opened(conf_folder()) as compose:
        values = plain(compose(["experiment=smoke", "launcher=slurm"]))
    config = Config.model_validate({**values, "stages": ["probe"]})

    def probe(context: Context) -> None:
        made["probe"] = len(sharing.attempts_in(context, campaign))

    monkeypatch.setattr(probing, "probe", probe)
    monkeypatch.setattr(stages, "lacking", lambda context: [])
    with Progress() as progress:
        monkeypatch.setattr(Context, "servers", {})
        for index in range(2):
            part = Context(config, tmp_path, progress, Untracked())
            sharing.attempts_of_shard(part, campaign, Shard(index, 2))
        for _ in range(2):  # read once more it is no longer
            reads = Context(config, tmp_path, progress, Untracked(), place=Place(attempts=False))
            run_stages(reads)
            assert made["probe"] == 4 and 60.0 <= reads.seconds["probe"] < 90.0
            told = json.loads((tmp_path / "manifest.json").read_text())["stages"]["probe"]
            assert told == {"seconds": reads.seconds["probe"], "by_jobs": 60.0}
