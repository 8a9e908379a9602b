"""Processes of one training: found again by a mark in their environment, ended without leaving one behind.

Their temporary folder, which holds the token of their Ray, is held by a lock as long as whoever made it lives; one that
nobody holds any more, since its maker was killed, goes when the next one is made on the machine.

Ray's processes start process groups of their own, so a group or session does not reach them all; an inherited variable
does, but for Ray's agents, which write their title over their environment or a part of it: those are known by the open
files that they have in the run's temporary folder. Only processes found in one of these two ways are ever signalled.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tbexp.sandbox.launch import TRAINING_MARK

MARK = TRAINING_MARK
PR_SET_PDEATHSIG = 1
TEMP, NAME = Path("/tmp"), "tbx-"
OWNER = "owner"  # a file in the folder, locked by its maker
TOKEN = "token"
LIBC = ctypes.CDLL(None)


def die_with(parent: int) -> None:
    """SIGKILL when the parent goes (Linux), also if it is gone already. Also to be called between fork and exec."""
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def temp_folder(mark: str) -> Path:
    """Ray's folder of this training. Short: the paths of Unix sockets end at 107 characters."""
    return TEMP / f"{NAME}{mark}"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[Path]:
    """The folder, new and empty, for its owner only; gone in the end, the token in it first. To be called with nothing
    of the same mark alive.
    """
    remove_abandoned()
    with contextlib.suppress(OSError), (folder / OWNER).open("r+") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)  # another training is removing it, and ending what has our mark
    shutil.rmtree(folder, ignore_errors=True)
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    with (fresh / OWNER).open("w") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)  # before anyone can find it
        fresh.rename(folder)
        try:
            yield folder
        finally:
            (folder / TOKEN).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)


def write_token(folder: Path) -> None:
    """What the processes of a Ray know each other by."""
    token = folder / TOKEN
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))


def remove_abandoned() -> None:
    """Ends the processes and removes the folders of makers that were killed on this machine."""
    for folder in TEMP.glob(f"{NAME}*"):
        try:
            with (folder / OWNER).open("r+") as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(owner.fileno()).st_ino != (folder / OWNER).stat().st_ino:
                    continue  # it was removed, and made anew by a training that lives
                end(folder.name.removeprefix(NAME))
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # another user's, or held, or gone
            continue


def marked(mark: str) -> list[int]:
    """Ids of living processes with `MARK=mark` in their environment, this one excepted."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if pid == os.getpid():
            continue
        try:
            environment = _environment(folder)
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            title = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if state in "ZX":
            continue
        titled = title.startswith(b"ray::") or (bool(environment) and not environment.strip(b"\0 "))
        if wanted in environment.split(b"\0") or (titled and _writes_to(folder, temp_folder(mark))):
            found.append(pid)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _environment(process: Path) -> bytes:
    """As it began. One that is just being executed has neither environment nor command line: it is looked at again."""
    for pause in (0.001, 0.002, 0.005, 0.01, 0.02, 0.0):
        found = (process / "environ").read_bytes()
        if found or (process / "cmdline").read_bytes():
            break
        (process / "exe").readlink()  # OSError of a kernel's thread and of one that has ended
        time.sleep(pause)
    return found


def _writes_to(process: Path, folder: Path) -> bool:
    """Whether the process has a file open in the folder, which may be removed already."""
    try:
        return any(str(place.readlink()).startswith(f"{folder}/") for place in (process / "fd").iterdir())
    except OSError:
        return False


def end(mark: str, *, patience: float = 10.0) -> list[int]:
    """Kills every marked process and waits until none is left; the ids that were there."""
    ended: list[int] = []
    deadline = time.monotonic() + patience
    while alive := marked(mark):
        ended += [pid for pid in alive if pid not in ended]
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return ended
