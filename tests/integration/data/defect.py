"""tbexp with a defect: what follows the probe raises an error that no one expects."""

from __future__ import annotations

import sys

from tbexp.app import main
from tbexp.pipeline import probing


def broken(rows: object) -> float:
    raise RuntimeError("the shed burns")


probing.rate = broken
sys.exit(main(sys.argv[1:]))
