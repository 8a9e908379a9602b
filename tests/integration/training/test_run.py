"""Real trainings: verl's own trainer on Ray, with a toy in the place of the episode."""

from __future__ import annotations

import contextlib
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
from tbexp.training.groups import read_others
from tbexp.training.rows import ATTEMPTS, MISSING, VALIDATION
from tbexp.training.run import run_mark, train

HERE = Path(__file__).parent
CONFIG = Path(__file__).parents[2] / "training"  # toy_config, which unit tests use too
sys.path += [str(HERE), str(CONFIG)]

UIDS = ["mixed-a", "mixed-b", "mixed-d", "mixed-e", "flat-c"]
# Of the 8 attempts of a group, mixed-a: 1 fails once. mixed-b: all 8 fail once. mixed-d: 1 fails for good. mixed-e: all
# 8 fail for good. flat-c: 8 equal rewards. Half of the others' attempts pass. Of the two attempts of mixed-w, which is
# validated on beside mixed-v, the one that would pass fails for good: 1 of 3 passes.
FAIL = "mixed-a:1:1,mixed-b:*:1,mixed-d:0:99,mixed-e:*:99,mixed-w:1:99"
# The stream of seed 1, two mixed groups an update: d b a | c e b c d a | e c b d e a. What the updates must count:
COUNTED = {
    "train/groups/generated": (3, 6, 6),
    "train/groups/mixed": (2, 2, 2),
    "train/groups/zero_variance_used": (0, 0, 0),
    "train/refilled/zero_variance": (0, 2, 1),
    "train/refilled/system_error": (1 + 8, 1 + 8, 1 + 8),  # attempts made again in place, of a and b
    "train/refilled/system_error_groups": (1, 2, 3),
    "train/mixed_group_rate": (2 / 2, 2 / 4, 2 / 3),
    "train/reward_mean": ((8 + 4) / (16 + 7), (8 + 4 + 16) / (16 + 7 + 16), (8 + 4 + 8) / (16 + 7 + 8)),
    "train/thrown_away/attempts": (7, 7 + 16, 7 + 8),
    "train/thrown_away/failed_tries": (9 + 4, 9 + 4 + 32, 9 + 4 + 64),
    "critic/score/mean": (0.5, 0.5, 0.5),  # of what was trained on
}
TRIES = (23 + 13, 39 + 45, 31 + 77)  # attempts that ended well, and tries that failed
ADVANTAGE = 0.5 / 0.5345224838  # 4 of 8 pass: from the mean, by the standard deviation of the sample

GROUP = {"size": 8, "groups_per_update": 2}
LIBRARIES = ["tbexp.training.rollout_cpu", "tbexp.training.trainer_cpu", "handed"]

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
        toy_config(training={"steps": steps, "verl": {"actor_rollout_ref.model.external_lib": LIBRARIES}}, group=GROUP),
        model_folder=root / "model",
        train_uids=uids,
        validation_uids=["mixed-v", "mixed-w"],
        folder=root / "train",
        loop="toy.ToyLoop",
        **told,
    )


def handed(file: Path, root: Path) -> list[dict[str, list[float]]]:
    """What verl was given to train on, by update: of each task the rows' advantages. Each row has been looked at."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(root / "model")
    updates = []
    for line in file.read_text().splitlines():
        found: dict[str, list[float]] = {}
        for row in json.loads(line):
            produced = [a for a, mask in zip(row["advantages"], row["mask"], strict=True) if mask]
            assert len(set(produced)) == 1 and 2 <= len(produced) <= 16  # two turns of 8 tokens at most; no padding
            assert len(row["mask"]) < len(row["ids"])
            task = tokenizer.decode(row["ids"]).partition("\n")[0]
            found.setdefault(task, []).append(round(produced[0], 4))
        updates.append(found)
    return updates


def rows(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "train" / "metrics.jsonl").read_text().splitlines()]


def temp_of(training: Path) -> Path:
    return Path(json.loads((training / "verl" / "plan.json").read_text())["ray"]["temp"])


def left(training: Path) -> list[int | Path]:
    """Of the last start: processes, its temporary folder."""
    temp = temp_of(training)
    return [*processes.marked(temp.name.removeprefix(processes.NAME)), *([temp] if temp.exists() else [])]


@pytest.mark.train
def test_a_training_killed_with_its_parent_goes_on_and_refills_exactly_what_failed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_FAIL", FAIL)
    monkeypatch.setenv("TOY_HANDED", str(root / "handed-0"))
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
    deadline = time.monotonic() + 60
    while left(root / "train") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left(root / "train") == []

    monkeypatch.setenv("TOY_HANDED", str(root / "handed-1"))
    told: list[int] = []
    result = start(root, steps=3, metrics=lambda row, step: told.append(step))

    assert [row["step"] for row in rows(root)] == [0, 1, 2, 3]
    assert told == sorted(told) and told[-1] == 3
    for step in (0, 1, 2, 3):
        row = result.history[step]
        assert (row[VALIDATION], row[ATTEMPTS], row[MISSING]) == (1 / 3, 3, 1), step
        assert row["val-core/validation/reward/mean_at_2"] == 0.5  # verl's: mixed-w is left out
    for step in (1, 2, 3):
        row = result.history[step]
        assert {name: row[name] for name in COUNTED} == pytest.approx({n: c[step - 1] for n, c in COUNTED.items()}), (
            step
        )
        assert abs(row["train/rollout_trainer_kl"]) < 1e-5
        assert row["train/grad_norm"] > 0 and row["train/entropy"] > 0 and row["train/tokens_per_second_per_gpu"] > 0
        assert 0 < row["train/tool_wait_share"] < 1
        assert row["train/thrown_away/prompt_tokens"] >= row["train/thrown_away/tokens"] > 0
        assert 0 <= row["train/thrown_away/seconds"] < row["train/seconds/generation"]
    updates = [handed(root / "handed-0", root)[0], *handed(root / "handed-1", root)[-2:]]
    half = sorted([round(ADVANTAGE, 4)] * 4 + [round(-ADVANTAGE, 4)] * 4)
    for update in updates:
        assert {task: sorted(rows) for task, rows in update.items()} == {"mixed-a": half, "mixed-b": half}
    others = read_others(root / "train" / "verl" / "others.jsonl")
    assert {(0, "validation"), (1, "update"), (2, "update"), (3, "update"), (3, "validation")} <= others.keys()
    for (step, kind), (tries, tokens) in others.items():
        assert tokens == {"user_prompt_tokens": 10 * tries, "user_completion_tokens": 2 * tries} and tries > 0
        if kind == "update":
            assert tries == TRIES[step - 1], step
            assert result.history[step]["train/others/user_prompt_tokens"] == 10 * tries
    from transformers import AutoModelForCausalLM, AutoTokenizer

    chosen = AutoModelForCausalLM.from_pretrained(result.folder)
    base = AutoModelForCausalLM.from_pretrained(root / "model")
    assert chosen.dtype == base.dtype
    assert any(not a.equal(b) for a, b in zip(chosen.parameters(), base.parameters(), strict=True))
    assert AutoTokenizer.from_pretrained(result.folder).chat_template
    kept = {path.name for path in (root / "train" / "checkpoints").glob("global_step_*")}
    assert kept == {"global_step_3", f"global_step_{result.step}"}
    assert left(root / "train") == []


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
    monkeypatch.setenv("TOY_HANDED", str(lone / "handed"))
    with pytest.raises(
        WorldFailure, match=r"8 of 8 groups failed .*only 0 of 2 .* tool_timeout \(mixed-a: as planned\)"
    ):
        start(lone, steps=1, uids=["mixed-a"])
    tries = (lone / "train" / "verl" / "failures.jsonl").read_text().splitlines()
    assert len(tries) == 8 * 8 * 4  # groups, attempts, tries
    assert [row["step"] for row in rows(lone)] == [0] and not (lone / "handed").exists()  # nothing was trained on
    assert left(lone / "train") == []


@pytest.mark.train
@pytest.mark.parametrize("victim", ["AgentLoopWorker", "Server"])
def test_a_process_that_makes_attempts_is_missed_within_seconds(
    victim: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = root / victim
    place.mkdir()
    (place / "model").symlink_to(root / "model")
    killed: list[int] = []

    def kill(done: int, total: int, what: str) -> None:
        if done < 1 or killed:
            return
        for pid in processes.marked(temp_of(place / "train").name.removeprefix(processes.NAME)):
            with contextlib.suppress(OSError):
                if f"ray::{victim}" in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    begun = time.monotonic()
    with pytest.raises(WorldFailure, match=rf"{victim}|process of the training was killed"):
        start(place, steps=200, uids=["mixed-a"], progress=kill)
    assert killed and time.monotonic() - begun < 600  # and not after `stall_seconds`
    assert left(place / "train") == []


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
    assert left(place / "train") == []
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
def test_a_lora_training_without_warm_workers_ends_as_a_plain_model(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file
    from toy_config import toy_config

    from tbexp.training import weights

    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{CONFIG}")
    result = train(
        toy_config(
            training={"steps": 1, "verl": {"actor_rollout_ref": {"model": LORA}}}, topology={"warm_workers": False}
        ),
        model_folder=root / "model",
        train_uids=["mixed-a", "mixed-b"],
        validation_uids=["mixed-v"],
        folder=tmp_path / "train",
        loop="toy.ToyLoop",
    )
    assert result.history[1]["train/grad_norm"] > 0
    assert left(tmp_path / "train") == [] and run_mark(tmp_path / "train") in str(temp_of(tmp_path / "train"))
    assert weights.fault(result.folder, root / "model") == ""
    base, chosen = (load_file(folder / "model.safetensors") for folder in (root / "model", result.folder))
    changed = {name for name in base if not base[name].equal(chosen[name])}
    assert changed == {name for name in base if name.endswith("_proj.weight")}  # not embeddings, not norms
