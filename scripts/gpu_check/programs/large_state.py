"""Trains a model of 2 GiB, momentum included, which a planned move has to carry. Each rank prints the sum of its weights."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    width, steps = int(sys.argv[1]), int(sys.argv[2])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*[nn.Linear(width, width) for _ in range(4)]).cuda(), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for _ in range(steps):
        loss = model(torch.randn(8, width, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    total = torch.stack([parameter.detach().double().sum() for parameter in model.parameters()]).sum().item()
    sys.stdout.write(f"rank {os.environ['RANK']} ends with {total.hex()}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


main()
