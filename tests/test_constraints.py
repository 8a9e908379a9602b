"""The constraints files: one for each extra, of versions that the project's own requirements allow."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_each_extra_has_versions_that_its_requirements_allow(extra: str) -> None:
    lines = (ROOT / "constraints" / f"{extra}.txt").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"[\w.-]+==[\w.+!]+", line) for line in lines)
    pinned = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    asked = [Requirement(line) for line in (*EXTRAS[extra], *(EXTRAS["train"] if extra == "gpu" else ()))]
    for each in asked:
        if each.name != "tbexp":
            assert each.specifier.contains(pinned[canonicalize_name(each.name)]), each
