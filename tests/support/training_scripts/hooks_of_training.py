"""A step registers a hook of a module, which later ones keep, or which the step removes again.

Usage: hooks_of_training.py OUT (keeps | removes)
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(out, how):
    common.start()
    torch.manual_seed(3)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, seen, handle = [], [], None

    def note(module, args, output):
        seen.append(float(output.detach().sum()))
        return output * 1.1

    for step in range(24):
        pace.hold(len(losses) + 1)
        pace.work()
        if how == "removes" or step == 4:
            handle = model.module[0].register_forward_hook(note)
        optimizer.zero_grad()
        loss = (model(torch.full((4, 8), step / 10)) - dist.get_rank()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if how == "removes":
            handle.remove()
    final_state.write(out, losses, model, optimizer, seen=seen)
    common.end()


main(*sys.argv[1:])
