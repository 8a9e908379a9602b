"""Who is in a Ray: `python -m tbexp.cluster.roll_call ADDRESS FILE` keeps FILE up to date until it is ended.

A process of its own, since a client of Ray replaces signal handlers that the job needs.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tbexp.cluster.nodes import write


def main(address: str, file: Path) -> None:
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="error")
    while True:
        nodes = sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])
        write(file, json.dumps({"nodes": nodes, "gpus": ray.cluster_resources().get("GPU", 0)}))
        time.sleep(0.5)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
