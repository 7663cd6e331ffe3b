"""Rank 1 vanishes, and rank 0 waits for it in an all-reduce, aborts from another thread and goes on with a third process.

The test says when to go on, by lines on stdin.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from imitated_gpu import counts
from imitated_gpu.ranks import report

RANK = int(os.environ["RANK"])
ELEMENTS = 300_000
TIMEOUT = timedelta(seconds=100)


def new_backend(store: dist.Store, rank: int) -> dist.Backend:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = TIMEOUT
    return dist.ProcessGroupNCCL(dist.PrefixStore("second", store), rank, 2, options)


def joiner(store: dist.Store) -> None:
    store.get("go")
    backend = new_backend(store, 1)
    tensor = torch.full((ELEMENTS,), 2.0, device="cuda")
    backend.allreduce([tensor]).wait()
    torch.cuda.synchronize()
    report(sum=tensor[0].item())


def peer() -> None:
    report(ready=True)
    sys.stdin.readline()


def settle(store: dist.Store, old: dist.Backend, before: torch.Tensor) -> None:
    """Waits in vain, aborts, and starts anew in the same group."""
    stuck = torch.full((ELEMENTS,), 1.0, device="cuda")
    dist.all_reduce(stuck, async_op=True).wait()
    behind = torch.empty_like(stuck)
    behind.copy_(stuck)
    event = torch.cuda.Event()
    event.record()
    report(bytes=counts().device_bytes)
    sys.stdin.readline()
    is_stuck = not event.query()
    aborting = threading.Thread(target=old.abort)
    started = time.monotonic()
    aborting.start()
    torch.cuda.synchronize()
    loose_s = time.monotonic() - started
    aborting.join()
    facts = {
        "is_stuck": is_stuck,
        "loose_s": loose_s,
        "garbage": bool(torch.isnan(behind.cpu()).all()),
        "intact": bool((before.cpu() == 3).all()),
        "communicators": counts().communicators,
    }
    store.set("go", b"1")
    group, device = dist.group.WORLD, torch.device("cuda")
    kind = dist.ProcessGroup.BackendType(11)
    group._register_backend(device, kind, new_backend(store, 0))
    group._set_default_backend(kind)
    again = torch.full((ELEMENTS,), 1.0, device="cuda")
    dist.all_reduce(again)
    report(**facts, sum=again[0].item(), bytes=counts().device_bytes)


def main() -> None:
    torch.cuda.set_device(0)
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore("127.0.0.1", port, is_master=RANK == 0, timeout=TIMEOUT)
    if RANK == 2:
        joiner(store)
        os._exit(0)
    dist.init_process_group("nccl", store=dist.PrefixStore("first", store), rank=RANK, world_size=2, timeout=TIMEOUT)
    before = torch.full((ELEMENTS,), RANK + 1.0, device="cuda")
    dist.all_reduce(before)
    torch.cuda.synchronize()
    if RANK == 1:
        peer()
    else:
        settle(store, dist.group.WORLD._get_backend(torch.device("cuda")), before)
    os._exit(0)


main()
