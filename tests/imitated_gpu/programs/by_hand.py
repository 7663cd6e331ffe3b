"""Trains without a wrapper: gradients are reduced by hand, values are checked, and results are shared after each step.

Usage: by_hand.py OUT [eager] [FAULT:RANK:STEP]

`eager`: with a device for the job, so that further groups are split from the first one. FAULT: as in `imitated_gpu.faults`, ordered
for one rank, or for all (`*`).
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from imitated_gpu.faults import FOLDER_VARIABLE, Fault, Orders

STEPS = 30


def order(options, rank, step):
    for option in options:
        fault, _, where = option.partition(":")
        if where in (f"{rank}:{step}", f"*:{step}"):
            orders = Orders(Path(os.environ[FOLDER_VARIABLE]))
            orders.order(Fault(fault), None if where.startswith("*") else os.getpid())


def main():
    out, options = Path(sys.argv[1]), sys.argv[2:]
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device if "eager" in options else None)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    pair = dist.new_group(list(range(world_size)), group_desc="pair")
    host = dist.new_group(backend="gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    torch.manual_seed(10 + rank)
    fixed = torch.Generator().manual_seed(rank)
    history, best = [], float("inf")
    for step in range(STEPS):
        order(options, rank, step + 1)
        x = torch.randn(16, 8, generator=fixed).to(device)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        shared = loss.detach().clone()
        dist.all_reduce(shared, group=pair)
        if not torch.isfinite(shared):
            sys.exit(3)
        loss.backward()
        works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
        for work in works:
            work.wait()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        seen = torch.tensor([loss.item(), norm.item()], device=device)
        dist.all_reduce(seen)
        told = [None] * world_size
        dist.all_gather_object(told, (rank, step, loss.item()), group=pair)
        count = torch.ones(1)
        dist.all_reduce(count, group=host)
        best = min(best, seen[0].item())
        history.append([seen.tolist(), told, count.item(), best])
        if step == 12:
            late = dist.new_group(list(range(world_size)))
        if step > 12:
            total = torch.full((3,), float(step), device=device)
            dist.broadcast(total, src=step % world_size, group=late)
            history[-1].append(total.tolist())
    with torch.no_grad():
        digest = [p.double().sum().item() for p in model.parameters()]
    (out / f"rank{rank}.json").write_text(json.dumps([history, digest]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
