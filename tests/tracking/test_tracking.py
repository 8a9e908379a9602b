from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbexp.config.schema import Tracking
from tbexp.errors import UserError
from tbexp.tracking import address as address_module
from tbexp.tracking import flatten, metric_name, open_run, tracker_uri, ui_line
from tbexp.tracking.address import network_file_system
from tbexp.tracking.journal import Journal, Sent, read_sent, write_sent
from tbexp.tracking.mlflow_link import way_out

# SQLAlchemy's complaint about how MLflow uses it.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader:DeprecationWarning")

MLFLOW = Tracking(name="mlflow", kind="mlflow")
MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/vdb /home/fast xfs rw 0 0
scratch /scratch lustre rw 0 0
me@host:/x /mnt/with\\040space fuse.sshfs rw 0 0
"""


def rows_of(database: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.parametrize(
    "uri", ["file:///tmp/mlruns", "file:mlruns", "mlruns", "./mlruns", "/tmp/mlruns", "ftp://host/x"]
)
def test_a_file_store_is_refused_with_the_way_out(uri: str) -> None:
    with pytest.raises(UserError) as refusal:
        tracker_uri(Tracking(name="t", kind="mlflow", uri=uri), "sqlite:///x.db")
    assert "tracking.uri=sqlite:///" in str(refusal.value)
    assert "mlflow server" in str(refusal.value)


@pytest.mark.parametrize("uri", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_a_database_that_would_vanish_is_refused(uri: str) -> None:
    with pytest.raises(UserError, match="no database file"):
        tracker_uri(Tracking(name="t", kind="mlflow", uri=uri), "")


@pytest.mark.parametrize("uri", ["http://me:hunter2@host:5000", "postgresql://me:hunter2@host/db"])
def test_a_password_in_the_uri_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(UserError) as refusal:
        tracker_uri(Tracking(name="t", kind="mlflow", uri=uri), "")
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize("uri", ["http:///mlflow", "https://", "http://host:x", "http://[host"])
def test_a_server_without_host_or_with_a_wrong_port_is_refused(uri: str) -> None:
    with pytest.raises(UserError, match=r"tracking\.uri: .*(no host|no valid port)"):
        tracker_uri(Tracking(name="t", kind="mlflow", uri=uri), "")


@pytest.mark.parametrize(
    "uri", ["http://host:5000", "https://host", "postgresql://me@host/db", "databricks", "mysql+pymysql://host/db"]
)
def test_servers_and_databases_are_taken_as_they_are(uri: str) -> None:
    assert tracker_uri(Tracking(name="t", kind="mlflow", uri=uri), "") == uri


def test_a_sqlite_path_becomes_absolute_and_its_folder_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tracker_uri(MLFLOW, "sqlite:///new/mlflow.db") == f"sqlite:///{tmp_path}/new/mlflow.db"
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("sqlite:///new/mlflow.db", None),
        ("sqlite:///file/mlflow.db", "file is no folder"),
        ("sqlite:///file/deep/mlflow.db", "file is no folder"),
        ("sqlite:///folder", "can't be written"),
        ("mlruns", "no MLflow file store"),
        (None, None),
    ],
)
def test_what_is_wrong_with_an_address_is_told_without_making_anything(
    uri: str | None, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder").mkdir()
    wrong = address_module.problems(Tracking(name="t", kind="mlflow", uri=uri))
    assert [said in problem.what for problem in wrong] == ([True] if said else [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_tracking_that_is_off_has_no_uri() -> None:
    assert tracker_uri(Tracking(name="none", kind="none", uri="file:x"), "sqlite:///x.db") is None


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/home/me/mlflow.db", ("nfs4", "/home")),
        ("/home/fast/mlflow.db", None),
        ("/homework/mlflow.db", None),
        ("/scratch/a/b/mlflow.db", ("lustre", "/scratch")),
        ("/mnt/with space/mlflow.db", ("fuse.sshfs", "/mnt/with space")),
        ("/var/mlflow.db", None),
    ],
)
def test_a_network_file_system_is_told_by_the_nearest_mount_point(path: str, found: tuple[str, str] | None) -> None:
    assert network_file_system(Path(path), MOUNTS) == found


def test_a_database_on_a_network_file_system_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        address_module, "_mounts", lambda: f"/dev/vda / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n"
    )
    with pytest.raises(UserError) as refusal:
        tracker_uri(MLFLOW, f"sqlite:///{tmp_path}/mlflow.db")
    assert "nfs4" in str(refusal.value)
    assert "mlflow server" in str(refusal.value)


def test_the_ui_line_can_be_pasted_into_a_shell() -> None:
    assert ui_line("sqlite:////a b/mlflow.db") == "mlflow ui --backend-store-uri 'sqlite:////a b/mlflow.db'"
    assert ui_line("http://host:5000") == "MLflow: http://host:5000"


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("eval/pass_at_1", "eval/pass_at_1"),
        ("val/mean@4", "val/mean_at_4"),
        ("pass^k", "pass_hat_k"),
        ("eval/damage & deposits/x", "eval/damage _ deposits/x"),
        ("/a//b/../c", "a/b/_/c"),
    ],
)
def test_metric_names_are_written_in_what_mlflow_allows(name: str, allowed: str) -> None:
    assert metric_name(name) == allowed


@settings(max_examples=50)
@given(st.text(min_size=1, max_size=400))
def test_a_cleaned_metric_name_stays_as_it_is(name: str) -> None:
    try:
        once = metric_name(name)
    except ValueError:
        return
    assert metric_name(once) == once
    assert len(once) <= 250


def test_params_are_dotted_and_text() -> None:
    nested = {"a": {"b": 1, "c": None, "d": [1, "x"]}, "e": "text", "f": {}, "g": True}
    assert flatten(nested) == {"a.b": "1", "a.c": "null", "a.d": '[1, "x"]', "e": "text", "f": "{}", "g": "true"}


def test_a_torn_last_line_is_dropped_and_the_rest_kept(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a": ')
    journal = Journal(file)
    journal.append([{"a": 3}])
    assert journal.read(0, 10)[0] == [{"a": 1}, {"a": 2}, {"a": 3}]
    journal.close()


def test_a_journal_is_read_on_from_the_offset(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rows.jsonl")
    journal.append({"n": n} for n in range(5))
    first, offset = journal.read(0, 3)
    rest, end = journal.read(offset, 3)
    assert [row["n"] for row in first + rest] == [0, 1, 2, 3, 4]
    assert journal.read(end, 3) == ([], end)
    journal.close()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"uri": "other", "run_key": "k", "run_id": "r", "offsets": {}}'])
def test_a_state_that_is_broken_or_of_another_tracker_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    assert read_sent(tmp_path / "state.json", uri="u", run_key="k") == Sent("u", "k")


def test_the_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    sent = Sent("u", "k", "id").after("metrics", 17)
    write_sent(tmp_path / "state.json", sent)
    assert read_sent(tmp_path / "state.json", uri="u", run_key="k") == sent


def test_without_a_tracker_everything_still_lies_in_the_folder(tmp_path: Path) -> None:
    off = Tracking(name="none", kind="none")
    with open_run(
        off, default_uri="", experiment="e", run_name="r", run_key="k", folder=tmp_path, params={"a": 1}
    ) as run:
        run.metrics({"x@1": 0.5, "bad": float("nan")}, step=3)
        assert (run.uri, run.run_id) == (None, None)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(r["name"], r["value"], r["step"]) for r in rows] == [("x_at_1", 0.5, 3), ("bad", "nan", 3)]


def test_what_a_finished_stage_tells_again_is_kept_once(tmp_path: Path) -> None:
    off = Tracking(name="none", kind="none")
    for size in (5, 5, 6):
        with open_run(
            off, default_uri="", experiment="e", run_name="r", run_key="k", folder=tmp_path, params={}
        ) as run:
            run.metrics({"select/pool_size": size, "odd": float("nan")})
            run.metric("train/reward_mean", 0.5, step=3)
    rows = [(row["name"], row["value"]) for row in Journal(tmp_path / "metrics.jsonl").rows()]
    assert rows == [("select/pool_size", 5), ("odd", "nan"), ("train/reward_mean", 0.5), ("select/pool_size", 6)]


def test_opening_a_run_imports_no_mlflow_in_the_calling_thread(tmp_path: Path) -> None:
    code = (
        "import sys, tbexp.tracking\n"
        "assert not {'mlflow', 'sqlalchemy', 'filelock'} & set(sys.modules), 'imported too early'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_is_continued_with_changed_params_and_holds_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = "sk-planted-0123456789"
    monkeypatch.setenv("TBEXP_TEST_KEY", planted)
    monkeypatch.chdir(tmp_path)
    database = tmp_path / "mlflow.db"
    ids = []
    for round_ in (1, 2):
        params = {"policy": {"api_key_env": "TBEXP_TEST_KEY"}, "steps": 10 * round_, "long": "x" * 600}
        with open_run(
            MLFLOW,
            default_uri=f"sqlite:///{database}",
            experiment="laptop run",
            run_name="first",
            run_key="key-1",
            folder=tmp_path / "run",
            params=params,
            patience=120,
        ) as run:
            run.metric("train/reward_mean", 0.25 * round_, step=round_)
            run.metric("strange", float("inf"), step=round_)
            run.tag("tbexp.partial", "rows: 3 of 4 attempts" if round_ == 1 else "no")
            run.tag("tbexp.same", "yes")
            (tmp_path / "report.html").write_text("<p>report</p>")
            run.artifact(tmp_path / "report.html")
            ids.append(run.run_id)
        if round_ == 1:
            # As if the process had died after sending and before it could note that.
            state = json.loads((tmp_path / "run/mlflow_run.json").read_text())
            state["offsets"] = {}
            (tmp_path / "run/mlflow_run.json").write_text(json.dumps(state))
    assert ids[0] == ids[1] is not None
    assert rows_of(database, "select run_uuid, status from runs") == [(ids[0], "FINISHED")]
    metrics = "select step, value from metrics where key = 'train/reward_mean' order by step"
    assert rows_of(database, metrics) == [(1, 0.25), (2, 0.5)]
    params_there = dict(rows_of(database, "select key, value from params"))
    assert params_there["steps"] == "10"
    assert params_there["long"] == "artifact params/long.txt"
    tags = dict(rows_of(database, "select key, value from tags"))
    assert tags["tbexp.changed.steps"] == "20"
    assert tags["tbexp.run_key"] == "key-1"
    assert (tags["tbexp.partial"], tags["tbexp.same"]) == ("no", "yes")
    assert len((tmp_path / "run/tags.jsonl").read_text().splitlines()) == 3  # what is told again is kept once
    kept = {path.name for path in (tmp_path / "mlflow-artifacts").rglob("*") if path.is_file()}
    assert kept == {"report.html", "long.txt"}
    assert not (tmp_path / "mlruns").exists()
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or planted.encode() not in path.read_bytes()


class Tracker(BaseHTTPRequestHandler):
    """Answers every request with an error, as a tracker behind a broken proxy does."""

    def do_GET(self) -> None:
        self.send_response(503)
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        pass


def test_an_outage_stops_nothing_and_what_was_missed_is_sent_at_the_next_start(
    tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Tracker)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    same: dict[str, Any] = dict(experiment="e", run_name="r", run_key="k", folder=tmp_path / "run", params={"a": 1})
    with (
        pytest.raises(ZeroDivisionError),
        open_run(MLFLOW, default_uri=f"http://127.0.0.1:{server.server_port}", patience=120, **same) as run,
    ):
        assert run.run_id is None
        for step in range(1500):
            run.metric("loss", 1 / (step + 1), step)
        raise ZeroDivisionError
    server.shutdown()
    server.server_close()
    assert "the run goes on" in caplog.text
    with pytest.raises(KeyboardInterrupt), open_run(MLFLOW, default_uri=f"sqlite:///{database}", patience=120, **same):
        raise KeyboardInterrupt
    assert rows_of(database, "select count(*), count(distinct step) from metrics") == [(1500, 1500)]
    assert rows_of(database, "select status from runs") == [("KILLED",)]


def test_a_tracker_that_hangs_keeps_no_run_waiting(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    class Hanging(Tracker):
        def do_GET(self) -> None:
            release.wait(60)
            super().do_GET()

        do_POST = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hanging)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with open_run(
        MLFLOW,
        default_uri=f"http://127.0.0.1:{server.server_port}",
        experiment="e",
        run_name="r",
        run_key="k",
        folder=tmp_path,
        params={},
        patience=0.1,
    ) as run:
        run.metric("x", 1.0)
    assert "the rest is kept" in caplog.text
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
    release.set()
    server.shutdown()
    server.server_close()


def test_a_database_that_is_half_made_is_told_with_the_way_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    error = RuntimeError("(sqlite3.OperationalError) duplicate column name: step [SQL: ALTER TABLE metrics ...]")
    database = f"sqlite:///{tmp_path}/mlflow.db"
    assert "move it away" in way_out(database, error) and str(tmp_path) in way_out(database, error)
    assert way_out("http://127.0.0.1:5000", error) == way_out(database, RuntimeError("refused")) == ""
