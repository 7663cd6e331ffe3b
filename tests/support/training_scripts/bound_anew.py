"""A second stage at the top of a script: names mean other functions, classes and modules from then on.

Usage: bound_anew.py OUT
"""

import math
import sys

import common
import final_state
import numpy
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


class Weak:
    def __call__(self, rows):
        return rows


class Strong:
    def __call__(self, rows):
        return rows * 1.5


def half(values, wanted):
    return functional.mse_loss(values, wanted) / 2


class Trainer:
    schedule = None


common.start()
torch.manual_seed(3)
criterion, augmentation, rule, library, added, trainer = (
    functional.l1_loss,
    Weak,
    lambda step: step,
    math,
    None,
    Trainer(),
)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses, seen = [], []
for step in range(24):
    pace.hold(len(losses) + 1)
    pace.work()
    if step == 5:
        criterion, augmentation, library, added = half, Strong, numpy, half
        rule = lambda step: step * 3  # noqa: E731 - as scripts do
        trainer.schedule = lambda step: step + 100
    seen.append(
        [criterion.__name__, rule(step), library.__name__, added is half, trainer.schedule and trainer.schedule(step)]
    )
    optimizer.zero_grad()
    rows = augmentation()(torch.full((4, 8), step / 10))
    loss = criterion(model(rows), torch.full((4, 1), float(dist.get_rank())))
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
final_state.write(sys.argv[1], losses, model, optimizer, seen=seen)
common.end()
