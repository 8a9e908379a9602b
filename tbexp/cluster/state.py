"""What became of jobs: their states, their errors, their end.

Decided here: who is asked, the controller first (it knows what happens now, and forgets within minutes), then
accounting where there is any, then the files of the job. An error is the work's own message, else the end of its log,
without what Slurm says whenever it ends a job.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

ALIVE = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "RESIZING")
LAST_LINES, LAST_OF_CANCELLED = 12, 3
START = "Starting with JobEnvironment("  # submitit's first words of a start; a log may hold several
ENDED = re.compile(
    r"slurmstepd\S*: error: \*\*\* (?:JOB|STEP) \S+ ON (\S+) CANCELLED AT (\S+?)(?: DUE TO (.+?))? \*\*\*"
)
# What is said of every end. A task that was killed or out of memory is a cause, and stays.
ALWAYS_SAID = re.compile(
    r"submitit (INFO|WARNING) |\S+ \S+ WARNING Bypassing signal "
    r"|srun: (got SIG|forcing job termination|Force Terminated|Job step aborted|Terminating|launch/slurm: _step_signal"
    r"|error: \S+: tasks? \S+: (Terminated|Exited with exit code))"
)
ELSEWHERE = "do it where squeue answers: on a machine that knows the cluster by its slurm.conf, or by SLURM_CONF"
NO_LOG = "0:53"  # Slurm's exit code of a job whose log could not be opened on the node, before anything of it ran


@dataclass(frozen=True, slots=True)
class JobState:
    """One job, or one of an array (`id` is then such as 12_3). error: of a failed one. log: of its first node.

    exit: code and signal, as Slurm writes them.
    """

    id: str
    state: str
    nodes: str
    reason: str
    restarts: int
    log: Path
    error: str = ""
    exit: str = ""

    @property
    def alive(self) -> bool:
        return self.state in ALIVE

    @property
    def waits(self) -> bool:
        """Whether it has not begun, or not once more since it was requeued, nor ever did if it was cancelled then."""
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD") or (self.state == "CANCELLED" and not self.nodes)

    @property
    def starts(self) -> int:
        return self.restarts + (0 if self.waits else 1)

    @property
    def failed(self) -> bool:
        return not self.alive and self.state not in ("COMPLETED", "UNKNOWN")

    @property
    def ends_badly(self) -> bool:
        """Whether what waits for its success (`afterok`) can never start."""
        return self.failed or (self.state == "COMPLETING" and self.exit not in ("", "0:0"))


def states(job: str, folder: Path, tasks: int) -> list[JobState]:
    """The states of a job with this id, by task of an array. tasks: how many it was submitted with; 1 is no array."""
    names = [job] if tasks == 1 else [f"{job}_{i}" for i in range(tasks)]
    known = from_controller(job) or from_accounting(job)
    found = []
    for name in names:
        told = known.get(name, {})
        state = told.get("state") or by_result(folder, name)
        one = JobState(
            id=name,
            state=state,
            nodes=told.get("nodes", ""),
            reason=told.get("reason", ""),
            restarts=int(told.get("restarts", "0")),
            log=folder / f"{name}_0_log.out",
            exit=told.get("exit", ""),
        )
        if one.waits and not one.alive:
            one = replace(one, reason="")  # what it waited for is not why it was cancelled
        found.append(replace(one, error=error_of(folder, name, one)) if one.failed else one)
    return found


def from_controller(job: str) -> dict[str, dict[str, str]]:
    """By job or array task, from `scontrol show job`; nothing when the controller has forgotten it."""
    told = run(["scontrol", "-o", "show", "job", job])
    found = {}
    for line in told.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if not fields.get("JobId"):
            continue
        entry = {
            "state": fields.get("JobState", ""),
            "nodes": "" if fields.get("NodeList") == "(null)" else fields.get("NodeList", ""),
            "reason": "" if fields.get("Reason") in (None, "None") else fields["Reason"],
            "restarts": fields.get("Restarts", "0"),
            "exit": fields.get("ExitCode", ""),
        }
        if "ArrayJobId" not in fields:
            found[fields["JobId"]] = entry
            continue
        for task in numbers(fields.get("ArrayTaskId", "")):
            found[f"{fields['ArrayJobId']}_{task}"] = entry
    return found


def from_accounting(job: str) -> dict[str, dict[str, str]]:
    told = run(["sacct", "-X", "-n", "-P", "-o", "JobID,State,NodeList,Restarts,ExitCode", "-j", job])
    found = {}
    for line in told.splitlines():
        name, state, nodes, restarts, code = [*line.split("|"), "", "", "", "", ""][:5]
        if re.fullmatch(r"\d+(_\d+)?", name):
            found[name] = {
                "state": state.split()[0] if state else "",  # "CANCELLED by 1000"
                "nodes": "" if nodes == "None assigned" else nodes,
                "restarts": restarts if restarts.isdigit() else "0",
                "exit": code,
            }
    return found


def numbers(tasks: str) -> list[int]:
    """Slurm's 0-2,5%4 as 0, 1, 2, 5."""
    found: list[int] = []
    for part in tasks.partition("%")[0].split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found += range(int(first), int(last or first) + 1)
    return found


def by_result(folder: Path, name: str) -> str:
    """From submitit's result, when Slurm knows nothing any more."""
    result = folder / f"{name}_0_result.pkl"
    if not result.exists():
        return "UNKNOWN"
    return "COMPLETED" if read_result(result)[0] == "success" else "FAILED"


def error_of(folder: Path, name: str, state: JobState) -> str:
    """The message of a job that failed."""
    result = folder / f"{name}_0_result.pkl"
    if result.exists():
        kind, said = read_result(result)
        if kind == "error":
            return last_message(str(said))
    last = folder / f"{name}-{state.restarts}" / "outcome.json"  # what earlier starts said was no failure
    if last.exists() and (said := json.loads(last.read_text()).get("message")):
        return str(said)
    if not state.log.exists() and state.nodes and state.state != "CANCELLED":
        return unseen(folder, state)
    return end_of_log(state) or ("it never began" if state.starts == 0 else state.reason)


def end_of_log(state: JobState) -> str:
    """When and why Slurm ended the last start, if it did, and the start's last words."""
    if not state.log.exists():
        return ""
    lines = state.log.read_text(errors="replace").splitlines()
    starts = [number for number, line in enumerate(lines) if START in line]
    told, ends = [], []
    for line in lines[starts[-1] if starts else 0 :]:
        if found := ENDED.match(line):
            ends.append(found)
        elif not ALWAYS_SAID.match(line):
            told.append(line)
    cancelled = state.state == "CANCELLED"
    head = "it was cancelled" if cancelled else "Slurm ended it" if ends else ""
    if ends:
        node, at, why = max(ends, key=lambda end: end[3] or "").groups()
        head += f" on {node} at {at}" + (f", due to {why.lower()}" if why else "")
    return "\n".join([*([head] if head else []), *told[-(LAST_OF_CANCELLED if cancelled else LAST_LINES) :]])


def unseen(folder: Path, state: JobState) -> str:
    """Of a job that was started somewhere and has left nothing here."""
    fix = "store and hydra.run.dir have to be on a file system that this machine and the nodes share"
    if state.exit == NO_LOG:
        return (
            f"{folder} is not seen on {state.nodes}: Slurm could not open the job's log there, and ran nothing; {fix}"
        )
    why = f" ({state.reason})" if state.reason else ""
    return f"it ended on {state.nodes}{why} without a log in {folder}; {fix}"


def read_result(file: Path) -> tuple[str, object]:
    from submitit.core.utils import pickle_load

    kind, said = pickle_load(file)
    return str(kind), said


def last_message(trace: str) -> str:
    """The message at the end of a traceback, which may have several lines."""
    lines = trace.rstrip().splitlines()
    heads = [i for i, line in enumerate(lines) if re.match(r"[\w.]+(Error|Failed|Exit|Exception|Interrupt)\b", line)]
    text = "\n".join(lines[heads[-1] :]) if heads else "\n".join(lines[-LAST_LINES:])
    return re.sub(r"^[\w.]*JobFailed: ", "", text)


def cancel(jobs: Iterable[str]) -> None:
    """Ends jobs; those that have ended already are left alone."""
    names = list(jobs)
    if names:
        subprocess.run(["scancel", *names], capture_output=True)


def unanswered() -> str:
    """What squeue says where Slurm cannot be asked; "" where it answers."""
    command = ["squeue", "--noheader", "--format=%i", "--me"]
    try:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60)
    except OSError:
        return "there is no squeue on this machine"
    except subprocess.TimeoutExpired as late:
        return last_line(late.stderr or b"") or "squeue gave no answer within 60 s"
    return "" if done.returncode == 0 else last_line(done.stderr) or f"squeue ended with code {done.returncode}"


def last_line(said: bytes) -> str:
    return said.decode(errors="replace").strip().rpartition("\n")[2].strip()[:300]


def run(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
