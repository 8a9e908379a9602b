"""A real Slurm of three nodes with eight GPUs each on this machine, and tbexp submitted to it.

The nodes have networks, process tables and /tmp of their own (slurm/with_slurm.sh). Waits are long because CI's cores
are few; no test fails on speed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tbexp

ROOT = Path(tbexp.__file__).resolve().parent.parent
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
LACKING = [p for p in ("slurmctld", "slurmd", "munged", "sbatch", "ip", "unshare") if not shutil.which(p, path=PATH)]
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(LACKING), reason=f"needs a Slurm to start: no {', '.join(LACKING)} here"),
]
KEY = "quite-open-sesame"
HERE = Path(__file__).parent
SWEPT = "buckets.bands.rarely.upper=0.05,0.08,0.12,0.15"


class Cluster:
    """The running Slurm. `run` gives a command on the login node."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.garden = "http://10.98.0.1:8123/v1"

    def words(self, *command: str, node: str = "") -> list[str]:
        return [str(ROOT / "slurm" / "inside.sh"), f"{self.folder}/{node}".rstrip("/"), *command]

    def run(self, *command: str, node: str = "", here: Path | None = None, **more: str) -> Any:
        base = {"PATH": os.environ["PATH"], "HOME": str(self.folder.parent), "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"}
        return subprocess.run(
            self.words(*command, node=node),
            cwd=here or self.folder,
            env=base | {"PYTHONPATH": str(ROOT)} | more,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def tbexp(self, *words: str, here: Path, **more: str) -> Any:
        return self.run(sys.executable, "-m", "tbexp", *words, here=here, **more)

    def job(self, number: str) -> dict[str, str]:
        """What the controller says of a job, of an array's last task."""
        return dict(re.findall(r"(\w+)=(\S*)", self.run("scontrol", "-o", "show", "job", number).stdout))

    def until(self, true: Callable[[], Any], seconds: float = 900.0) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := true():
                return found
            time.sleep(1)
        queue = self.run("squeue").stdout
        raise AssertionError(f"it did not come to that in {seconds:.0f} s; in the queue:\n{queue}")

    def start_now(self, number: str) -> None:
        """A requeued job, which Slurm lets wait for two minutes. Not at once: a node does not take a job again in the
        second in which it was ended there ("Job credential revoked").
        """
        time.sleep(3.0)
        self.run("scontrol", "update", f"jobid={number}", "StartTime=now")

    def idle(self) -> bool:
        return self.run("squeue", "-h").stdout.strip() == ""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("slurm")
    shared = [str(tmp_path_factory.getbasetemp()), str(ROOT), sys.prefix]
    script = [str(ROOT / "slurm" / "with_slurm.sh"), str(folder), "cat"]
    environment = os.environ | {"SLURM_SHARED": ":".join(shared)}
    with (folder / "said").open("wb") as said, (folder / "garden").open("wb") as grown:
        # `cat` ends with its stdin, so the cluster ends with this process, however that ends.
        wrapper = subprocess.Popen(script, stdin=subprocess.PIPE, stdout=said, stderr=said, env=environment)
        made = Cluster(folder)
        try:
            made.until(lambda: wrapper.poll() is not None or "idle" in made.run("sinfo", "-h", "-o", "%t").stdout, 120)
            if wrapper.poll() is not None:
                pytest.skip(f"no Slurm can be started here: {(folder / 'said').read_text()[-300:]}")
            garden = [sys.executable, str(HERE / "data" / "garden_on_slurm.py"), "10.98.0.1", "8123", KEY]
            garden[1:1] = ["-X", "utf8"]
            grow = subprocess.Popen(
                made.words(*garden),
                stdin=subprocess.PIPE,
                stdout=grown,
                stderr=grown,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )
            made.until(lambda: "ready" in (folder / "garden").read_text(), 60)
            yield made
            # By its input, not by a signal: the signal would end the way into the cluster and leave the gardener to the
            # machine's process 1, and a process table does not go before all that were in it have been waited for.
            grow.communicate()
        finally:
            assert wrapper.stdin is not None
            wrapper.stdin.close()
            wrapper.wait(300)


def garden_words(cluster: Cluster, folder: Path, key: str = KEY, **more: str) -> list[str]:
    """A probe of the garden through Slurm, its key in a secrets file."""
    shutil.copytree(HERE / "data" / "garden", folder / "garden", ignore=shutil.ignore_patterns("__pycache__"))
    secrets = folder / "secrets"
    secrets.touch(mode=0o600)
    secrets.write_text(f"GARDEN_KEY={key}\n")
    settings = {
        "launcher": "slurm",
        "launcher.secrets_file": str(secrets),
        "launcher.shards": "2",
        "launcher.minutes": "30",
        "stages": "[probe,select,report]",
        "tasks": "folder",
        "tasks.root": "garden",
        "tasks.candidates": "releases/candidates.yaml",
        "policy": "chat",
        "policy.endpoint.base_url": cluster.garden,
        "policy.endpoint.model": "m",
        "policy.endpoint.api_key_env": "GARDEN_KEY",
        "probe.attempts": "6",
    }
    return [f"{key}={value}" for key, value in (settings | more).items()]


def holding(folder: Path, *but: Path) -> list[Path]:
    """The files below the folder that hold the key."""
    files = [path for path in folder.rglob("*") if path.is_file() and path not in but]
    return [path for path in files if KEY.encode() in path.read_bytes()]


def jobs_in(record: Path) -> dict[str, dict[str, Any]]:
    return {job["name"]: job for job in json.loads(record.read_text())["jobs"]}


@pytest.fixture(scope="module")
def sweep(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Four runs that differ in a band's edge, submitted by one command and run to their ends."""
    folder = tmp_path_factory.mktemp("sweep")
    words = garden_words(cluster, folder)
    exported = {"GARDEN_KEY": KEY, "MY_API_TOKEN": KEY}  # as a user may have exported them for other work
    done = cluster.tbexp("-m", SWEPT, *words, here=folder, **exported)
    assert done.returncode == 0, done.stderr
    cluster.until(cluster.idle)
    return folder, words, done.stderr


def test_a_sweep_submits_all_jobs_at_once_and_shares_one_probe(cluster: Cluster, sweep: Any) -> None:
    folder, _, said = sweep
    runs = sorted((folder / "outputs" / "laptop").glob("seed1-*"))
    jobs = [jobs_in(run / "slurm" / "jobs.json") for run in runs]
    assert len(runs) == 4 and said.count("follow: ") == 4
    assert len({job["probe"]["id"] for job in jobs}) == 1 and len({job["select"]["id"] for job in jobs}) == 4
    assert sorted(job["probe"]["shared"] for job in jobs) == [False, True, True, True]
    (store,) = (folder / "outputs" / "stages" / "probe").iterdir()
    lines = [file.read_text().splitlines() for file in sorted(store.glob("attempts-*.jsonl"))]
    assert [len(part) for part in lines] == [24, 24]  # 8 tasks x 6 attempts, each by one of two jobs
    keys = [(row["uid"], row["attempt"]) for part in lines for row in map(json.loads, part)]
    assert len(set(keys)) == 48
    kept = [(run / "select" / "pool.yaml").read_text() for run in runs]
    assert all((run / "report" / "report.html").exists() for run in runs) and all(kept)


def test_the_key_that_the_jobs_used_is_in_no_file(cluster: Cluster, sweep: Any) -> None:
    folder, words, _ = sweep
    assert (folder / "outputs" / "mlflow.db").exists() and list((cluster.folder / "state").rglob("*"))
    assert holding(folder) == [folder / "secrets"]  # what is looked for can be found
    assert holding(cluster.folder) == []
    shown = cluster.tbexp("-m", SWEPT, *words, "stages=[status]", here=folder)
    assert shown.stdout.count("COMPLETED") == 4 * 4 and KEY not in shown.stdout + shown.stderr


def test_a_sweep_that_is_finished_is_not_submitted_again(cluster: Cluster, sweep: Any) -> None:
    folder, words, _ = sweep
    records = {file: file.read_bytes() for file in folder.rglob("jobs.json")}
    again = cluster.tbexp("-m", SWEPT, *words, here=folder)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("everything is finished, so nothing is submitted") == 4, again.stderr
    assert cluster.idle() and records == {file: file.read_bytes() for file in folder.rglob("jobs.json")}
    config = next((folder / "outputs" / "laptop").glob("seed1-*/config.yaml")).read_text()
    assert "- probe\n- select\n- report\n" in config  # the run's, not its last job's


def test_a_job_that_fails_shows_its_error_to_the_submitter(cluster: Cluster, tmp_path: Path) -> None:
    words = garden_words(cluster, tmp_path, key="a-key-that-is-refused")
    assert cluster.tbexp(*words, here=tmp_path).returncode == 0
    cluster.until(cluster.idle)
    done = cluster.tbexp(*words, "stages=[status]", here=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "FAILED: " in done.stdout and "refuses the key in GARDEN_KEY (HTTP 401)" in done.stdout
    (log,) = {Path(path) for path in re.findall(r"log: (\S+_0_0_log.out)", done.stdout)}
    assert "HTTP 401" in (tmp_path / log).read_text()
    assert re.search(r"select +\d+ +CANCELLED", done.stdout)  # it would have waited for ever
    assert "a-key-that-is-refused" not in done.stdout


def test_a_run_is_submitted_once_and_can_be_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    words = [*garden_words(cluster, tmp_path), "+launcher.sbatch.begin=now+1hour"]
    assert cluster.tbexp(*words, here=tmp_path).returncode == 0
    again = cluster.tbexp(*words, here=tmp_path)
    assert again.returncode == 2 and "in the queue already" in again.stderr
    assert "PENDING" in cluster.tbexp(*words, "stages=[status]", here=tmp_path).stdout
    gone = cluster.tbexp(*words, "stages=[cancel]", here=tmp_path)
    assert "cancelled" in gone.stdout and "probe" in gone.stdout and "select" in gone.stdout
    cluster.until(cluster.idle, 60)


def test_more_than_the_site_has_is_refused_with_its_numbers_before_anything_is_queued(
    cluster: Cluster, tmp_path: Path
) -> None:
    words = ["experiment=smoke", "launcher=slurm", "topology.nodes=4", "group.size=4", "launcher.gpus_per_node=9"]
    more = ["launcher.shards=1", "launcher.cpus_per_gpu=8", "launcher.partition=gpu"]
    refused = cluster.tbexp(*words, *more, here=tmp_path)
    assert refused.returncode == 2, refused.stderr
    for said in ("4 nodes, and the partition gpu has 3", "9 GPUs a node, and the nodes of the partition gpu have 8"):
        assert said in refused.stderr, refused.stderr
    assert "72 CPUs a node, and the nodes of the partition gpu have 64" in refused.stderr
    assert "no partition huge" in cluster.tbexp(*words[:2], "launcher.partition=huge", here=tmp_path).stderr
    wrong = cluster.tbexp(*words[:2], "launcher.account=a b", "+launcher.sbatch.licenses=no-such", here=tmp_path)
    assert wrong.returncode == 2 and wrong.stderr.count("sbatch: error") == 1, wrong.stderr
    assert cluster.idle() and not list(tmp_path.rglob("jobs.json"))


def test_a_run_folder_that_the_nodes_do_not_see_is_told_with_node_folder_and_fix(cluster: Cluster) -> None:
    here = Path(tempfile.mkdtemp(prefix="unshared-", dir="/tmp"))  # each node has a /tmp of its own
    try:
        words = [*garden_words(cluster, here), "stages=[probe]"]
        assert cluster.tbexp(*words, here=here).returncode == 0
        (run,) = (here / "outputs" / "laptop").iterdir()
        number = jobs_in(run / "slurm" / "jobs.json")["probe"]["id"]

        def settled() -> bool:
            return cluster.job(f"{number}_1").get("JobState") not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")

        cluster.until(settled, 120)
        told = cluster.tbexp(*words, "stages=[status]", here=here).stdout
        said = re.search(r"FAILED: (\S+) is not seen on (n\d): .* (store and hydra.run.dir have to be .*)", told)
        assert said and Path(said[1]) == next((here / "outputs" / "stages" / "probe").iterdir()) / "slurm", told
    finally:
        shutil.rmtree(here)


def test_a_node_that_never_joins_is_named_within_the_deadline(cluster: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    wall = "ip rule add to 10.98.0.11/32 ipproto tcp dport 20000-32000 blackhole"  # the head's node and ports
    if cluster.run(*wall.split(), node="n3").returncode:
        pytest.skip("no rule can be set in a node's network here")
    try:
        done = cluster.run(sys.executable, str(HERE / "data" / "three_nodes.py"), str(tmp_path), "100", here=tmp_path)
        assert done.returncode == 0, done.stderr
        cluster.until(cluster.idle)
    finally:
        cluster.run(*wall.replace("add", "del").split(), node="n3")
    log = (tmp_path / f"{done.stdout}_0_log.out").read_text()
    told = re.search(r"JobFailed: (2 of 3 nodes joined Ray within \d+ s; missing: .*)", log)
    assert told, log[-3000:]
    assert "n3 (rank 2): it cannot reach Ray's head at 10.98.0.11:" in told[1] and "n2" not in told[1]
    assert left_over(cluster) == []
    assert not (tmp_path / f"{done.stdout}-0" / "head.json").exists()  # it held the token


@contextlib.contextmanager
def cut_off(cluster: Cluster, node: str) -> Iterator[None]:
    """The node keeps its controller and Slurm's own connections, and cannot meet another node at a job's ports."""
    others = [other for other in (1, 2, 3) if node != f"n{other}"]
    walls = [f"to 10.98.0.{10 + other}/32 ipproto tcp dport 20000-32000 blackhole" for other in others]
    if any(cluster.run("ip", "rule", "add", *wall.split(), node=node).returncode for wall in walls):
        pytest.skip("no rule can be set in a node's network here")
    try:
        yield
    finally:
        for wall in walls:
            cluster.run("ip", "rule", "del", *wall.split(), node=node)


def meeting(cluster: Cluster, folder: Path, nodes: int, seconds: int, requeue: str) -> str:
    """Id of a submitted job of which only the network check matters."""
    script = str(HERE / "data" / "nodes_that_meet.py")
    done = cluster.run(sys.executable, script, str(folder), str(nodes), str(seconds), requeue, here=folder)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_nodes_whose_network_is_well_say_so_and_one_that_is_cut_off_is_named(cluster: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "well").mkdir()
    number = meeting(cluster, tmp_path / "well", 3, 60, "stay")
    cluster.until(cluster.idle)
    log = (tmp_path / "well" / f"{number}_0_log.out").read_text()
    assert re.search(r"network: an all-reduce over 3 nodes took \d+\.\d s", log), log[-3000:]
    (tmp_path / "ill").mkdir()
    with cut_off(cluster, "n3"):
        number = meeting(cluster, tmp_path / "ill", 3, 8, "stay")
        cluster.until(cluster.idle)
    log = (tmp_path / "ill" / f"{number}_0_log.out").read_text()
    told = re.search(r"JobFailed: (the network check failed on .*)", log)
    assert told and re.match(r"the network check failed on n3: it fails with n1, n2 \(", told[1]), log[-3000:]
    assert told[1].endswith("Exclude a bad node with launcher.exclude=n3")
    assert left_over(cluster) == []


def test_a_job_goes_on_without_the_node_whose_network_failed(cluster: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with cut_off(cluster, "n2"):
        number = meeting(cluster, tmp_path, 2, 8, "requeue")  # on n1 and n2
        cluster.until(lambda: cluster.job(number).get("Restarts") == "1" or cluster.idle())
        log = tmp_path / f"{number}_0_log.out"
        assert "the job goes back into the queue without n2" in log.read_text(), log.read_text()[-3000:]
        cluster.until(lambda: cluster.job(number).get("JobState") == "PENDING")
        assert cluster.job(number)["ExcNodeList"] == "n2"
        cluster.start_now(number)
        cluster.until(cluster.idle)
    assert cluster.job(number)["NodeList"] == "n[1,3]"
    assert re.search(r"network: an all-reduce over 2 nodes took", log.read_text()), log.read_text()[-3000:]


def left_over(cluster: Cluster) -> list[str]:
    """Processes of jobs that still live on some node."""
    told = cluster.run("ps", "-eo", "args").stdout.splitlines()
    marks = ("raylet", "gcs_server", "ray::", "tbexp.", "submitit", "ray/_private", "ray.scripts")
    return [line for line in told if any(mark in line for mark in marks)]


# -- training on three nodes


TRAINING = [
    *("experiment=smoke", "launcher=slurm", "launcher.gpus_per_node=8", "launcher.shards=2", "launcher.minutes=60"),
    *("launcher.signal_seconds=600", "launcher.join_seconds=600", "topology.nodes=3", "model.tiny.steps=20"),
    *("group.size=3", "group.groups_per_update=2", "probe.attempts=3", "training.steps=4"),
    *("training.validate_every=2", "training.save_every=1", "training.keep_checkpoints=2"),
]


@pytest.fixture(scope="module")
def trained(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """All stages; the training is warned after its first step, and its newest checkpoint is torn before it goes on."""
    for module in ("verl", "ray"):
        pytest.importorskip(module)
    here = tmp_path_factory.mktemp("trained")
    done = cluster.tbexp(*TRAINING, here=here)
    assert done.returncode == 0, done.stderr
    (run,) = (here / "outputs" / "smoke").iterdir()
    number = jobs_in(run / "slurm" / "jobs.json")["train"]["id"]

    def steps() -> list[int]:
        file = run / "train" / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [row["step"] for row in map(json.loads, lines) if row.get("train/seconds/step")]

    def settled() -> bool:
        return cluster.job(number).get("JobState") not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")

    cluster.until(lambda: steps() or settled())
    mlflow_run = json.loads((run / "tracking" / "mlflow_run.json").read_text())["run_id"]
    cluster.run("scancel", "--signal=USR2", number)
    cluster.until(lambda: cluster.job(number).get("Restarts") == "1" or settled())
    log = run / "slurm" / f"{number}_0_log.out"
    assert not settled(), log.read_text()[-3000:]
    saved = max(steps())
    shard = next((run / "train" / "checkpoints" / f"global_step_{saved}").glob("actor/model_world_size_3_rank_2.pt"))
    shard.write_bytes(shard.read_bytes()[:-7])
    cluster.until(lambda: cluster.job(number).get("JobState") == "PENDING")
    between = left_over(cluster)
    cluster.start_now(number)
    cluster.until(cluster.idle, 1500)
    return here, run, log.read_text(), saved, mlflow_run, between


def test_three_nodes_become_one_ray_and_train_through_all_stages(cluster: Cluster, trained: Any) -> None:
    here, run, log, *_ = trained
    shown = cluster.tbexp(*TRAINING, "stages=[status]", here=here).stdout
    assert shown.count("COMPLETED") == 9 and "FAILED" not in shown, shown + log[-3000:]
    assert len(re.findall(r"Ray on 10\.98\.0\.11:\d+: 3 nodes, 24 GPUs", log)) == 2
    told = (run / "train" / "verl" / "driver.log").read_text()
    assert {f"10.98.0.1{i}" for i in (2, 3)} <= set(re.findall(r"ip=(10\.98\.0\.\d+)", told))  # head lines have no ip
    shards = {path.name for path in run.glob("train/checkpoints/*/actor/model_*.pt")}
    assert shards == {f"model_world_size_3_rank_{rank}.pt" for rank in range(3)}
    summary = json.loads((run / "evaluate" / "summary.json").read_text())
    assert {name: policy["tasks"] for name, policy in summary["policies"].items()} == {"base": 6, "trained": 6}
    assert (run / "report" / "report.html").exists()


def test_a_warned_training_saves_at_the_step_s_end_and_is_requeued(trained: Any) -> None:
    _, _, log, saved, *_ = trained
    assert f"training stopped after step {saved}, which is saved; the next start goes on from there" in log
    assert "the job goes back into the queue" in log and saved < 4


def test_a_torn_checkpoint_is_passed_over_with_a_message(trained: Any) -> None:
    _, run, log, saved, *_ = trained
    assert re.search(rf"checkpoint of step {saved} is skipped: \S+model_world_size_3_rank_2.pt has \d+ of \d+", log)
    starts = sorted(file.name for file in (run / "train" / "verl").glob("rows-*.jsonl"))
    assert starts == ["rows-0000-from-0.jsonl", f"rows-0001-from-{saved - 1}.jsonl"]


def test_the_requeued_training_continues_one_curve_in_one_mlflow_run(trained: Any) -> None:
    from mlflow.tracking import MlflowClient

    here, run, _, _, before, _ = trained
    steps = [json.loads(line)["step"] for line in (run / "train" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [0, 1, 2, 3, 4]
    client = MlflowClient(f"sqlite:///{here / 'outputs' / 'mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if e.name == "smoke"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_id == before and found.info.status == "FINISHED"
    told = client.get_metric_history(before, "train/reward_mean")
    assert sorted({metric.step for metric in told}) == [1, 2, 3, 4]
    for stage in ("probe/pass_rate", "select/pool_size", "eval/pass_at_1"):
        assert stage in found.data.metrics
    (version,) = client.search_model_versions("name = 'smoke'")  # the chosen checkpoint, told by whichever job
    result = json.loads((run / "train" / "result.json").read_text())
    assert version.run_id == before and version.tags["tbexp.step"] == str(result["chosen_step"])
    assert version.source == (run / "train" / "chosen").resolve().as_uri()


def test_the_same_command_after_a_finished_run_submits_nothing_and_says_so(cluster: Cluster, trained: Any) -> None:
    here, run, *_ = trained
    record = (run / "slurm" / "jobs.json").read_bytes()
    again = cluster.tbexp(*TRAINING, here=here)
    assert again.returncode == 0 and "everything is finished, so nothing is submitted" in again.stdout + again.stderr
    assert cluster.idle() and (run / "slurm" / "jobs.json").read_bytes() == record


def test_no_process_is_left_on_the_nodes(cluster: Cluster, trained: Any) -> None:
    *_, between = trained
    assert between == [] and left_over(cluster) == [] and temp_folders(cluster) == []


def temp_folders(cluster: Cluster) -> list[str]:
    """Folders of jobs on the nodes; those of a Ray hold its token."""
    found = []
    for node in ("n1", "n2", "n3"):
        shown = cluster.run("find", "/tmp", "-maxdepth", "2", "-name", "tbx-*", node=node)
        found += [f"{node}:{line}" for line in shown.stdout.splitlines()]  # another user may not enter a node
    return found


def test_a_cancelled_training_leaves_no_token_behind(cluster: Cluster, trained: Any) -> None:
    here, *_ = trained
    words = [*TRAINING, "training.steps=6", "stages=[probe,select,train]"]  # two steps more of the same training
    done = cluster.tbexp(*words, here=here)
    assert done.returncode == 0, done.stderr
    run = here / str(re.search(r"^folder: (\S+)", done.stderr, re.MULTILINE)[1])  # type: ignore[index]
    number = jobs_in(run / "slurm" / "jobs.json")["train"]["id"]

    def training() -> bool:
        told = cluster.run("ps", "-eo", "args").stdout
        return (
            "tbexp.training.driver" in told and told.count("ray::") >= 3 and bool(list(run.glob("slurm/*/head.json")))
        )

    cluster.until(training)
    secrets = temp_folders(cluster)
    assert cluster.run("id", "-u").stdout.strip() != "0" or len(secrets) >= 3  # what is looked for can be found
    gone = cluster.tbexp(*words, "stages=[cancel]", here=here)
    assert "train" in gone.stdout, gone.stdout + gone.stderr
    cluster.until(cluster.idle, 120)
    assert cluster.job(number)["JobState"] == "CANCELLED"
    told = cluster.tbexp(*words, "stages=[status]", here=here).stdout
    assert re.search(rf"train \({number}\) CANCELLED: it was cancelled on n\d at \S+\n", told), told
    assert "srun:" not in told and "slurmstepd" not in told, told
    assert left_over(cluster) == [] and temp_folders(cluster) == [], secrets
    assert not list(here.rglob("head.json"))
