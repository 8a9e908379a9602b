"""The guides' commands, run as they are written, as far as they go without a network, a GPU and the benchmark's data.

A placeholder of a guide (DIR, VENV/bin/python, ...) becomes something that is here. A command that is new in a guide
has to be given its place in RUN or LEFT_OUT.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = ("evaluation", "datasets", "serving", "reference-run")
# By how a command begins, why it is not run here.
LEFT_OUT = {
    "git clone": "needs the network",
    "python -m venv": "needs the network",
    "python tests/benchmarks/replay_benchmark.py": "needs the benchmark's data",
    "python tests/benchmarks/bench_sandbox.py": "needs the benchmark's data, and takes an hour",
    "python tests/benchmarks/many_attempts.py": "takes minutes; test_many_attempts.py runs it",
    "python tests/benchmarks/bench_attempts.py": "takes minutes; test_many_attempts.py runs a small form of it",
    "python tests/benchmarks/killed_attempts.py": "takes minutes; test_many_attempts.py runs a small form of it",
    "python -m tbexp stages=[evaluate] evaluation.rows=[rows.jsonl]": "test_evaluation.py runs it on such rows",
    "tbexp 'stages=[serve]'": "serving/test_serve.py and test_openenv.py run it",
    "tbexp experiment=q38_rlft launcher=slurm launcher.partition": "needs a cluster; test_slurm.py submits to one",
    "curl http://127.0.0.1:8014": "serving/test_proxy.py asks it",
    "tbexp 'stages=[probe,select,report]' tasks=folder tasks.root=DIR policy=chat policy.serve=vllm": "needs a GPU; "
    "serving/test_served_policy.py runs it with a stand-in",
    "tbexp topology=gpu1": "needs a GPU; serving/test_served_tokens.py runs such a policy with a stand-in",
    "tbexp 'stages=[probe,select,report]' tasks=folder tasks.root=DIR sandbox=openenv": "test_openenv.py runs it",
}


def commands(guide: str) -> list[tuple[str, str]]:
    """The commands of a guide's console blocks, each with the output that stands below it."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"```console\n(.*?)```", (DOCS / f"{guide}.md").read_text(), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = re.sub(r"\\\n\s*", " ", part).partition("\n")
            found.append((line.split("  #")[0].strip(), output))
    return found


def the(guide: str, *words: str) -> tuple[list[str], str]:
    """The words, without the program, and the shown output of the one command that has all these words."""
    (found,) = [(line, output) for line, output in commands(guide) if all(word in line for word in words)]
    line = found[0].removeprefix("python -m ").removeprefix("tbexp ")
    return shlex.split(line), found[1]


def with_values(words: list[str], **values: str) -> list[str]:
    """key=value words with these values; keys are written with __ for a dot."""
    new = {key.replace("__", "."): value for key, value in values.items()}
    kept = [word for word in words if word.partition("=")[0] not in new and not word.endswith("...")]
    return [*kept, *(f"{key}={value}" for key, value in new.items())]


def tbexp(place: Any, *words: str) -> subprocess.CompletedProcess[str]:
    """The words alone, unlike `place.run`, which adds some."""
    command = [sys.executable, "-m", "tbexp", *words]
    environment = {**place.environment, "PATH": str(Path(sys.executable).parent), "HOME": str(place.folder)}
    environment |= {"PYTHONPATH": str(DOCS.parent), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.run(command, cwd=place.folder, env=environment, capture_output=True, text=True, timeout=240)


RUN = [
    ("evaluation", "stages=[regrade]"),
    ("evaluation", "experiment=bench_v1"),
    ("datasets", "tasks.agent=AGENT"),
    ("reference-run", "experiment=q38_rlft launcher=slurm dry_run=true"),
]


def test_every_command_of_a_guide_is_run_here_or_has_a_reason_not_to_be() -> None:
    for guide in GUIDES:
        for line, _ in commands(guide):
            run = [part for name, part in RUN if name == guide and part in line]
            out = [begin for begin in LEFT_OUT if line.startswith(begin)]
            assert len(run) + len(out) == 1, line


def test_datasets_a_folder_is_probed_and_selected_from(new_place: Callable[[], Any]) -> None:
    place = new_place()
    words, _ = the("datasets", "tasks.agent=AGENT")
    given = with_values(
        words,
        tasks__root=str(place.garden),
        tasks__candidates="releases/candidates.yaml",
        tasks__agent="agent",
        tasks__server_python=sys.executable,
        policy__endpoint__base_url=place.gardener.url,
        policy__endpoint__model="m",
        user="scripted",  # the gardener plays no user
        probe__attempts="3",
        tracking="none",
        hydra__run__dir="run",
    )
    done = tbexp(place, *given)
    assert done.returncode == 0, done.stderr
    assert (place.run_dir / "select" / "pool.yaml").exists() and (place.run_dir / "report" / "report.html").exists()
    assert all(row["search"] == "embedded" for row in rows(place))


def rows(place: Any) -> list[dict[str, Any]]:
    files = place.folder.glob("outputs/stages/probe/*/attempts.jsonl")
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert found
    return found


def test_evaluation_stored_states_are_judged_again(unbroken: Any) -> None:
    place = unbroken[0]
    words, shown = the("evaluation", "stages=[regrade]")
    done = place.run(*with_values(words, hydra__run__dir="run"))
    assert done.returncode == 0, done.stderr
    header = shown.splitlines()[0].split()
    assert header == ["policy", "attempts", "other", "verdict", "what", "changed"]
    assert all(word in done.stdout + done.stderr for word in header)
    assert {file.name for file in (place.run_dir / "regrade").iterdir()} >= {"changed.jsonl", "probe.jsonl"}


def test_evaluation_the_published_protocol_shows_the_servers_command(new_place: Callable[[], Any]) -> None:
    words, shown = the("evaluation", "experiment=bench_v1")
    place = new_place()
    given = with_values(
        words,
        tasks__root="DATA",  # which is not here: a plan does without, and says so
        tasks__server_python=sys.executable,
        user__endpoint__base_url="http://localhost:8002/v1",
        user__endpoint__model="u",
        judge__endpoint__base_url="http://localhost:8002/v1",
        judge__endpoint__model="j",
    )
    done = tbexp(place, *given)
    assert done.returncode == 0, done.stderr
    told, wanted = (" ".join(text.split()) for text in (done.stdout, shown))
    assert wanted[wanted.index("qwen by vLLM") :] in told
    assert "there is no folder DATA" in told


def test_reference_run_is_planned_anywhere_and_its_mistakes_are_told_as_shown(new_place: Callable[[], Any]) -> None:
    place = new_place()
    plan, *wrong = [each for each in commands("reference-run") if RUN[-1][1] in each[0]]
    planned = tbexp(place, *shlex.split(plan[0])[1:])
    assert planned.returncode == 0, planned.stderr
    assert "verl.trainer.main_ppo" in planned.stdout and "#SBATCH" in planned.stdout
    assert len(wrong) == 2
    for line, shown in wrong:
        refused = tbexp(place, *shlex.split(line)[1:])
        assert refused.returncode == 2 and refused.stderr.split() == shown.split()
    assert sorted(path.name for path in place.folder.iterdir()) == ["garden"]
