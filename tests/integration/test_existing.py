"""A command that names the folder of a run means that run: its settings, and nothing that its results contradict."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tbexp.app import main
from tbexp.attempts import AttemptRow, AttemptStore
from tbexp.pipeline.identity import tasks_digest
from tbexp.samples import data_root
from tbexp.tasks import load_tasks, read_selectors

POOL = ["stages=[select]", "probe.rows=[rows.jsonl]", "tracking=none", "hydra.run.dir=run"]
HELD_OUT = ["extend.py:test_extend_1", "extend.py:test_extend_2"]
ROWS = ["stages=[evaluate]", "evaluation.rows=[e.jsonl]", f"tasks.held_out=[{','.join(HELD_OUT)}]", "tracking=none"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handlers_as_before: None) -> None:
    monkeypatch.chdir(tmp_path)
    lines(Path("rows.jsonl"), [(f"task-{n}", k < n) for n in range(9) for k in range(8)])
    lines(Path("e.jsonl"), [(uid, k < 2) for uid in HELD_OUT for k in range(4)])


def lines(file: Path, verdicts: list[tuple[str, bool]]) -> None:
    file.write_text("".join(json.dumps({"uid": uid, "test_result": {"result": x}}) + "\n" for uid, x in verdicts))


def settings() -> dict[str, object]:
    found = yaml.safe_load(Path("run/config.yaml").read_text())
    assert isinstance(found, dict)
    return found


def test_a_run_goes_on_with_its_own_settings_and_a_report_leaves_them_alone() -> None:
    assert main([*POOL, "buckets=signal", "selection.min_clean=2", "seed=5"]) == 0
    kept = [Path("run", name).read_bytes() for name in ("config.yaml", "overrides.txt", "select/pool.yaml")]
    assert main(["stages=[report]", "hydra.run.dir=run"]) == 0
    assert main(["stages=[select]", "hydra.run.dir=run", "prices.gpu_hour_usd=2.0"]) == 0  # prices decide no result
    assert Path("run/select/pool.yaml").read_bytes() == kept[2]
    before = yaml.safe_load(kept[0])
    assert settings() == {**before, "prices": {**before["prices"], "gpu_hour_usd": 2.0}}
    assert main(["stages=[report]", "hydra.run.dir=run", "tracking.kind=none"]) == 0
    assert Path("run/overrides.txt").read_text().splitlines()[-2:] == ["stages=[select]", "prices.gpu_hour_usd=2.0"]


def test_the_run_s_settings_count_even_where_the_shipped_ones_have_changed() -> None:
    assert main(POOL) == 0
    stored = settings()
    stored["training"]["steps"] = 7  # type: ignore[index]  # as an older default
    Path("run/config.yaml").write_text(yaml.safe_dump(stored))
    assert main(["stages=[select]", "hydra.run.dir=run"]) == 0
    assert settings() == stored
    assert main([*POOL, "training.steps=9"]) == 0
    assert settings()["training"]["steps"] == 9  # type: ignore[index]


def test_what_decides_results_that_are_there_is_refused_key_by_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*POOL, "selection.min_clean=2"]) == 0
    kept = {path: path.read_bytes() for path in Path("run").rglob("*.yaml")}
    capsys.readouterr()
    assert main(["stages=[select]", "experiment=smoke", "seed=4", "hydra.run.dir=run", "selection.min_clean=3"]) == 2
    said = capsys.readouterr().err
    assert "tasks.candidates: is null in the run" in said and "training.steps" not in said
    for key, old, new in (("name", "laptop", "smoke"), ("seed", 1, 4), ("selection.min_clean", 2, 3)):
        assert f"{key}: is {old} in the run of {Path('run').absolute()}, and {new} here; it decides select" in said
    assert {path: path.read_bytes() for path in Path("run").rglob("*.yaml")} == kept
    assert main([*POOL, "selection.min_clean=3", "force=[select]"]) == 0  # made again, so nothing is mixed
    assert settings()["selection"]["min_clean"] == 3  # type: ignore[index]


def test_figures_of_tasks_whose_checks_have_changed_since_are_not_reported_as_those_of_today(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(Path(__file__).parent / "data" / "garden", "garden")
    uids = yaml.safe_load(Path("garden/releases/candidates.yaml").read_text())
    half, rest = uids[:4], uids[4:]
    lines(Path("e.jsonl"), [(uid, k < 2) for uid in half for k in range(4)])
    lines(Path("rows.jsonl"), [(uid, k < n) for n, uid in enumerate(rest) for k in range(8)])
    words = ["tasks=folder", "tasks.root=garden", f"tasks.held_out=[{','.join(half)}]", "probe.rows=[rows.jsonl]"]
    words += [f"tasks.candidates=[{','.join(rest)}]", "evaluation.rows=[e.jsonl]", "evaluation.attempts=4"]
    words += ["tracking=none", "hydra.run.dir=run"]
    assert main(["stages=[select,evaluate]", *words]) == 0
    checks, report = Path("garden/dataset/test_case/garden.py"), Path("run/report/report.html")
    before = checks.read_text()
    changed = before.replace('"rows": 3', '"rows": 4')
    assert changed != before and "garden.py:test_beans" in half
    checks.write_text(changed)
    trained = Path("run/train/result.json")  # on the pool as it is now
    pool = [uid for name in ("train", "validation") for uid in read_selectors(Path(f"run/select/{name}.yaml"))]
    digest = tasks_digest(load_tasks(Path("garden"), "agent", pool))
    trained.parent.mkdir()
    trained.write_text(json.dumps({"chosen_step": 1, "tasks": digest}))
    capsys.readouterr()
    assert main(["stages=[report]", "hydra.run.dir=run"]) == 0
    told = "Before a change: 1 of 4 evaluated tasks or their checks have changed since these figures were made"
    assert told in report.read_text() and "(garden.py:test_beans)" in report.read_text()
    assert told in " ".join(capsys.readouterr().err.split()) and "pool was chosen" not in report.read_text()
    assert "the training was on" not in report.read_text()
    checks.write_text(before.replace("query: Water", "query: Please water"))
    assert main(["stages=[report]", "hydra.run.dir=run"]) == 0
    assert "candidates or their checks have changed since the pool was chosen" in report.read_text()
    assert "the training was on another pool, or on tasks that have changed since" in report.read_text()
    assert told not in report.read_text()
    checks.write_text("def (")  # what cannot be read says nothing, and the report is made all the same
    assert main(["stages=[report]", "hydra.run.dir=run"]) == 0
    assert "Before a change" not in report.read_text()
    checks.write_text(changed)
    assert main(["stages=[select,evaluate,report]", *words]) == 0
    assert "Before a change" not in report.read_text() and "100.0" in report.read_text()


def test_a_folder_without_results_is_no_run_yet(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*POOL, "seed=9"]) == 0
    shutil.rmtree("run/select")
    assert main(POOL) == 0
    assert settings()["seed"] == 1
    Path("run/config.yaml").write_text("theirs: 1\n")
    assert main(POOL) == 2
    assert "run/config.yaml holds no settings that this version reads" in capsys.readouterr().err


def test_regrade_judges_a_run_s_attempts_by_the_run_s_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ROWS, "evaluation.attempts=4", "hydra.run.dir=run"]) == 0
    by_uid = {task.uid: task for task in load_tasks(data_root(), "agent")}
    with AttemptStore(Path("run/evaluate/base")) as store:
        for uid in HELD_OUT:
            for attempt in range(4):
                system = [{"T": "Text", "role": "system", "content": text} for text in by_uid[uid].system_messages()]
                seen = {"messages": system, "init_result": {}, "effects": {}}
                store.append(AttemptRow(uid, attempt, True, 1.0), seen)
    stored = settings()  # as of an endpoint's run; regrade asks no policy, so it needs no key of it
    endpoint = {"base_url": "http://localhost:1/v1", "model": "m", "api_key_env": "TBEXP_NO_SUCH_KEY"}
    stored["policy"].update({"kind": "chat", "endpoint": endpoint})  # type: ignore[attr-defined]
    Path("run/config.yaml").write_text(yaml.safe_dump(stored))
    assert main(["stages=[regrade]", "hydra.run.dir=run", "sandbox.grade_timeout_s=20.0"]) == 0
    found = json.loads(Path("run/regrade/summary.json").read_text())["policies"]["base"]
    assert (found["tasks"], found["attempts"], found["passed_attempts"]) == (2, 4, 0)
    assert main(["stages=[regrade]", "hydra.run.dir=run", "tasks.held_out=releases/held_out.yaml"]) == 2
    assert "tasks.held_out: is ['extend.py:test_extend_1', 'extend.py:test_extend_2']" in capsys.readouterr().err


SLURM = ["launcher=slurm", "launcher.partition=p", "launcher.minutes=77"]


def test_cfg_shows_the_run_s_settings_as_they_would_run_and_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*POOL, "selection.min_clean=2", "seed=5"]) == 0
    files = [path for path in Path().rglob("*") if path.is_file() and path.suffix != ".log"]
    kept = {path: path.read_bytes() for path in files}
    capsys.readouterr()

    def shown(*words: str) -> dict[str, object]:
        assert main([*words, "hydra.run.dir=run"]) == 0
        found = yaml.safe_load(capsys.readouterr().out)
        assert isinstance(found, dict)
        return found

    whole = shown("--cfg", "job", "stages=[report]", "prices.gpu_hour_usd=2.0")
    assert whole["seed"] == 5 and "hydra" not in whole and whole["stages"] == ["report"]
    assert whole["selection"]["min_clean"] == 2 and whole["prices"]["gpu_hour_usd"] == 2.0  # type: ignore[index]
    assert shown("--cfg", "job", "--package", "selection", "stages=[report]")["min_clean"] == 2
    assert shown("--cfg", "all", "stages=[report]")["hydra"]["run"]["dir"] == str(Path("run").absolute())  # type: ignore[index]
    assert main(["--cfg", "job", "--package", "nothing", "stages=[report]", "hydra.run.dir=run"]) == 2
    assert main(["--cfg", "job", "stages=[select]", "selection.min_clean=3", "hydra.run.dir=run"]) == 2  # cannot run
    assert {path: path.read_bytes() for path in files} == kept


def test_a_run_made_on_a_cluster_is_evaluated_and_reported_here_unless_the_command_says_otherwise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(POOL) == 0
    stored = settings()  # as if the run had been submitted
    stored["launcher"].update({"name": "slurm", "kind": "slurm", "partition": "p", "minutes": 77})  # type: ignore[attr-defined]
    stored["launcher"]["secrets_file"] = str(Path("keys").absolute())  # type: ignore[index]
    Path("run/config.yaml").write_text(yaml.safe_dump(stored))
    Path("run/overrides.txt").write_text("\n".join([*SLURM, "tracking=none", *POOL[:2]]))
    Path("keys").touch(0o600)

    def launcher(*words: str) -> dict[str, object]:
        capsys.readouterr()
        assert main(["--cfg", "job", "--package", "launcher", *words, "hydra.run.dir=run"]) == 0
        found = yaml.safe_load(capsys.readouterr().out)
        assert isinstance(found, dict)
        return found

    for stages in ("stages=[report]", "stages=[evaluate,report]"):
        found = launcher(stages)
        assert (found["name"], found["kind"]) == ("local", "local")
        assert found["secrets_file"] == str(Path("keys").absolute())  # an endpoint's key is still needed
    assert launcher("stages=[report]", "launcher=slurm")["kind"] == "slurm"
    assert launcher("stages=[report]", "launcher.kind=slurm")["kind"] == "slurm"
    goes_on = launcher("stages=[select]")  # what is made goes on where it was begun
    assert (goes_on["kind"], goes_on["partition"], goes_on["minutes"]) == ("slurm", "p", 77)
    assert main(["stages=[report]", "hydra.run.dir=run"]) == 0
    assert Path("run/report/report.html").is_file() and not Path("run/slurm").exists()


@pytest.mark.parametrize("stage", ["report", "regrade", "serve"])
def test_a_folder_that_is_not_there_is_told_and_not_made(stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(Path().rglob("*"))
    assert main([f"stages=[{stage}]", "hydra.run.dir=deep/zz", "policy.vllm.command=[sh]"]) == 2
    assert str(Path("deep/zz").absolute()) in capsys.readouterr().err
    assert sorted(Path().rglob("*")) == before


def test_incomplete_rows_are_told_with_what_mends_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ROWS, "evaluation.attempts=5"]) == 3
    said = capsys.readouterr().err
    assert "same command" not in said and "set evaluation.attempts to what the rows hold" in said
    Path("e.jsonl").write_text("\n")
    assert main(ROWS) == 2
    assert "evaluation.rows: there are no rows in e.jsonl" in capsys.readouterr().err
