"""Batches that the step writes into: normalised, mixed up. Usage: in_place.py OUT"""

import sys

import common
import final_state
import pace
import torch
from torch.utils.data import DataLoader, TensorDataset

WIDE = 40_000

rank, world_size = common.start()
model = common.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
x, y = common.data(32)
wide = torch.randn(len(x), WIDE)  # a batch of it is too large to be copied without a reason
loader = DataLoader(TensorDataset(x, y, wide), batch_size=4, shuffle=True)
losses = []
for _epoch in range(3):
    for x, y, wide in loader:
        pace.work()
        x.sub_(x.mean()).div_(x.std())
        wide.sub_(1.0)
        x[:] = 0.7 * x + 0.3 * x.flip(0)
        loss = common.loss_of(model, x, y) + wide.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

final_state.write(sys.argv[1], losses, model, optimizer, last=[x, y, wide.sum()])
common.end()
