"""Where conf/ is, and what its groups and options are: from a checkout, or from an installed wheel."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path

HIDDEN = ("hydra",)


def conf_folder() -> Path:
    """The folder with config.yaml: inside the package when it was installed as a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    places = (package / "conf", package.parent / "conf")
    for place in places:
        if (place / "config.yaml").is_file():
            return place
    raise FileNotFoundError(
        f"no conf/config.yaml in {' or '.join(str(place) for place in places)}; install tbexp again"
    )


def sweeps_folder(conf: Path) -> Path | None:
    """The ready sweeps of a checkout, which are the group `sweep`; None when conf/ has that group itself."""
    folder = conf.parent / "sweeps"
    return folder if folder.is_dir() and not (conf / "sweep").is_dir() else None


def options(conf: Path) -> dict[str, dict[str, str]]:
    """Every group with its options and what the first comment of each option's file says."""
    folders = {path.name: path for path in sorted(conf.iterdir()) if path.is_dir() and path.name not in HIDDEN}
    sweeps = sweeps_folder(conf)
    if sweeps:
        folders["sweep"] = sweeps
    found = {
        group: {file.stem: first_comment(file) for file in sorted(folder.glob("*.yaml"))}
        for group, folder in folders.items()
    }
    return {group: files for group, files in found.items() if files}


def first_comment(file: Path) -> str:
    """The text of the first comment that is no Hydra directive; of one of several lines the first sentence."""
    comments = itertools.takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    texts = [text for line in comments if (text := line.lstrip("# ").strip()) and not text.startswith("@package")]
    sentence = re.match(r".+?[.?](?= )", " ".join(texts)) if len(texts) > 1 else None
    return sentence[0] if sentence else texts[0] if texts else ""


def chosen_by_default(conf: Path) -> Mapping[str, str]:
    """The option of each group that config.yaml chooses."""
    import yaml

    defaults = yaml.safe_load((conf / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    return {group: option for entry in defaults if isinstance(entry, dict) for group, option in entry.items()}
