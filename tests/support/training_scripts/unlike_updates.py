"""Ranks that train apart, each with a number of updates of its own. Usage: unlike_updates.py OUT HOW

HOW: `average`, they average their weights after each round; `end`, one of them comes to its end before the others.
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn

ROUNDS = 4


def train(model, optimizer, updates, seed, losses):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        pace.work()
        optimizer.zero_grad()
        x = torch.rand(4, 8, generator=generator)
        loss = common.loss_of(model, x, x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


def main():
    out, how = sys.argv[1:]
    rank, world_size = common.start()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for number in range(ROUNDS):
        train(model, optimizer, 5 + rank + number, 10 * number + rank, losses)
        if how == "average":
            with torch.no_grad():
                for parameter in model.parameters():
                    dist.all_reduce(parameter.data)
                    parameter.div_(world_size)
    final_state.write(out, losses, model, optimizer)
    if how == "average":
        common.end()


main()
