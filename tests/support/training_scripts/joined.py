"""Rank 1 has more batches than the others, which wait for it in `join()`. Usage: joined.py OUT"""

import sys

import common
import final_state
import pace
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank, _ = common.start()
torch.manual_seed(3)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
losses = []
with model.join():
    for step in range(20 + 6 * (rank == 1)):
        pace.work()
        optimizer.zero_grad()
        x = torch.rand(4, 8, generator=torch.Generator().manual_seed(2 * step + rank))
        loss = common.loss_of(model, x, x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
final_state.write(sys.argv[1], losses, model, optimizer)
common.end()
