"""Jobs without a cluster: states, ranks, ports, the environment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tbexp.cluster import job, ports, ray_nodes, state, submission
from tbexp.cluster.network import Network
from tbexp.cluster.nodes import JobFailed, Nodes, inherited, scratch
from tbexp.config.secrets import secret_name
from tbexp.training import processes

ENVIRONMENT = {
    "SLURM_JOB_ID": "12",
    "SLURM_PROCID": "1",
    "SLURM_JOB_NODELIST": "n[1-2],m07",
    "SLURM_RESTART_COUNT": "2",
}
SHOWN = """JobId=12 ArrayJobId=11 ArrayTaskId=0 JobName=x JobState=RUNNING Reason=None Restarts=1 NodeList=n1
JobId=11 ArrayJobId=11 ArrayTaskId=1-2,5%3 JobName=x JobState=PENDING Reason=Dependency Restarts=0 NodeList=(null)
"""


def test_a_rank_knows_who_is_where() -> None:
    nodes = Nodes.here(ENVIRONMENT)
    assert nodes.hosts == ("n1", "n2", "m07") and nodes.host == "n2"
    assert nodes.job == "12" and nodes.start == "12-2"
    task = Nodes.here(ENVIRONMENT | {"SLURM_ARRAY_JOB_ID": "11", "SLURM_ARRAY_TASK_ID": "3"})
    assert task.job == "11_3" and task.start == "11_3-2" and task.mark != nodes.mark


def test_each_task_of_an_array_has_its_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(state, "run", lambda command: SHOWN if command[0] == "scontrol" else "")
    found = {one.id: one for one in state.states("11", tmp_path, 3)}
    assert [found[f"11_{i}"].state for i in range(3)] == ["RUNNING", "PENDING", "PENDING"]
    assert found["11_0"].nodes == "n1" and found["11_0"].restarts == 1
    assert found["11_2"].reason == "Dependency" and all(one.alive for one in found.values())


def test_a_job_that_slurm_has_forgotten_is_known_by_its_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from submitit.core.utils import cloudpickle_dump

    monkeypatch.setattr(state, "run", lambda command: "")
    cloudpickle_dump(("success", "done"), tmp_path / "5_0_result.pkl")
    trace = "Traceback (most recent call last):\n  File x\ntbexp.cluster.nodes.JobFailed: the shed burns\nand the barn"
    cloudpickle_dump(("error", trace), tmp_path / "6_0_result.pkl")
    assert state.states("5", tmp_path, 1)[0].state == "COMPLETED"
    (failed,) = state.states("6", tmp_path, 1)
    assert failed.failed and failed.error == "the shed burns\nand the barn"
    (lost,) = state.states("7", tmp_path, 1)
    assert lost.state == "UNKNOWN" and not lost.alive and not lost.failed


def test_a_job_without_a_result_shows_the_end_of_its_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(state, "run", lambda c: "JobId=8 JobState=OUT_OF_MEMORY Reason=OutOfMemory NodeList=n1\n")
    (tmp_path / "8_0_log.out").write_text("".join(f"line {i}\n" for i in range(40)))
    (failed,) = state.states("8", tmp_path, 1)
    assert failed.state == "OUT_OF_MEMORY" and failed.error.endswith("line 39") and "line 20" not in failed.error


STEP_ENDS = """submitit INFO (2026-11-30 04:27:49,248) - Starting with JobEnvironment(job_id=8, hostname=n1, node=0(1))
probe, part 1 of 3: 16 attempts
srun: Job step aborted: Waiting up to 22 seconds for job step to finish.
srun: got SIGCONT
submitit WARNING (2026-11-30 04:29:12,769) - Bypassing signal SIGCONT
2026-11-30 04:29:12,769 WARNING Bypassing signal SIGCONT
slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-30T04:29:12{why} ***
srun: forcing job termination
slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-30T04:29:12{why} ***
2026-11-30 04:29:13,040 WARNING Slurm ends the job
srun: error: n1: task 0: {task}
srun: launch/slurm: _step_signal: Terminating StepId=7.0
"""
WORDS = "probe, part 1 of 3: 16 attempts\n2026-11-30 04:29:13,040 WARNING Slurm ends the job"
AT = "on n1 at 2026-11-30T04:29:12"


@pytest.mark.parametrize(
    ("found", "log", "told"),
    [
        ("CANCELLED", STEP_ENDS.format(why="", task="Exited with exit code 143"), f"it was cancelled {AT}\n{WORDS}"),
        ("CANCELLED", "srun: got SIGCONT\n", "it was cancelled"),
        (
            "TIMEOUT",
            STEP_ENDS.format(why=" DUE TO TIME LIMIT", task="Terminated"),
            f"Slurm ended it {AT}, due to time limit\n{WORDS}",
        ),
        (
            "OUT_OF_MEMORY",
            STEP_ENDS.format(why="", task="Out Of Memory"),
            f"Slurm ended it {AT}\n{WORDS}\nsrun: error: n1: task 0: Out Of Memory",
        ),
        (  # of an earlier start
            "FAILED",
            STEP_ENDS.format(why=" DUE TO JOB REQUEUE", task="Terminated")
            + STEP_ENDS.splitlines()[0]
            + "\nthe shed burns\nsrun: error: n1: task 0: Exited with exit code 1\n",
            "the shed burns",
        ),
    ],
)
def test_what_slurm_says_of_every_end_is_not_the_error_of_a_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: str, log: str, told: str
) -> None:
    monkeypatch.setattr(state, "run", lambda command: f"JobId=8 JobState={found} Reason=None NodeList=n1\n")
    (tmp_path / "8_0_log.out").write_text(log)
    (failed,) = state.states("8", tmp_path, 1)
    assert failed.error == told


@pytest.mark.parametrize(
    ("outcomes", "restarts", "told"),
    [
        ({0: "stopped after step 4"}, 1, "line 39"),  # the start that failed said nothing
        ({0: "stopped after step 4", 1: "the shed burns"}, 1, "the shed burns"),
        ({n: f"start {n}" for n in range(11)}, 10, "start 10"),  # by text 9 is the last
        ({n: f"start {n}" for n in range(11)}, 11, "line 39"),
        ({0: "the shed burns"}, 0, "the shed burns"),
        ({0: ""}, 0, "line 39"),
    ],
)
def test_the_error_of_a_job_is_that_of_its_last_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcomes: dict[int, str], restarts: int, told: str
) -> None:
    shown = f"JobId=8 JobState=NODE_FAIL Reason=NodeDown Restarts={restarts} NodeList=n1\n"
    monkeypatch.setattr(state, "run", lambda command: shown)
    (tmp_path / "8_0_log.out").write_text("".join(f"line {i}\n" for i in range(40)))
    for start, message in outcomes.items():
        (tmp_path / f"8-{start}").mkdir()
        (tmp_path / f"8-{start}" / "outcome.json").write_text(json.dumps({"message": message}))
    (failed,) = state.states("8", tmp_path, 1)
    assert failed.error.splitlines()[-1] == told


@pytest.mark.parametrize(
    ("controller", "accounting"),
    [
        ("JobId=8 JobState=FAILED Reason=JobLaunchFailure ExitCode=0:53 Restarts=0 NodeList=n1\n", ""),
        ("", "8|FAILED|n1|0|0:53\n"),
    ],
)
def test_a_job_whose_log_slurm_could_not_open_says_which_folder_is_not_seen_where(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, controller: str, accounting: str
) -> None:
    monkeypatch.setattr(state, "run", lambda command: controller if command[0] == "scontrol" else accounting)
    (failed,) = state.states("8", tmp_path, 1)
    assert failed.error.startswith(f"{tmp_path} is not seen on n1: ") and "hydra.run.dir have to be" in failed.error


def test_a_job_that_ended_on_a_node_and_left_no_log_here_says_where_it_would_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = "JobId=8 JobState={} Reason=NonZeroExitCode ExitCode=1:0 NodeList={}\n"
    monkeypatch.setattr(state, "run", lambda command: told.format("FAILED", "n2"))
    (failed,) = state.states("8", tmp_path, 1)
    assert failed.error.startswith(f"it ended on n2 (NonZeroExitCode) without a log in {tmp_path}; ")
    monkeypatch.setattr(state, "run", lambda command: told.format("CANCELLED", "(null)"))
    assert state.states("8", tmp_path, 1)[0].error == "it never began"


@pytest.mark.parametrize(
    ("shown", "log", "where", "starts", "error"),
    [
        ("CANCELLED Reason=Dependency Restarts=0 NodeList=(null)", "", "", 0, "it never began"),
        ("CANCELLED Reason=Resources Restarts=1 NodeList=(null)", "boo\n", "", 1, "it was cancelled\nboo"),
        ("CANCELLED Reason=None Restarts=1 NodeList=n1", "", "", 2, ""),
        ("PENDING Reason=BeginTime Restarts=1 NodeList=(null)", "", "BeginTime", 1, ""),
        ("PENDING Reason=Dependency Restarts=0 NodeList=(null)", "", "Dependency", 0, ""),
        ("RUNNING Reason=None Restarts=1 NodeList=n1", "", "", 2, ""),
        ("FAILED Reason=NonZeroExitCode Restarts=0 NodeList=n1", "boo\n", "NonZeroExitCode", 1, "boo"),
    ],
)
def test_what_a_job_waited_for_is_not_why_it_was_cancelled_and_a_requeued_one_has_not_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shown: str, log: str, where: str, starts: int, error: str
) -> None:
    monkeypatch.setattr(state, "run", lambda command: f"JobId=8 JobState={shown}\n")
    if log:
        (tmp_path / "8_0_log.out").write_text(log)
    (one,) = state.states("8", tmp_path, 1)
    assert (one.reason, one.starts, one.error) == (where, starts, error)


def test_ports_follow_job_and_restart_and_avoid_those_that_are_taken() -> None:
    first = Nodes("12", 12, 0, 0, ("localhost",))
    start = ports.free_range(first, "127.0.0.1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", start + 3))
        taken.listen()
        assert ports.free_range(first, "127.0.0.1") == start + ports.PORTS
    assert ports.free_range(Nodes("12", 12, 1, 0, ("localhost",)), "127.0.0.1") != start
    assert start + ports.PORTS * ports.SLOTS < 2 * 32768 and start >= ports.FIRST_PORT


def test_what_a_site_sets_for_ray_counts_for_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("VERL_PLATFORM", "npu")
    environment = ray_nodes.environment_of(Nodes.here(ENVIRONMENT), tmp_path, "the token")
    assert environment["RAY_AUTH_MODE"] == "token" and "the token" not in environment.values()
    assert not {"RAY_ADDRESS", "VERL_PLATFORM"} & environment.keys()
    assert (tmp_path / "token").read_text() == "the token" and (tmp_path / "token").stat().st_mode & 0o077 == 0


def test_the_rank_that_tells_who_is_missing_is_never_missing_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_nodes, "address_of", lambda host: f"10.0.0.{host[1:]}")
    (tmp_path / "rank-2.json").write_text('{"phase": "Ray is starting on it"}')
    nodes, ray = Nodes("12", 12, 0, 0, ("n1", "n2", "n3")), ray_nodes.Ray(8, None, 60.0)
    for present in ({}, {"nodes": ["10.0.0.1"], "gpus": 8}):  # nothing: nobody has been counted yet
        told = ray_nodes.missing(nodes, tmp_path, present, ray, 60.0)
        assert told.startswith("1 of 3 nodes joined Ray within 60 s; missing: n2 (rank 1): its task has not begun; ")
        assert "n3 (rank 2): Ray is starting on it" in told and "n1" not in told
    there = {"nodes": [f"10.0.0.{n}" for n in (1, 2, 3)], "gpus": 16}
    assert ray_nodes.missing(nodes, tmp_path, there, ray, 60.0).endswith("with 16 GPUs instead of 24")
    alone = Nodes("12", 12, 0, 0, ("n1",))
    assert "on n1 has not told" in ray_nodes.missing(alone, tmp_path, {}, ray, 60.0)


@pytest.mark.parametrize("begun", [(1,), (1, 2)])
def test_a_node_whose_task_does_not_begin_is_named_within_the_deadline_and_nobody_waits_for_its_all_reduce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: tuple[int, ...]
) -> None:
    tried: list[str] = []
    monkeypatch.setattr(job.between_nodes, "lead", lambda *_: tried.append("lead") or {})
    monkeypatch.setattr(job.between_nodes, "take_part", lambda *_: tried.append("take part"))
    monkeypatch.setattr(job.between_nodes, "interface_variables", lambda *_: {})
    hosts = ("localhost", "n2", "n3")
    ray, check = ray_nodes.Ray(8, None, 0.5 if len(begun) == 1 else 60.0), Network("cpu", 60.0)
    work = job.NodeJob(plan="p", folder=str(tmp_path), ray=ray, network=check)
    signals: Any = SimpleNamespace(check=lambda: None)
    others = [
        threading.Thread(target=work.meet, args=(Nodes("12", 12, 0, rank, hosts), tmp_path, signals)) for rank in begun
    ]
    for other in others:
        other.start()
    bad = work.meet(Nodes("12", 12, 0, 0, hosts), tmp_path, signals)
    if tried:
        job.between_nodes.finish(tmp_path, 0)  # as the real one does
    for other in others:
        other.join(30)
        assert not other.is_alive()
    late = {} if len(begun) == 2 else {"n3": "its task has not begun within 0.5 s"}
    assert bad == late and tried == ([] if late else ["lead"]) and (tmp_path / "done").exists() is bool(late)


def test_sbatch_is_not_given_secrets_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = {"MY_API_KEY": "x", "HF_TOKEN": "y", "PLAIN": "sk-0123456789abcdefghij", "GARDEN_KEY": "z", "KEPT": "v"}
    # The same secret under names that say nothing, and inside another value.
    planted |= {"PGPASS": "quite-open", "MY_COOKIE": "session=quite-open;", "SHORT": "zz"}
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    with submission.without_secrets({"GARDEN_KEY": "z", "NOT_THERE": "", "ELSEWHERE": "quite-open"}):
        assert [name for name in planted if name in os.environ] == ["KEPT", "SHORT"]
        assert "PATH" in os.environ and not secret_name("PATH")
    assert all(os.environ[name] == value for name, value in planted.items())


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("JobId=12 StartTime=5 EndTime=130 Deadline=N/A", 30.0),  # a preemption whose grace time is shorter
        ("JobId=12 StartTime=5 EndTime=700 Deadline=N/A", 600.0),  # its limit is far, someone else has warned
        ("JobId=12 StartTime=5 EndTime=Unknown Deadline=N/A", 600.0),
        ("slurm_load_jobs error: Unable to contact slurm controller", 600.0),
    ],
)
def test_what_is_left_after_a_warning_is_what_slurm_says_and_never_more_than_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, left: float
) -> None:
    script = f'#!/bin/sh\n[ "$SLURM_TIME_FORMAT $*" = "%s -o show job 11_3" ] && echo "{said}"\n'
    (program := tmp_path / "scontrol").write_text(script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")  # a user's own
    work = job.NodeJob(plan="p", folder=str(tmp_path), warning_seconds=600.0)
    assert work.until(Nodes("11_3", 12, 0, 0, ("n1",)), 100.0) == 100.0 + left
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert work.until(Nodes("11_3", 12, 0, 0, ("n1",)), 100.0) == 700.0


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[list[str]]]:
    """Ends a start of a job as its work would; the commands that Slurm was given."""
    nodes, given = Nodes("12", 12, 0, 0, ("localhost",)), []

    class Done:
        returncode, stderr = 0, ""

    def end(*, idle: bool, **settings: Any) -> list[list[str]]:
        given.clear()
        start = tmp_path / nodes.start
        start.mkdir(exist_ok=True)
        (start / "outcome.json").write_text('{"message": "training stopped: this start kept 0 steps"}')
        monkeypatch.setattr(job.subprocess, "run", lambda command, **_: given.append(command) or Done())
        monkeypatch.setattr(job.signal, "signal", lambda number, handler: None)
        signals = job.Signals()
        signals.ended = True  # as Slurm does after a requeue
        with contextlib.suppress(SystemExit):
            job.NodeJob(plan="p", folder=str(tmp_path), **settings).again(nodes, start, signals, idle=idle)
        return given

    return end


def test_a_job_that_kept_something_is_requeued_however_often(ending: Callable[..., list[list[str]]]) -> None:
    for _ in range(5):
        assert ending(idle=False) == [["scontrol", "requeue", "12"]]


def test_starts_that_keep_no_step_are_no_success_and_end_after_a_few(ending: Callable[..., list[list[str]]]) -> None:
    assert ending(idle=True) and ending(idle=True)
    assert ending(idle=False)  # one that kept a step between them counts anew
    assert ending(idle=True) and ending(idle=True)
    with pytest.raises(JobFailed, match=r"kept 0 steps; 3 starts in a row kept nothing new"):
        ending(idle=True)


def test_a_job_that_must_not_be_requeued_says_how_to_go_on(ending: Callable[..., list[list[str]]]) -> None:
    with pytest.raises(JobFailed, match="the same command goes on from there"):
        ending(idle=False, requeue=False)


def test_a_plan_that_a_node_does_not_see_is_a_file_system_that_is_not_shared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    try:
        with pytest.raises(JobFailed, match=r"not seen on n2: store and hydra\.run\.dir have to be"):
            job.NodeJob(plan=str(tmp_path / "plan.json"), folder=str(tmp_path))()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_of_the_names_for_gpus_that_slurm_sets_one_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert inherited()["ROCR_VISIBLE_DEVICES"] == "0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert "ROCR_VISIBLE_DEVICES" not in inherited() and inherited()["CUDA_VISIBLE_DEVICES"] == "0"


ORPHANS = """
import subprocess, sys, time
from tbexp.cluster.nodes import Nodes, descendants, scratch, spawn
import os
with scratch(Nodes("test-%d" % os.getpid(), 1, 0, 0, ("here",))) as temp:
    grandchild = "import os, time; os.fork() or os.setsid(); os.environ.clear(); time.sleep(600)"
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {grandchild!r}], env={{}})"
    child = spawn([sys.executable, "-c", orphan], os.environ)
    child.wait()
    while len(descendants(os.getpid())) < 2:
        time.sleep(0.05)
    print(*descendants(os.getpid()), temp)
"""


def test_orphans_without_a_name_end_with_the_job() -> None:
    done = subprocess.run([sys.executable, "-c", ORPHANS], capture_output=True, text=True, timeout=120)
    *pids, temp = done.stdout.split()
    assert len(pids) == 2, done.stderr
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids) and not Path(temp).exists()


KILLED = """
import os, sys, time
from tbexp.cluster.nodes import Nodes, scratch, spawn, write
from tbexp.training import processes
with scratch(Nodes(sys.argv[1], 1, 0, 0, ("here",))) as temp:
    write(temp / processes.TOKEN, "the token", private=True)
    marked = os.environ | {processes.MARK: f"s{sys.argv[1]}-0"}
    child = spawn([sys.executable, "-c", "import time; time.sleep(600)"], marked)
    print(child.pid, temp, flush=True)
    time.sleep(600)
"""


def test_what_a_killed_job_left_on_a_node_goes_with_the_next_start_there_whosever_it_is() -> None:
    begun = [
        subprocess.Popen([sys.executable, "-c", KILLED, f"test{os.getpid()}{name}"], stdout=subprocess.PIPE, text=True)
        for name in "ab"
    ]
    try:
        told = [(process.stdout.readline() if process.stdout else "").split() for process in begun]
        (left, first), (_, second) = [(int(pid), Path(folder)) for pid, folder in told]
        begun[0].kill()
        begun[0].wait()
        assert (first / "token").exists() and Path(f"/proc/{left}").exists()
        with scratch(Nodes(f"test{os.getpid()}c", 1, 0, 0, ("here",))):
            assert not first.exists() and (second / "token").exists()  # the other job lives
        assert "Z" in state_of(left)
    finally:
        for process in begun:
            process.kill()
            process.wait()
        processes.remove_abandoned()
    assert not second.exists()


def state_of(pid: int) -> str:
    """Of a process; Z also if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_at_the_end_that_slurm_asked_for_the_token_goes_at_once_and_nobody_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, start = Nodes("12", 12, 0, 0, ("n1", "n2")), tmp_path / "12-0"
    start.mkdir()
    (start / "head.json").write_text('{"token": "the token"}')
    (start / "rank-1.json").write_text('{"joined": true}')  # it was ended too and will not say that it has left

    def nobody_waits(seconds: float) -> None:
        assert not (start / "head.json").exists()
        raise AssertionError("Slurm kills in a few seconds")

    monkeypatch.setattr(ray_nodes.time, "sleep", nobody_waits)
    ray_nodes.dismiss(nodes, start, lambda: True)
    assert (start / "done").exists() and not (start / "head.json").exists()
