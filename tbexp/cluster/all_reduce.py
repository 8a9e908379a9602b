"""One rank of an all-reduce: `python -m tbexp.cluster.all_reduce DEVICE RANK WORLD ADDRESS PORT SECONDS`.

A process of its own, since a collective that hangs cannot be taken back. Exit code 0: the sum was right in time.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

ELEMENTS = 2**20  # 4 MiB of float32: enough that data goes the way that gradients go, not only a handshake


def main(device: str, rank: int, world: int, address: str, port: int, seconds: float) -> None:
    import torch
    import torch.distributed as dist

    limit = timedelta(seconds=seconds)
    if device == "cuda":
        torch.cuda.set_device(0)
    store = dist.TCPStore(address, port, world, is_master=rank == 0, timeout=limit)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)
    ours = torch.full((ELEMENTS,), rank + 1.0, device=device)
    dist.all_reduce(ours)
    low, high = float(ours.min()), float(ours.max())
    wanted = world * (world + 1) / 2
    if (low, high) != (wanted, wanted):
        raise RuntimeError(f"the sum of 1 to {world} came out between {low} and {high}")
    # The store ends with the first rank's process: not before all have read from it for the last time.
    store.add("done", 1)
    if rank == 0:
        while store.add("done", 0) < world:
            continue


if __name__ == "__main__":
    given = sys.argv[1:]
    main(given[0], int(given[1]), int(given[2]), given[3], int(given[4]), float(given[5]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without the teardown of a process group, which waits for peers
