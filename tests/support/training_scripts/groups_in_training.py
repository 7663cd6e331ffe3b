"""A process group that is made in the middle of training and kept in a variable. Usage: groups_in_training.py OUT before|after

`before`: in front of a step's backward; `after`: behind its update. Both in step 8.
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, MADE_IN = 16, 8


def train(model, optimizer, x, y, where):
    losses, means = [], []
    for step in range(1, STEPS + 1):
        pace.work()
        if step == MADE_IN and where == "before":
            group = dist.new_group(range(dist.get_world_size()))
        part = slice(2 * step, 2 * step + 2)
        optimizer.zero_grad()
        loss = common.loss_of(model, x[part], y[part])
        loss.backward()
        optimizer.step()
        if step == MADE_IN and where == "after":
            group = dist.new_group(range(dist.get_world_size()))
        if step >= MADE_IN:
            mean = loss.detach().clone()
            dist.all_reduce(mean, group=group)
            means.append((mean.item(), group.group_name))
        losses.append(loss.item())
    return losses, means


def main():
    common.start()
    torch.manual_seed(3)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, means = train(model, optimizer, *common.data(96), sys.argv[2])
    final_state.write(sys.argv[1], losses, model, optimizer, means=means)
    common.end()


main()
