"""The command: what it composes and runs, what it says about mistakes, how it ends."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tbexp import app
from tbexp.config.folders import conf_folder, options
from tbexp.errors import Problem, UserError, WorldFailure

HEAVY = ("torch", "verl", "ray", "vllm", "mlflow", "scipy.stats", "matplotlib", "mcp", "transformers")
CHAT = ["policy=chat", "policy.endpoint.base_url=http://localhost:1/v1", "policy.endpoint.model=m"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handlers_as_before: None) -> None:
    monkeypatch.chdir(tmp_path)


def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """tbexp as a process."""
    root = str(Path(app.__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-m", "tbexp", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": root, **environment},
        timeout=120,
    )


MISTAKES: list[tuple[list[str], list[str]]] = [
    (["optimizer.lrr=1e-4"], ["optimizer.lrr: there is no such key", "did you mean optimizer.lr?"]),
    (["tracking.uri=file:///tmp/x", "seed=-1", "dry_run=true"], ["tracking.uri: ", "no MLflow file store", "seed"]),
    (["optimiser.lr=1e-4"], ["optimiser.lr", "did you mean optimizer.lr?"]),
    (["lr=1e-4"], ["did you mean optimizer.lr"]),
    (["+optimizer.lrr=1e-4"], ["optimizer.lrr: there is no such key", "did you mean optimizer.lr?"]),
    (["++optimizer.lrr=1e-4"], ["optimizer.lrr: there is no such key", "did you mean optimizer.lr?"]),
    (["+optimizer.lr=1e-4"], ["+optimizer.lr", "there already", "optimizer.lr=..."]),
    (["~optimizer.lrr"], ["optimizer.lrr", "did you mean optimizer.lr?"]),
    (["hydra.run.dirr=x"], ["hydra.run.dirr", "did you mean hydra.run.dir?"]),
    (["+hydra.run.dirr=x"], ["hydra.run.dirr", "did you mean hydra.run.dir?"]),
    (["++hydra.run.dirr=x"], ["hydra.run.dirr", "did you mean hydra.run.dir?"]),
    (["hydr.run.dir=x"], ["hydr.run.dir", "did you mean hydra.run.dir?"]),
    (["hydra.job.chdir=maybe"], ["hydra.job.chdir", "maybe"]),
    (["hydra.run.dir=${nope}"], ["hydra.run.dir", "nope"]),
    (["hydra/launcher=submitti"], ["hydra/launcher", "submitti", "basic"]),
    (["hydra/lancher=basic"], ["hydra/lancher", "did you mean hydra/launcher"]),
    (["polcy=chat"], ["polcy", "did you mean policy"]),
    (["group=laptopp"], ["group", "'laptopp'", "did you mean laptop?", "published"]),
    (["experiment=smok"], ["experiment", "did you mean smoke?"]),
    (["+group=one"], ["+group=one", "has an option already"]),
    (["group=one", "group=laptop"], ["chosen twice"]),
    (["~judge"], ["judge.kind: has no value"]),
    (["group.size=8,16"], ["several values", "group.size=[8,16]", "tbexp -m"]),
    (["group"], ["not of the form key=value"]),
    (["group.size=[1"], ["group.size=[1", "cannot be read"]),
    (["group.size=many"], ["group.size: 'many' must be a whole number", "group.size=8"]),
    (["group.size=1"], ["group.size: 1 must be greater than or equal to 2"]),
    (["seed=true"], ["seed: True must be a whole number"]),
    (["seed=${sed}"], ["seed", "sed"]),
    (["optimizer.lr=nan"], ["optimizer.lr: nan"]),
    (["optimizer.betas=[0.9]"], ["optimizer.betas"]),
    (["group={siz:8}"], ["group", "siz"]),
    (["stages=[prob,select]"], ["stages: 'prob' is unknown", "did you mean probe?"]),
    (["stages=probe"], ["stages=[probe]"]),
    (["force=[doctor]"], ["force: 'doctor' is unknown"]),
    (["buckets.by=bandd"], ["buckets.by: 'bandd' is unknown", "did you mean band?"]),
    (["buckets.bands.hard.upper=0.05"], ["buckets.bands.hard.upper", "0.05", "0.08", "out of order"]),
    (["training.verl=3"], ["training.verl", "mapping"]),
    (["training.verl=[a,b]"], ["training.verl: [a,b] must be a mapping", "training.verl.<name>=..."]),
    (
        ["+training.verl=[a]", "optimizer.lrr=1"],
        ["2 problems", "training.verl: [a] must be a mapping", "optimizer.lr?"],
    ),
    (["-m", "training.verl=[a],[b]"], ["training.verl: [a],[b] must be a mapping"]),
    (["evaluation.rows={a: 1}"], ["evaluation.rows: {a: 1} must be a list", "evaluation.rows=[...]"]),
    (["training.verl.a=[1]", "training.verl.a={b: 1}"], ["training.verl.a: a list and a mapping meet"]),
    (["training.verl.a=[1]", "training.verl.a.b=1"], ["a key below a list is a place in it"]),
    (["training.vrl.trainer.nnodes=2"], ["did you mean training.verl.trainer.nnodes?"]),
    (["trainng.verl.data.seed=2"], ["did you mean training.verl.data.seed?"]),
    (["selection.reference.policy.kind=chatt"], ["'chatt' is unknown", "did you mean chat?"]),
    (["selection.reference.policy.endpoint.modle=m"], ["did you mean selection.reference.policy.endpoint.model?"]),
    (["policy=chat", "stages=[probe]"], ["policy.endpoint.base_url", "policy.endpoint.model"]),
    ([*CHAT], ["train", "policy.kind is chat"]),
    ([*CHAT, "stages=[probe]", "policy.endpoint.api_key_env=TBEXP_NOT_SET"], ["no variable TBEXP_NOT_SET"]),
    (["tasks.root=nowhere", "stages=[probe]"], ["tasks.root", "no folder nowhere"]),
    (["tasks=folder"], ["tasks.root: names no folder"]),
    (["probe.rows=[a.jsonl]"], ["probe.rows", "no file a.jsonl"]),
    (["hydra.run.dir=/dev/null/x"], ["hydra.run.dir", "/dev/null is a file"]),
    (["hydra.run.dir=/proc/x"], ["hydra.run.dir", "/proc/x"]),
    (["store=/dev/null/x"], ["store", "/dev/null is a file"]),
    (["topology=h100x3", "topology.rollout_tensor_parallel=3"], ["8 is not a multiple of 3", "multiple of 6"]),
    (["--config-name=x"], ["--config-name"]),
    (["--config-dir=nowhere"], ["--config-dir", "no folder"]),
    (["--nonsense"], ["--nonsense", "tbexp --help"]),
    (["-m", "seed=y,x"], ["2 problems", "seed: 'x' must be a whole number", "seed: 'y' must"]),
    (["-m", "seed=1,2", "group.size=1"], ["tbexp: group.size: 1 must be"]),
    (["-m", "seed=1,2", "hydra/launcher=basic", "hydra/sweeper=optuna"], ["hydra/sweeper", "optuna"]),
    (["-m", "group=one,won"], ["'won'", "did you mean one?"]),
    (["-m", "hydra.verbose=true,false"], ["hydra.verbose", "swept"]),
]


@pytest.mark.parametrize(("words", "parts"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_a_mistake_ends_in_one_message_and_nothing_is_written(
    words: list[str], parts: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert app.main(words) == 2
    out, err = capsys.readouterr()
    assert all(part in err for part in parts), err
    assert "Traceback" not in err and not out
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_verl_does_not_have_is_told_with_the_others_before_anything_is_probed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("verl")
    assert app.main(["training.verl.actor_rollout_ref.actor.ppo_epoch=2", "optimizer.lrr=1"]) == 2
    said = capsys.readouterr().err
    assert "2 problems" in said and "optimizer.lrr" in said
    assert "did you mean training.verl.actor_rollout_ref.actor.ppo_epochs?" in said
    assert app.main(["training.verl.actor_rollout_ref.actor.ppo_epochs=2", "dry_run=true"]) == 0
    assert app.main(["training.verl.actor_rollout_ref.actor.ppo_epoch=2", "stages=[probe]", "dry_run=true"]) == 0
    assert not list(tmp_path.iterdir())


def test_all_mistakes_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["optimizer.lrr=1", "group=laptopp", "seed=x", "buckets.bands.hard.upper=0.01", "stages=[prob]", "a=[1"]
    words += ["tasks.root=nowhere", "++hydra.run.dirr=x", "foo", "judge=chat"]
    assert app.main(words) == 2
    err = capsys.readouterr().err
    for part in ("lrr", "laptopp", "'x'", "out of order", "'prob'", "a=[1", "nowhere", "dirr", "foo", "judge.endpoint"):
        assert part in err, part
    assert err.startswith("tbexp: 11 problems"), err


def test_the_published_topology_with_odd_numbers_lists_both(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["topology=h100x3", "topology.rollout_tensor_parallel=3", "group.groups_per_update=17"]
    assert app.main(words) == 2
    err = capsys.readouterr().err
    assert "8 is not a multiple of 3" in err and "17 x 8 = 136" in err and "multiple of 6" in err


@pytest.mark.parametrize(
    "word",
    [
        "policy.endpoint.api_key=sk-0123456789abcdefghij",
        "+policy.endpoint.api_key=sk-0123456789abcdefghij",
        "policy.endpoint.api_key_env=sk-0123456789abcdefghij",
        "policy.endpoint.extra_body.token=sk-0123456789abcdefghij",
        "sk-0123456789abcdefghij",
        "policy.endpoint.api_key=[sk-0123456789abcdefghij",
        "judge.answers=sk-0123456789abcdefghij",
    ],
)
def test_a_key_on_the_command_line_is_refused_and_not_repeated(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main([word]) == 2
    assert "sk-0123456789abcdefghij" not in capsys.readouterr().err


# -- running


class Recorder:
    """In place of the pipeline: notes what it is asked to run, and ends as it is told."""

    def __init__(self, ends: Any = None):
        self.calls: list[tuple[Any, Path, list[str]]] = []
        self.ends = ends

    def __call__(self, config: Any, *, run_dir: Path, overrides: list[str], inputs: Any, sweep: Any = None) -> None:
        self.calls.append((config, run_dir, list(overrides)))
        error = self.ends(config) if callable(self.ends) and not isinstance(self.ends, type) else self.ends
        if error is not None:
            raise error


def run(monkeypatch: pytest.MonkeyPatch, *words: str, ends: Any = None) -> tuple[int, Recorder]:
    recorder = Recorder(ends)
    monkeypatch.setattr(app, "pipeline_run", lambda: recorder)
    return app.main(list(words)), recorder


def test_the_same_command_lands_in_the_same_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, first = run(monkeypatch, "group.size=4", "seed=3")
    again, second = run(monkeypatch, "seed=3", "group.size=4", "stages=[probe]")
    assert (code, again) == (0, 0)
    config, run_dir, overrides = first.calls[0]
    assert (config.group.size, config.seed, overrides) == (4, 3, ["group.size=4", "seed=3"])
    assert run_dir == second.calls[0][1]
    assert run_dir.parent == tmp_path / "outputs" / "laptop" and run_dir.name.startswith("seed3-")
    assert config.store == str(tmp_path / "outputs" / "stages")
    assert [path.name for path in run_dir.iterdir()] == ["tbexp.log"]


def test_hydra_run_dir_puts_a_run_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, recorder = run(monkeypatch, f"hydra.run.dir={tmp_path / 'here'}")
    assert recorder.calls[0][1] == tmp_path / "here"


def test_keys_that_no_file_sets_need_no_plus(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["buckets.min_band_mass=0.5", "training.verl.actor_rollout_ref.actor.use_torch_compile=true"]
    _, recorder = run(monkeypatch, *words, "judge.answers.refund=true")
    config = recorder.calls[0][0]
    assert config.buckets.min_band_mass == 0.5
    assert config.training.verl == {"actor_rollout_ref": {"actor": {"use_torch_compile": True}}}
    assert config.judge.answers == {"refund": True}


def test_a_stage_on_its_own_makes_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, recorder = run(monkeypatch, "stages=[doctor]")
    assert code == 0 and len(recorder.calls) == 1
    assert list(tmp_path.iterdir()) == []


def test_each_job_of_a_multirun_has_the_folder_it_would_have_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _, sweep = run(monkeypatch, "tracking=none", "-m", "seed=1,2", "experiment=laptop,smoke")
    _, alone = run(monkeypatch, "seed=2", "experiment=smoke")
    assert [(c.seed, c.name) for c, _, _ in sweep.calls] == [(s, n) for s in (1, 2) for n in ("laptop", "smoke")]
    assert sweep.calls[-1][1] == alone.calls[0][1]


def test_a_failed_job_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ends(config: Any) -> Exception | None:
        return {1: WorldFailure("no servers"), 2: UserError("wrong")}.get(config.seed)

    code, recorder = run(monkeypatch, "tracking=none", "-m", "seed=1,2,3", ends=ends)
    assert (code, len(recorder.calls)) == (3, 3)
    out, err = capsys.readouterr()
    assert "no servers" in err and "wrong" in err and "Traceback" not in err
    assert "3 jobs, 1 done, 1 mistake, 1 world failed" in out


def test_a_ready_sweep_gives_way_to_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ["-m", "+sweep=thresholds", "buckets.bands.often.upper=0.85", "tracking=none", "stages=[probe]"]
    code, recorder = run(monkeypatch, *words)
    edges = [(c.buckets.bands.rarely.upper, c.buckets.bands.often.upper) for c, _, _ in recorder.calls]
    assert (code, edges) == (0, [(edge, 0.85) for edge in (0.05, 0.08, 0.12, 0.15)])
    assert len(list((tmp_path / "outputs" / "laptop").glob("sweep-thresholds-*/jobs.csv"))) == 1


def test_a_ready_sweep_keeps_its_order_with_values_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["-m", "+sweep=selected_vs_random", "seed=1,2", "tracking=none", "stages=[probe]"]
    code, recorder = run(monkeypatch, *words)
    pools = ("selected", "random", "all")
    assert code == 0
    assert [(c.seed, c.selection.pool) for c, _, _ in recorder.calls] == [(s, pool) for s in (1, 2) for pool in pools]


def test_hydra_numbers_the_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ["tracking=none", "-m", "seed=5,6", "hydra.sweep.dir=here", "hydra.sweep.subdir=${hydra:job.num}"]
    _, recorder = run(monkeypatch, *words)
    assert [run_dir for _, run_dir, _ in recorder.calls] == [tmp_path / "here" / "0", tmp_path / "here" / "1"]


@pytest.mark.parametrize(
    ("error", "code", "part"),
    [
        (UserError(Problem("is refused", "policy.endpoint", "another key")), 2, "policy.endpoint: is refused"),
        (WorldFailure("40 of 512 attempts are system errors"), 3, "tbexp: 40 of 512"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("by nothing"), 1, "unexpected ZeroDivisionError: by nothing (traceback: "),
    ],
)
def test_an_error_is_one_message_and_its_traceback_is_in_the_log(
    error: BaseException, code: int, part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found, recorder = run(monkeypatch, ends=error)
    out, err = capsys.readouterr()
    assert found == code
    assert part in err and "Traceback" not in err + out
    log = (recorder.calls[0][1] / "tbexp.log").read_text()
    assert ("Traceback" in log) is (code != 130)


def test_a_defect_before_a_run_has_a_folder_leaves_its_traceback_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(app, "checked", broken)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert app.main([]) == 1
    err = capsys.readouterr().err
    assert err.startswith("tbexp: unexpected RuntimeError: broken (traceback: ")
    assert "Traceback" in Path(err.split("traceback: ")[1].rstrip(")\n")).read_text()


def test_options_of_ones_own_are_found_with_config_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine" / "group").mkdir(parents=True)
    (tmp_path / "mine" / "group" / "wide.yaml").write_text("# wide\nname: wide\nsize: 32\ngroups_per_update: 2\n")
    _, recorder = run(monkeypatch, "--config-dir=mine", "group=wide")
    assert recorder.calls[0][0].group.size == 32


def test_an_unknown_key_in_a_file_of_ones_own_is_told_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine" / "group").mkdir(parents=True)
    (tmp_path / "mine" / "group" / "wide.yaml").write_text("name: wide\nsizes: 32\nsize: 8\ngroups_per_update: 2\n")
    assert app.main(["--config-dir=mine", "group=wide"]) == 2
    assert "did you mean group.size?" in capsys.readouterr().err


# -- as a process


def test_help_names_every_group_and_option_and_five_examples() -> None:
    done = command("--help")
    assert done.returncode == 0 and not done.stderr
    for group, files in options(conf_folder()).items():
        assert all(name in done.stdout for name in (group, *files))
    assert done.stdout.count("\n  tbexp") - done.stdout.split("Examples")[0].count("\n  tbexp") == 5


@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), (["--cfg", "job", "--resolve"], 0), (["seed=x"], 2)])
def test_nothing_heavy_is_imported_before_a_stage_needs_it(words: list[str], code: int) -> None:
    script = (
        "import sys; from tbexp.app import main; code = main(sys.argv[1:]);"
        f"heavy = [m for m in {HEAVY!r} if m in sys.modules]; sys.exit(f'loaded: {{heavy}}' if heavy else code)"
    )
    root = str(Path(app.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root}
    )
    assert done.returncode == code, done.stderr


def test_cfg_job_shows_the_whole_config_and_writes_nothing(tmp_path: Path) -> None:
    import yaml

    done = command("--cfg", "job", "group=one", "stages=[select]")
    assert done.returncode == 0, done.stderr
    shown = yaml.safe_load(done.stdout)
    assert shown["group"] == {"name": "one", "size": 8, "groups_per_update": 1}
    assert "hydra" not in shown and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["optimizer.lrr=1", "stages=[prob]"], ["hydra.run.dir=/dev/null/x"]])
def test_mistakes_are_exit_code_2_of_the_process(words: list[str], tmp_path: Path) -> None:
    done = command(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("tbexp: ") and "Traceback" not in done.stderr and not done.stdout
    assert list(tmp_path.iterdir()) == []


def test_hydras_own_flags_still_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert "laptop" in command("--info", "defaults").stdout
    assert app.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tbexp ")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_is_one_message_wherever_it_is_noticed(code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        try:
            raise OSError(code, os.strerror(code), "outputs/x")
        except OSError:
            raise ValueError("something else") from None

    ended = app.ending(work)
    assert ended.code == 2
    assert "outputs/x: cannot be written" in capsys.readouterr().err


def write_rows() -> None:
    import sqlite3

    database = sqlite3.connect(":memory:")
    database.execute("PRAGMA max_page_count = 2")
    database.execute("CREATE TABLE rows (x)")
    database.execute("INSERT INTO rows VALUES (zeroblob(100000))")


def save_weights() -> None:
    import torch

    with Path("/dev/full").open("wb") as file:
        torch.save({"weights": torch.zeros(200_000)}, file)


def save_weights_by_name() -> None:
    import torch

    torch.save({"weights": torch.zeros(200_000)}, "/dev/full")


@pytest.mark.parametrize(
    "write",
    [write_rows, *(pytest.param(each, marks=pytest.mark.train) for each in (save_weights, save_weights_by_name))],
)
def test_a_full_disk_is_told_whatever_a_library_calls_it(
    write: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        write()
        return 0

    assert app.ending(work).code == 2
    assert "folder: cannot be written: No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_termination_or_a_closed_terminal_ends_as_an_interrupt_does(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(words: list[str]) -> int:
        os.kill(os.getpid(), number)
        return 0

    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setattr(app, "command", command)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert app.main([]) == 130
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_weights_that_no_package_brings_are_told_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tbexp.samples import warmed

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warmed.importlib.util, "find_spec", lambda name: None)
    assert app.main(["model=smollm2_135m", "training.steps=0"]) == 2
    err = capsys.readouterr().err
    assert "model: SmolLM2's weights are not installed" in err and "training.steps" in err


def test_an_address_that_cannot_be_read_is_not_repeated_since_it_may_carry_a_key(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert app.main(["policy=chat", "policy.endpoint.base_url=http://h/v1?key=hidden", "policy.endpoint.model=m"]) == 2
    err = capsys.readouterr().err
    assert "policy.endpoint.base_url=...: cannot be read" in err and "hidden" not in err


@pytest.mark.parametrize("shell", ["| true", "2>&1 | true", ">&-", ">&- 2>&-"])
def test_a_plan_that_nobody_reads_is_no_failure(shell: str, tmp_path: Path) -> None:
    line = f"set -o pipefail; {sys.executable} -m tbexp dry_run=true {shell}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", ["dry_run=true", "--help", "stages=[doctor]"])
def test_a_full_disk_behind_stdout_is_told(words: str, tmp_path: Path) -> None:
    line = f"{sys.executable} -m tbexp {words} >/dev/full"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("tbexp: stdout: cannot be written: No space left on device\n"), done.stderr


@pytest.mark.parametrize("shell", ["2>&1 | true", "2>&-", "2>/dev/full"])
def test_a_mistake_stays_one_when_nobody_reads_what_it_is(shell: str, tmp_path: Path) -> None:
    line = f"set -o pipefail; {sys.executable} -m tbexp seed=x {shell}"
    assert subprocess.run(["bash", "-c", line], cwd=tmp_path).returncode == 2


def test_an_interrupt_is_exit_code_130() -> None:
    script = (
        "import sys, time; from tbexp import app; app.pipeline_run = lambda: lambda *a, **k: (print('on', flush=True),"
        " time.sleep(60)); sys.exit(app.main([]))"
    )
    root = str(Path(app.__file__).parent.parent)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root}
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "on\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130


@pytest.mark.parametrize(
    ("content", "told"), [(b"seed: [1\n", "broke.yaml:"), (b"name: caf\xe9\n", "a config file is not UTF-8")]
)
def test_a_config_file_of_one_s_own_that_cannot_be_read_is_told(
    content: bytes, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "broke.yaml").write_bytes(content)
    assert app.main(["--config-dir", str(tmp_path / "mine"), "experiment=broke", "dry_run=true"]) == 2
    said = capsys.readouterr().err
    assert told in said and "Traceback" not in said and "unexpected" not in said
