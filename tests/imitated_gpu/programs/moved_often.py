"""Trains on while other ranks move, and writes what its process holds: held*.json of the device, process*.json of the system.

Usage: moved_often.py OUT STEPS STEP_S
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

import imitated_gpu
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

EVERY = 20


def resident_kib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def main():
    out, steps, step_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    further = dist.new_group(list(range(dist.get_world_size())))
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(8, 8).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    held, process = [], []
    for step in range(steps):
        time.sleep(step_s)  # stands for work
        optimizer.zero_grad()
        model(torch.ones(4, 8, device=device)).square().mean().backward()
        optimizer.step()
        seen = torch.ones(1, device=device)
        dist.all_reduce(seen, group=further)
        if step % EVERY == 0:
            counts = imitated_gpu.counts()
            held.append([step, counts.communicators, counts.device_bytes, counts.streams, threading.active_count()])
            process.append([step, resident_kib(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))])
    (out / f"process{dist.get_rank()}.json").write_text(json.dumps(process))
    (out / f"held{dist.get_rank()}.json").write_text(json.dumps(held))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
