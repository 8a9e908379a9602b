"""What launchers do before they fork: huge pages for shared memory, and no look into the process that started them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


LOOKING = """
import ctypes, importlib.util, subprocess, sys
spec = importlib.util.spec_from_file_location("nursery", sys.argv[1])
nursery = importlib.util.module_from_spec(spec)
spec.loader.exec_module(nursery)
if sys.argv[3] != "open":
    nursery.look_at_nobody()
sys.exit(subprocess.run(["cat", f"/proc/{sys.argv[2]}/environ"], capture_output=True).stdout.count(b"sk-planted"))
"""
HIDING = """
import os, subprocess, sys
from tbexp.sandbox.launch import hide
if sys.argv[2] != "open":
    hide()
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[3], sys.argv[1], str(os.getpid()), sys.argv[2]]).returncode)
"""


@pytest.mark.parametrize(("how", "seen"), [("open", 1), ("hidden", 0)])
def test_a_key_in_the_environment_of_the_starting_process_cannot_be_read_below_it(how: str, seen: int) -> None:
    words = [sys.executable, "-c", HIDING, str(Path(nursery.__file__)), how, LOOKING]
    done = subprocess.run(words, env={**os.environ, "PLANTED": "sk-planted"}, timeout=60)
    assert done.returncode == seen
