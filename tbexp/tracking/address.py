"""Which tracker a run reports to.

Decided here: which tracking URIs are allowed, and where SQLite may lie. A file store is refused (MLflow is giving it
up, and it is unsafe with several writers), and so is a SQLite database on a network file system, where its locks do
not hold. What is sent to the tracker stands in `mlflow_link.py`.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tbexp.config.addresses import address_problems
from tbexp.config.schema import Tracking
from tbexp.errors import Problem, UserError

NETWORK_FILE_SYSTEMS = frozenset(
    [
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs"),
        *("lustre", "gpfs", "beegfs", "ceph", "glusterfs", "panfs", "pvfs2", "orangefs", "wekafs", "juicefs"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.juicefs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone"),
    ]
)
SERVERS = ("http", "https", "databricks", "databricks-uc", "uc")
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
KEY = "tracking.uri"
SERVER_WAY_OUT = "run `mlflow server` on one machine and set tracking.uri=http://HOST:5000"


def problems(tracking: Tracking) -> list[Problem]:
    """What is wrong with a URI that is named, as far as it can be told without making anything."""
    if tracking.kind == "none" or not tracking.uri:
        return []
    try:
        _checked(tracking.uri.strip())
    except UserError as error:
        return list(error.problems)
    return []


def tracker_uri(tracking: Tracking, default_uri: str) -> str | None:
    """The URI to report to, SQLite paths made absolute and their folder made; None when tracking is off. UserError when
    it can't be used.
    """
    if tracking.kind == "none":
        return None
    uri = _checked((tracking.uri or default_uri).strip())
    if (path := sqlite_path(uri)) is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"can't create the folder of {path}: {error.strerror}"
            raise UserError(Problem(what, KEY, "name a folder that you may write")) from None
    return uri


def _checked(uri: str) -> str:
    scheme = uri.split(":", 1)[0].split("+", 1)[0].lower() if ":" in uri else ""
    if uri in ("databricks", "databricks-uc"):
        return uri
    if scheme not in SERVERS + DATABASES:
        raise UserError(_no_file_store(uri))
    if scheme == "sqlite":
        return _absolute_sqlite(uri)
    if _password(uri):
        fix = (
            "name the user and password in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            if scheme in SERVERS
            else f"give the password to the server instead: {SERVER_WAY_OUT}"
        )
        shown = re.sub(r"//[^@/]*@", "//...@", uri)
        raise UserError(Problem(f"{shown} carries a password, which would end in config.yaml", KEY, fix))
    if scheme in ("http", "https") and (wrong := list(address_problems(uri, KEY))):
        raise UserError(wrong)
    return uri


def _password(uri: str) -> bool:
    try:
        return urlsplit(uri).password is not None
    except ValueError:  # a bracket that is not closed
        return bool(re.search(r"//[^/@]*:[^/@]*@", uri))


def sqlite_path(uri: str) -> Path | None:
    """The database file of a SQLite URI; None for every other tracker."""
    found = re.match(r"sqlite(?:\+\w+)?:///([^?]*)", uri)
    return Path(unquote(found.group(1))) if found else None


def is_server(uri: str) -> bool:
    """Whether a server lies between us and the tracker's database: it refuses paths of other machines."""
    return uri.split(":", 1)[0].lower() in SERVERS


def ui_line(uri: str) -> str:
    """The line that opens the tracker's pages: a command for a database, the address of a server."""
    if urlsplit(uri).scheme in ("http", "https"):
        return f"MLflow: {uri}"
    return f"mlflow ui --backend-store-uri {shlex.quote(uri)}"


def network_file_system(path: Path, mounts: str) -> tuple[str, str] | None:
    """Type and mount point of the network file system that `path` lies on, by the text of /proc/mounts; else None."""
    target = str(path)
    best = ("", "")
    for line in mounts.splitlines():
        columns = line.split()
        if len(columns) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), columns[1])
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        # The last of equal mount points hides the ones before it.
        if inside and len(point) >= len(best[1]):
            best = (columns[2], point)
    return best if best[0] in NETWORK_FILE_SYSTEMS else None


def _no_file_store(uri: str) -> Problem:
    path = Path(unquote(urlsplit(uri).path if uri.startswith("file:") else uri) or "mlruns")
    database = (path if path.is_absolute() else Path.cwd() / path) / "mlflow.db"
    return Problem(
        f"{uri!r} is a folder or an unknown kind of tracker; tbexp keeps no MLflow file store",
        KEY,
        f"{KEY}=sqlite:///{database} for a database of your own, or {SERVER_WAY_OUT}",
    )


def _absolute_sqlite(uri: str) -> str:
    path = sqlite_path(uri)
    if path is None or str(path) in ("", ".", ":memory:"):
        raise UserError(
            Problem(f"{uri!r} names no database file; nothing would be left", KEY, f"{KEY}=sqlite:///mlflow.db")
        )
    path = path.absolute()
    found = network_file_system(path.resolve(), _mounts())
    if found:
        raise UserError(
            Problem(
                f"{path} lies on a network file system ({found[0]} at {found[1]}), where SQLite's locks do not hold",
                KEY,
                f"{SERVER_WAY_OUT}, or name a database on a local disk",
            )
        )
    there = next(each for each in (path, *path.parents) if os.path.lexists(each))
    if there != path and not there.is_dir():
        what = f"can't create the folder of {path}: {there} is no folder"
        raise UserError(Problem(what, KEY, "name a folder that you may write"))
    if path.is_dir() or not os.access(there, os.W_OK):
        raise UserError(Problem(f"{path} can't be written", KEY, "name a database in a folder that you may write"))
    query = "?" + uri.split("?", 1)[1] if "?" in uri else ""
    return f"sqlite:///{path}{query}"


def _mounts() -> str:
    try:
        return Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return ""
