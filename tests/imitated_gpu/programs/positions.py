"""Trains with positions in a buffer, as BERT does: the wrapper takes it from rank 0 in each forward. Usage: positions.py OUT."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LENGTH = 16


class Embedded(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", torch.arange(LENGTH))
        self.places = torch.nn.Embedding(LENGTH, 8)
        self.out = torch.nn.Linear(8, 1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.out(values + self.places(self.positions)).square().mean()


def main() -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = DistributedDataParallel(Embedded().cuda(), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(5 + dist.get_rank())
    losses = []
    for _ in range(25):
        loss = model(torch.randn(4, LENGTH, 8).cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    (Path(sys.argv[1]) / f"rank{os.environ['RANK']}.json").write_text(json.dumps(losses))
    dist.destroy_process_group()


main()
