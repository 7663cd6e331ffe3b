"""Trains the last layer alone at first, and all of the model after some steps. Usage: OUT"""

import sys

import common
import final_state
import pace
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    common.start()
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)), find_unused_parameters=True
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    body = model.module[0]
    body.requires_grad_(False)
    x, y = common.data(64)
    losses = []
    for step in range(20):
        pace.hold(step + 1)
        pace.work()
        if step == 6:
            body.requires_grad_(True)
        picked = torch.randint(len(x), (4,))
        optimizer.zero_grad()
        loss = common.loss_of(model, x[picked], y[picked])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(sys.argv[1], losses, model, optimizer)
    common.end()


main()
