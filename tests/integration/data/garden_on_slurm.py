"""The gardener of the tests' conftest, for nodes: `garden_on_slurm.py ADDRESS PORT KEY`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from conftest import Gardener

Gardener(sys.argv[1], int(sys.argv[2]), sys.argv[3])
sys.stdout.write("ready\n")
sys.stdout.flush()
sys.stdin.read()
