"""Ranks that train apart, each with a number of updates of its own. Usage: unlike_updates.py OUT HOW

HOW: `average`, they average their weights after each round; `end`, one of them comes to its end before the others; `skip`, each
makes its updates together with the others, but one of them leaves one out, and tells the others of its loss all the same; `hang`,
one of them waits once for a message in vain in front of its update, if a file is named by IN_VAIN.
"""

import os
import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

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


def wait_in_vain_once():
    try:
        os.close(os.open(os.environ["IN_VAIN"], os.O_CREAT | os.O_EXCL))
    except (KeyError, FileExistsError):
        return
    dist.recv(torch.empty(1), 1)


def train_together(model, optimizer, rank, losses, how):
    model = DistributedDataParallel(model)
    generator = torch.Generator().manual_seed(rank)
    for number in range(12):
        pace.work()
        optimizer.zero_grad()
        x = torch.rand(4, 8, generator=generator)
        loss = common.loss_of(model, x, x.sum(1, keepdim=True))
        loss.backward()
        if how == "hang" and (rank, number) == (0, 7):
            wait_in_vain_once()
        if how == "hang" or (rank, number) != (0, 7):
            optimizer.step()
        told = loss.detach().clone()
        dist.all_reduce(told)
        losses.append(told.item())


def main():
    out, how = sys.argv[1:]
    rank, world_size = common.start()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    together = how in ("skip", "hang")
    if together:
        train_together(model, optimizer, rank, losses, how)
    for number in range(0 if together else ROUNDS):
        train(model, optimizer, 5 + rank + number, 10 * number + rank, losses)
        if how == "average":
            with torch.no_grad():
                for parameter in model.parameters():
                    dist.all_reduce(parameter.data)
                    parameter.div_(world_size)
    final_state.write(out, losses, model, optimizer)
    if how != "end":
        common.end()


main()
