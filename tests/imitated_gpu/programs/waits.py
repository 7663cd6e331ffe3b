"""Trains BatchNorm layers beside small tensors in variables. Says how often the host waits in a step: waits.py OUT LAYERS."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from imitated_gpu import counts
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    out, layers = Path(sys.argv[1]), int(sys.argv[2])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    body = torch.nn.Sequential(torch.nn.Linear(8, 8), *[torch.nn.BatchNorm1d(8) for _ in range(layers)]).cuda()
    model = DistributedDataParallel(body, device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = [torch.randn(3, device="cuda") for _ in range(layers)]
    inputs = torch.randn(4, 8, device="cuda")
    waits = []
    before = counts().host_waits
    for _ in range(40):
        loss = model(inputs).square().mean() + kept[0].sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = counts().host_waits
        waits.append(now - before)
        before = now
    (out / "waits.json").write_text(json.dumps(waits))
    dist.destroy_process_group()


main()
