"""Phases of a step in an inner loop, some of which only every so often, and an average of the weights behind it, as StyleGAN2 has
them. Usage: phases_and_average.py OUT

Rank 1 comes late to its average: the other rank has told of the head behind its own by then.
"""

import copy
import sys
import time

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LATE_S = 0.2


def main():
    (out,) = sys.argv[1:]
    common.start()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    average = copy.deepcopy(model).requires_grad_(False)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.01)
    losses = []
    for iteration in range(8):
        for phase, every in enumerate((1, 2, 1, 3)):
            if iteration % every:
                continue
            pace.work()
            optimizer.zero_grad()
            seed = 8 * iteration + 2 * phase + dist.get_rank()
            x = torch.rand(4, 8, generator=torch.Generator().manual_seed(seed))
            loss = common.loss_of(wrapped, x, x.sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if dist.get_rank() == 1:
            time.sleep(LATE_S)
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters()):
                a.lerp_(p, 0.3)
    sums = [a.double().sum().item() for a in average.parameters()]
    final_state.write(out, losses + sums, wrapped, optimizer)
    common.end()


main()
