"""Memory that forks share is moved into huge pages, and nobody notices but the clock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tbexp.sandbox import nursery

PROGRAM = """
import hashlib, importlib.util, os, random, sys
spec = importlib.util.spec_from_file_location("nursery", sys.argv[1])
nursery = importlib.util.module_from_spec(spec)
spec.loader.exec_module(nursery)
held = [random.Random(n).randbytes(1 << 12) for n in range(4000)]
before = hashlib.sha256(b"".join(held)).hexdigest()
nursery.settle()
pid = nursery.fork()
same = hashlib.sha256(b"".join(held)).hexdigest() == before
held[0] = b"mine"
if not pid:
    os._exit(0 if same else 1)
assert os.waitpid(pid, 0)[1] == 0 and same
print("well")
"""


def test_what_a_process_holds_is_the_same_after_it_was_moved_in_it_and_in_its_children() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(Path(nursery.__file__))], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr
