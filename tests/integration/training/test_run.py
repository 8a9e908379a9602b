"""Real trainings: verl's own trainer on Ray, with a toy in the place of the episode."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tbexp.errors import WorldFailure
from tbexp.training import processes
from tbexp.training.environment import for_driver, own_variables
from tbexp.training.groups import Ledger, read_others
from tbexp.training.run import run_mark, train
from tbexp.training.stream import task_of_draw

pytestmark = pytest.mark.filterwarnings("ignore:Ray state API is no longer experimental")  # verl's import of it
HERE = Path(__file__).parent
CONFIG = Path(__file__).parents[2] / "training"  # toy_config, which unit tests use too
sys.path += [str(HERE), str(CONFIG)]

UIDS = ["mixed-a", "mixed-b", "mixed-d", "flat-c"]
# mixed-a: 1 of 4 attempts fails once. mixed-b: all 4 fail once. mixed-d: 1 attempt fails for good.
FAIL = "mixed-a:1:1,mixed-b:*:1,mixed-d:0:99"
AGAIN = {"mixed-a": 1, "mixed-b": 4, "mixed-d": 0, "flat-c": 0}  # attempts that are run again in place
KIND = {"mixed-a": "mixed", "mixed-b": "mixed", "mixed-d": "failed", "flat-c": "flat"}

CHILD = """
import sys
sys.path += {paths!r}
from pathlib import Path
from test_run import start
start(Path({root!r}), steps=3)
"""


def start(root: Path, *, steps: int, uids: list[str] = UIDS, **told: Any) -> Any:
    from toy_config import toy_config

    os.environ["PYTHONPATH"] = f"{HERE}:{CONFIG}"
    return train(
        toy_config(training={"steps": steps}),
        model_folder=root / "model",
        train_uids=uids,
        validation_uids=["mixed-v"],
        folder=root / "train",
        loop="toy.ToyLoop",
        **told,
    )


def expected(steps: int) -> dict[int, Ledger]:
    """What each update must be made of, from the stream and the plan of failures alone."""
    draw, ledgers = 0, {}
    for step in range(1, steps + 1):
        ledger = Ledger(wanted=2, limit=8)
        while ledger.count("mixed") < 2 and ledger.dispatched < 8:
            task = task_of_draw(UIDS, 1, draw)
            ledger.kinds[f"{draw}"] = KIND[task]
            ledger.draws[f"{draw}"] = draw
            ledger.attempts.append({"reward": 0.0, "retried": AGAIN[task]})
            ledger.dispatched += 1
            draw += 1
        ledgers[step] = ledger
    return ledgers


def tries_that_fail(ledger: Ledger) -> int:
    """Those that are made again, and the four tries of the attempt that fails for good."""
    return sum(a["retried"] for a in ledger.attempts) + 4 * ledger.count("failed")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("verl")
    from toy import build_model

    folder = tmp_path_factory.mktemp("training")
    build_model(folder / "model")
    return folder


def rows(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "train" / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.train
def test_a_training_killed_with_its_parent_goes_on_and_refills_exactly_what_failed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_FAIL", FAIL)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(paths=[str(HERE), str(CONFIG)], root=str(root))],
        stderr=subprocess.PIPE,
        text=True,
    )
    file = root / "train" / "metrics.jsonl"
    while not (file.exists() and any(row["step"] == 1 for row in rows(root))):
        assert child.poll() is None, child.stderr.read() if child.stderr else ""
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    mark = run_mark(root / "train")
    deadline = time.monotonic() + 60
    while processes.marked(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes.marked(mark) == []
    assert not Path(f"/tmp/tbx-{mark}").exists()

    told: list[int] = []
    result = start(root, steps=3, metrics=lambda row, step: told.append(step))

    assert [row["step"] for row in rows(root)] == [0, 1, 2, 3]
    assert told == sorted(told) and told[-1] == 3
    for step, ledger in expected(3).items():
        row, wanted = result.history[step], ledger.metrics()
        counts = [name for name in wanted if name.startswith(("train/groups/", "train/refilled/"))]
        assert {name: row[name] for name in counts} == {name: wanted[name] for name in counts}, step
        assert row["critic/score/mean"] == 0.5  # of the attempts that were trained on: two mixed groups, no padding
        assert abs(row["train/rollout_trainer_kl"]) < 1e-5
        assert row["train/grad_norm"] > 0
        lost = sum(kind != "mixed" for kind in ledger.kinds.values()) * 4 - sum(
            kind == "failed" for kind in ledger.kinds.values()
        )
        assert row["train/thrown_away/attempts"] == lost, step
        assert row["train/thrown_away/failed_tries"] == tries_that_fail(ledger), step
        assert (row["train/thrown_away/tokens"] > 0) == (lost > 0)
        assert row["train/thrown_away/prompt_tokens"] >= row["train/thrown_away/tokens"]
        assert 0 <= row["train/thrown_away/seconds"] < row["train/seconds/generation"]
    others = read_others(root / "train" / "verl" / "others.jsonl")
    assert {(0, "validation"), (1, "update"), (2, "update"), (3, "update"), (3, "validation")} <= others.keys()
    for (step, kind), (tries, tokens) in others.items():
        assert tokens == {"user_prompt_tokens": 10 * tries, "user_completion_tokens": 2 * tries} and tries > 0
        if kind == "update":
            ledger = expected(3)[step]
            clean = len(ledger.kinds) * 4 - sum(k == "failed" for k in ledger.kinds.values())
            assert tries == clean + tries_that_fail(ledger), step
            assert result.history[step]["train/others/user_prompt_tokens"] == 10 * tries
    from transformers import AutoModelForCausalLM, AutoTokenizer

    chosen = AutoModelForCausalLM.from_pretrained(result.folder)
    base = AutoModelForCausalLM.from_pretrained(root / "model")
    assert chosen.dtype == base.dtype
    assert any(not a.equal(b) for a, b in zip(chosen.parameters(), base.parameters(), strict=True))
    assert AutoTokenizer.from_pretrained(result.folder).chat_template
    kept = {path.name for path in (root / "train" / "checkpoints").glob("global_step_*")}
    assert kept == {"global_step_3", f"global_step_{result.step}"}
    assert processes.marked(mark) == []


@pytest.mark.train
def test_the_same_call_again_starts_nothing(root: Path) -> None:
    before = (root / "train" / "chosen" / "model.safetensors").stat().st_mtime_ns
    told: list[str] = []
    result = start(root, steps=3, progress=lambda done, total, what: told.append(what))
    assert told == [] and result.steps == 3
    assert (root / "train" / "chosen" / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.train
def test_a_run_whose_every_group_fails_ends_by_saying_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_FAIL", "mixed-a:*:99")
    lone = root / "lone"
    lone.mkdir()
    (lone / "model").symlink_to(root / "model")
    with pytest.raises(WorldFailure, match=r"8 of 8 groups failed .* tool_timeout \(mixed-a: as planned\)"):
        start(lone, steps=1, uids=["mixed-a"])
    assert processes.marked(run_mark(lone / "train")) == []


@pytest.mark.train
def test_a_gradient_that_is_no_number_ends_the_run_and_it_goes_on_from_the_checkpoint_before(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_NAN", "2")  # attempts of the third update
    place = root / "nan"
    place.mkdir()
    (place / "model").symlink_to(root / "model")
    with pytest.raises(WorldFailure, match=r"update 3: actor/\w+ is not a finite number.*of update 2 is kept"):
        start(place, steps=4, uids=["mixed-a"])
    assert [row["step"] for row in rows(place)] == [0, 1, 2]
    assert processes.marked(run_mark(place / "train")) == []
    monkeypatch.delenv("TOY_NAN")
    assert start(place, steps=4, uids=["mixed-a"]).steps == 4
    assert [row["step"] for row in rows(place)] == [0, 1, 2, 3, 4]
    assert all(row["train/grad_norm"] > 0 for row in rows(place)[1:])


def test_the_drivers_environment_holds_nothing_that_would_change_verl_or_ray(tmp_path: Path) -> None:
    from toy_config import toy_config

    inherited = {
        "RAY_ADDRESS": "elsewhere:1",
        "RAY_AUTH_TOKEN": "t",
        "VERL_PLATFORM": "npu",
        "PATH": "/bin",
        "KEY": "k",
    }
    own = own_variables(toy_config(), mark="m", temp=tmp_path, metrics_file=tmp_path / "rows")
    env = for_driver(own, inherited=inherited, joins=False)
    assert env["VERL_PLATFORM"] == "cpu" and env["PATH"] == "/bin" and env["KEY"] == "k"
    assert env["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "token")
    assert not {"RAY_ADDRESS", "RAY_AUTH_TOKEN"} & env.keys()
    assert env["CUDA_VISIBLE_DEVICES"] == "-1"  # an id for Ray's logical device, and no GPU for anybody
    joining = for_driver(own, inherited=inherited, joins=True)
    assert joining["RAY_AUTH_TOKEN"] == "t" and not {"RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH"} & joining.keys()


def test_on_gpus_verl_loads_what_keeps_trainings_apart(tmp_path: Path) -> None:
    from toy_config import toy_config

    gpu = toy_config(topology={"device": "cuda", "rollout": "vllm", "gpus_per_node": 1})
    own = own_variables(gpu, mark="m", temp=tmp_path, metrics_file=tmp_path / "rows")
    env = for_driver(own, inherited={"VERL_USE_EXTERNAL_MODULES": "other", "CUDA_VISIBLE_DEVICES": "3"}, joins=False)
    assert env["VERL_USE_EXTERNAL_MODULES"] == "tbexp.training.apart" and env["CUDA_VISIBLE_DEVICES"] == "3"


LORA = {"lora_rank": 4, "lora_alpha": 8, "target_modules": "all-linear", "lora": {"merge": True}}


@pytest.mark.train
def test_a_lora_training_ends_as_a_plain_model(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import load_file
    from toy_config import toy_config

    from tbexp.training import weights

    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{CONFIG}")
    result = train(
        toy_config(training={"steps": 1, "verl": {"actor_rollout_ref": {"model": LORA}}}),
        model_folder=root / "model",
        train_uids=["mixed-a", "mixed-b"],
        validation_uids=["mixed-v"],
        folder=tmp_path / "train",
        loop="toy.ToyLoop",
    )
    assert result.history[1]["train/grad_norm"] > 0
    assert weights.fault(result.folder, root / "model") == ""
    base, chosen = (load_file(folder / "model.safetensors") for folder in (root / "model", result.folder))
    changed = {name for name in base if not base[name].equal(chosen[name])}
    assert changed == {name for name in base if name.endswith("_proj.weight")}  # not embeddings, not norms
