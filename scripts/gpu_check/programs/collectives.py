"""Two ranks measure their all-reduce, and rank 0 the device's own copy. Rank 0 prints one JSON object."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

LARGE_BYTES = int(os.environ["LARGE_BYTES"])
ROUNDS = int(os.environ["ROUNDS"])


def median_s(work: Callable[[], object], rounds: int) -> float:
    """Return the median time that the device takes for it, the host's call and wait included."""
    taken = []
    for _ in range(rounds + 2):
        torch.cuda.synchronize()
        started_s = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - started_s)
    return statistics.median(taken[2:])


def main() -> None:
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    large = torch.ones(LARGE_BYTES // 4, device=device)
    facts = {}
    if os.environ["RANK"] == "0":  # the other one waits on its host meanwhile: the device is this one's alone
        other = torch.empty_like(large)
        copy_s = median_s(lambda: other.copy_(large), ROUNDS)
        facts["copy_on_device_GB_per_s"] = 2 * LARGE_BYTES / copy_s / 1e9
        facts["idle_synchronize_us"] = 1e6 * median_s(lambda: None, ROUNDS)
    dist.init_process_group("nccl")
    small = torch.ones(1, device=device)
    facts["all_reduce_of_4_bytes_us"] = 1e6 * median_s(lambda: dist.all_reduce(small), ROUNDS)
    large_s = median_s(lambda: dist.all_reduce(large), max(ROUNDS // 10, 3))
    facts[f"all_reduce_of_{LARGE_BYTES >> 20}_MiB_ms"] = 1e3 * large_s
    if dist.get_rank() == 0:
        print(json.dumps(facts), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
