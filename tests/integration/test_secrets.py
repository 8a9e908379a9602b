"""A key that a run used is nowhere: not in its files, in no process's arguments, not in what its servers are given."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KEY = "quite-open-sesame"
PROGRAM = str(Path(__file__).parent / "data" / "defect.py")


def holding(folder: Path, key: str = KEY) -> list[Path]:
    """The files below the folder that hold the key, names included."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if key.encode() in path.read_bytes() or key in path.name]


def of_processes(name: str) -> dict[int, bytes]:
    """A file of every process in /proc, by process."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                found[int(folder.name)] = (folder / name).read_bytes()
    return found


def descendants(pid: int) -> set[int]:
    parents = {p: int(stat.rpartition(b")")[2].split()[1]) for p, stat in of_processes("stat").items()}
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


@pytest.fixture(scope="module")
def watched(new_place: Callable[[], Any]) -> Any:
    """A probe that is refused in its middle with a body that echoes the key, after /proc was looked at."""
    place = new_place()
    place.gardener.key = KEY
    seen: dict[str, Any] = {}

    def before(number: int) -> Any:
        if number == 55:  # 16 attempts at once make 48 requests at most before one of them is graded
            children = descendants(process.pid)
            seen["arguments"] = [line for line in of_processes("cmdline").values() if KEY.encode() in line]
            environments = of_processes("environ")
            seen["parent"] = KEY.encode() in environments[process.pid]
            seen["children"] = {pid: environments[pid] for pid in children if pid in environments}
            seen["names"] = [of_processes("cmdline").get(pid, b"") for pid in children]
        return (401, {"error": {"message": f"Bearer {KEY} is revoked"}}) if number > 60 else None

    place.gardener.before = before
    process = place.start("tracking=mlflow")
    out, err = process.communicate(timeout=240)
    return place, process.returncode, out + err, seen


def test_a_refusal_in_the_middle_is_the_user_s_to_fix(watched: Any) -> None:
    _, code, said, _ = watched
    assert code == 2 and "Traceback" not in said and said.count("tbexp: ") == 1
    assert "refuses the key in GARDEN_KEY (HTTP 401)" in said
    assert KEY not in said


def test_no_process_shows_the_key(watched: Any) -> None:
    _, _, _, seen = watched
    assert seen["parent"]  # what was looked for can be found
    assert seen["arguments"] == []
    assert any(b"launcher.py" in line for line in seen["names"]) and any(b"worker.py" in line for line in seen["names"])
    assert len(seen["children"]) >= 3
    assert [pid for pid, environment in seen["children"].items() if KEY.encode() in environment] == []


def test_what_was_finished_is_kept_and_a_good_key_continues(watched: Any) -> None:
    place, *_ = watched
    kept = place.rows()
    assert 5 < len(kept) < 48 and all(row["system_error"] is None for row in kept)
    assert holding(place.folder) == []
    place.gardener.quiet()
    place.gardener.key = place.environment["GARDEN_KEY"] = "another-key"
    done = place.run("tracking=mlflow")
    assert done.returncode == 0, done.stderr
    assert f"48 attempts, {len(kept)} done before" in done.stderr
    assert place.rows()[: len(kept)] == kept and len(place.rows()) == 48
    assert (place.folder / "mlflow.db").exists() and (place.run_dir / "report" / "report.html").exists()
    assert (place.run_dir / "tbexp.log").stat().st_size
    assert holding(place.folder) == [] and holding(place.folder, "another-key") == []


def test_a_defect_of_tbexp_itself_tells_nothing(new_place: Callable[[], Any]) -> None:
    place = new_place()
    place.gardener.key = KEY
    place.environment["GARDEN_KEY"] = f"{KEY}\n"  # as a secret that is mounted as a file often ends
    settings = ("probe.attempts=1", "stages=[probe]")
    done = place.run(*settings, program=(PROGRAM,))
    assert done.returncode == 1 and "the shed burns" in done.stderr and "Traceback" not in done.stderr
    assert "Traceback" in (place.run_dir / "tbexp.log").read_text()
    assert holding(place.folder) == [] and KEY not in done.stderr


def test_an_endpoint_that_echoes_the_key_is_not_quoted(new_place: Callable[[], Any]) -> None:
    place = new_place()
    echo = f"what is Bearer {KEY} {'x' * 400}"
    answers = [(500, echo), (400, echo), (200, echo), (302, echo)]
    place.gardener.before = lambda number: answers[number % 4]
    settings = ("probe.attempts=3", "probe.retries=0", "policy.endpoint.retries=0", "stages=[probe]")
    done = place.run(*settings)
    assert done.returncode == 3 and "what is Bearer ***" in done.stderr
    assert KEY not in done.stderr and holding(place.folder) == []
    place.gardener.before = lambda number: (404, echo)
    done = place.run(*settings)
    assert done.returncode == 2 and "HTTP 404" in done.stderr
    assert KEY not in done.stderr and holding(place.folder) == []


@pytest.mark.parametrize("key", ["sesame-one\nsesame-two", "sésame-ouvre-toi"])
def test_a_key_that_no_header_can_carry_is_refused_unseen(key: str, new_place: Callable[[], Any]) -> None:
    place = new_place()
    place.environment["GARDEN_KEY"] = key
    done = place.run()
    assert done.returncode == 2 and "what GARDEN_KEY holds is no key" in done.stderr
    assert not any(part in done.stderr for part in ("Traceback", "sesame", "sésame", "ouvre"))
