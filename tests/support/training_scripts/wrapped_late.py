"""The model is wrapped in the first step, since it is not wrapped yet. Usage: wrapped_late.py OUT"""

import sys

import common
import final_state
import pace
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    common.start()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    x, y = common.data(64)
    losses, wrapped = [], None
    for _ in range(16):
        pace.work()
        batch = torch.randint(len(x), (4,))
        if wrapped is None:
            wrapped = DistributedDataParallel(model)
        loss = common.loss_of(wrapped, x[batch], y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(sys.argv[1], losses, model, optimizer)
    common.end()


if __name__ == "__main__":
    main()
