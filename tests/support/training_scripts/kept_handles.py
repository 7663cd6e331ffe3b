"""A mean of the weights that is begun in one step and taken in the next, in the manner of overlapped local SGD.

Usage: kept_handles.py OUT (late | early): begun behind the optimizer step, or in front of it
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(out, when):
    common.start()
    torch.manual_seed(3)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, work, mean, sums = [], None, torch.zeros(9), None

    def begin():
        nonlocal sums
        sums = torch.cat([p.detach().flatten() for p in model.parameters()]) * (1 + dist.get_rank())
        return dist.all_reduce(sums, async_op=True)

    for step in range(24):
        pace.hold(len(losses) + 1)
        pace.work()
        if work is not None and when == "early":
            work.wait()
            mean, work = mean + 0.5 * (sums - mean), None
        if step % 2 == 0 and when == "early":
            work = begin()
        optimizer.zero_grad()
        loss = (model(torch.full((4, 8), step / 10) + mean[:8]) - dist.get_rank()).square().mean()
        loss.backward()
        optimizer.step()
        if work is not None and when == "late":
            work.wait()
            mean, work = mean + 0.5 * (sums - mean), None
        if step % 2 == 0 and when == "late":
            work = begin()
        losses.append(loss.item())
    final_state.write(out, losses, model, optimizer, mean=mean)
    common.end()


main(*sys.argv[1:])
