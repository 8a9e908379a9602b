"""dry_run, and what is refused because no stage can do it yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from tbexp.app import main

pytestmark = pytest.mark.usefixtures("composed_once")


def test_a_dry_run_shows_the_plan_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["dry_run=true", "probe.attempts=5"]) == 0
    assert "96 tasks x 5 attempts" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_what_is_not_built_is_refused_and_not_run_as_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["policy=scripted", "stages=[probe]"]) == 2
    assert "policy" in capsys.readouterr().err


def test_the_plan_of_a_probe_says_who_goes_first_and_that_tasks_may_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    policy = "selection.reference.policy"
    words = [f"{policy}.kind=chat", f"{policy}.endpoint.base_url=http://h/v1", f"{policy}.endpoint.model=big"]
    assert main(["dry_run=true", "stages=[probe]", "probe=adaptive", *words]) == 0
    told = capsys.readouterr().out
    assert "96 tasks x 4 attempts of big; then those it solves x 8 attempts at most, each until" in told


@pytest.mark.train
@pytest.mark.parametrize("words", [["dry_run=true"], ["launcher=slurm", "launcher.partition=any"]])
def test_a_format_that_the_model_s_template_does_not_write_is_told_before_anything_is_queued(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tbexp.samples.tiny_words import make_tokenizer

    monkeypatch.chdir(tmp_path)
    make_tokenizer().save_pretrained("model")
    (tmp_path / "model" / "config.json").write_text("{}")
    words = [*words, "model=folder", "model.path=model", "stages=[probe,select]"]
    assert main([*words, "model.format=hermes"]) == 2
    told = capsys.readouterr().err
    assert "model.format" in told and "cannot be read in hermes" in told and "Traceback" not in told
    assert not list(tmp_path.rglob("jobs.json"))
    if "dry_run=true" in words:
        assert main(words) == 0
