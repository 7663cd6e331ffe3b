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


def dataset() -> TensorDataset:
    """A batch of it is too large to be copied without a reason."""
    x, y = common.data(32)
    return TensorDataset(x, y, torch.arange(len(x) * WIDE).reshape(len(x), WIDE) % 97 / 97)


loader = DataLoader(dataset(), batch_size=4, shuffle=True)
losses, sums = [], []
for _epoch in range(3):
    for batch, target, wide in loader:
        pace.work()
        batch.sub_(batch.mean()).div_(batch.std())
        wide.sub_(1.0)
        batch[:] = 0.7 * batch + 0.3 * batch.flip(0)
        loss = common.loss_of(model, batch, target) + wide.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        sums.append(wide.sum().item())

final_state.write(sys.argv[1], losses, model, optimizer, sums=sums)
common.end()
