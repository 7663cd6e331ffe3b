"""A step registers a hook of a module, which later ones keep, or which the step removes again.

Usage: hooks_of_training.py OUT (keeps | removes | library | exchanges | wrapper)

`library`: a function of a package's registers it in the first step. `exchanges`: each fourth step removes the one before, by the
handle that an object keeps.
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Scaled:
    def __init__(self):
        self.handle, self.by = None, 1.0

    def scale(self, module, args, output):
        return output * self.by

    def exchange(self, module, by):
        if self.handle is not None:
            self.handle.remove()
        self.by = by
        self.handle = module.register_forward_hook(self.scale)


def install(module, by, notes):
    """Register a hook as libraries do in the first forward pass."""

    def add(value):
        notes.append(value)

    def hook(module, args, output):
        if len(notes) < 100:
            add(float(output.detach().sum()))
        return output * by

    module.register_forward_hook(hook)


def main(out, how):
    common.start()
    torch.manual_seed(3)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, seen, handle = [], [], None
    scaled = Scaled()

    def note(module, args, output):
        seen.append(float(output.detach().sum()))
        return output * 1.1

    for step in range(24):
        pace.hold(len(losses) + 1)
        pace.work()
        if how == "exchanges":
            if step % 4 == 0:
                scaled.exchange(model.module[0], 1 + step / 50)
        elif how == "wrapper":
            if step == 0:
                model.register_forward_hook(note)
        elif how == "library":
            if step == 0:
                install(model.module[0], 1.1, seen)
        elif how == "removes" or step == 4:
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
