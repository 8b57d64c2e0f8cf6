"""Measures a second of all-reduces over the ranks of one node.

torch.distributed.run starts it by path, with the trainer's interpreter: all_reduce.py nccl|gloo
FILE. Rank 0 writes the measurement into FILE, as JSON. The sums are checked too: a link that
corrupts data is worse than one that is down.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

SECONDS = 1.0
GIVE_UP = 60.0  # seconds, after the imports
BYTES = {"nccl": 64 << 20, "gloo": 1 << 20}


def main(backend: str, file: Path) -> None:
    """Run all-reduces for a second. Exits with an error where a sum is wrong."""
    import torch
    import torch.distributed as dist

    faulthandler.dump_traceback_later(GIVE_UP, exit=True)
    rank = int(os.environ["RANK"])
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(seconds=20))
    world_size = dist.get_world_size()
    values = torch.empty(BYTES[backend] // 4, device=device)
    expected_sum = world_size * (world_size + 1) / 2
    keep_going = torch.ones(1, device=device)
    count = 0
    first = 0.0  # seconds of the first one, which sets up the connections
    began = time.monotonic()
    while keep_going.item():
        values.fill_(rank + 1)
        dist.all_reduce(values)
        if not bool((values == expected_sum).all()):
            raise SystemExit(f"rank {rank}: an all-reduce returned a wrong sum")
        count += 1
        elapsed = time.monotonic() - began
        if count == 1:
            first = elapsed
        keep_going.fill_(float(elapsed < SECONDS))
        dist.broadcast(keep_going, 0)  # every rank stops after the same number
    if rank == 0:
        each = (time.monotonic() - began - first) / max(1, count - 1)
        version = None
        if backend == "nccl":
            version = ".".join(map(str, torch.cuda.nccl.version()))
        measurement = {
            "ranks": world_size,
            "done": count,
            "first": first,
            "each": each,
            "bytes": BYTES[backend],
            "nccl": version,
        }
        file.write_text(json.dumps(measurement), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
