"""Files appear whole or not at all; links replace links and nothing else."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tbexp.config.whole import write_whole
from tbexp.pipeline.files import link, read_json, sha256_of, write_json


def test_a_file_is_written_with_its_folders_and_readable_by_others(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b.txt"
    write_whole(file, "ü\n")
    write_whole(file, "two\n")
    assert file.read_text(encoding="utf-8") == "two\n" and file.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in file.parent.iterdir()] == ["b.txt"]


@pytest.mark.parametrize("fault", ["text", "fsync", "interrupt"])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.txt"
    write_whole(file, "old")
    error = {"text": UnicodeEncodeError, "fsync": OSError, "interrupt": KeyboardInterrupt}[fault]

    def fail(handle: int) -> None:
        raise error("no space")

    if fault != "text":
        monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(error):
        write_whole(file, "new" * 100_000 + ("\ud800" if fault == "text" else ""))
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_json_is_the_same_text_for_the_same_value_and_half_of_it_is_nothing(tmp_path: Path) -> None:
    one, two = tmp_path / "1.json", tmp_path / "2.json"
    write_json(one, {"b": [1, "ü"], "a": None})
    write_json(two, {"a": None, "b": [1, "ü"]})
    assert one.read_bytes() == two.read_bytes() and "ü" in one.read_text(encoding="utf-8")
    assert read_json(one) == {"a": None, "b": [1, "ü"]}
    two.write_bytes(two.read_bytes()[:-4])
    assert read_json(two) is None and read_json(tmp_path / "3.json") is None


def test_the_hash_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "a").write_bytes(data)
    assert sha256_of(tmp_path / "a") == hashlib.sha256(data).hexdigest()


def test_a_link_is_relative_makes_its_target_and_replaces_a_link(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "one" / "probe"
    first, second = tmp_path / "store" / "1", tmp_path / "store" / "2"
    link(place, first)
    (first / "row").write_text("x")
    link(place, first)
    assert (place / "row").read_text() == "x" and not place.readlink().is_absolute()
    link(place, second)
    assert place.resolve() == second and (first / "row").exists()
    second.rmdir()
    link(place, first)  # the old one leads nowhere
    assert place.resolve() == first
    moved = tmp_path.rename(tmp_path.with_name(tmp_path.name + "-moved"))
    assert (moved / "runs" / "one" / "probe" / "row").read_text() == "x"
    moved.rename(tmp_path)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_no_link_is_never_replaced(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "probe"
    if kind == "folder":
        place.mkdir()
        (place / "rows").write_text("x")
    else:
        place.write_text("x")
    with pytest.raises(FileExistsError, match="in the way"):
        link(place, tmp_path / "store")
    assert not place.is_symlink() and (place / "rows" if kind == "folder" else place).read_text() == "x"
