"""Weights that each forward makes of others, and a rank that evaluates alone now and then. Usage: OUT"""

import sys

import common
import final_state
import pace
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import weight_norm

EVALUATED_AFTER = range(10, 18)


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        loss = common.loss_of(model.module, x, y)
    model.train()
    return loss.item()


def main():
    rank, _ = common.start()
    torch.manual_seed(7)
    model = nn.Sequential(weight_norm(nn.Linear(8, 4096)), nn.Tanh(), weight_norm(nn.Linear(4096, 1)))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = common.data(64)
    losses = []
    for step in range(1, 21):
        pace.hold(step)
        pace.work()
        picked = torch.randperm(len(x))[:8]
        optimizer.zero_grad()
        loss = common.loss_of(model, x[picked], y[picked])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step in EVALUATED_AFTER and rank == 0:
            losses.append(evaluate(model, x, y))
    final_state.write(sys.argv[1], losses, model, optimizer)
    common.end()


main()
