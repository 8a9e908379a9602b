"""tbexp that knows one more evaluation-only task, by the hash of its query: that of the file's first argument."""

from __future__ import annotations

import hashlib
import sys

from tbexp.app import main
from tbexp.tasks import benchmark

uids, hashes = benchmark._shipped()
known = hashlib.sha256(sys.argv.pop(1).encode()).hexdigest()
benchmark._shipped = lambda: (uids, hashes | {known})  # type: ignore[assignment]
sys.exit(main(sys.argv[1:]))
