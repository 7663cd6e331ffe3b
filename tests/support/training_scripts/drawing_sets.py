"""An active learner: steps take samples out of a set and put some back, in the order in which the sets yield them.

Usage: drawing_sets.py OUT
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(out):
    common.start()
    torch.manual_seed(3)
    rows = torch.rand(400, 8)
    unlabelled, labelled = {place * 37 % 4001 for place in range(400)}, set()
    names = {f"sample {place}" for place in range(60)}
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, taken = [], []
    for step in range(24):
        pace.hold(len(losses) + 1)
        pace.work()
        for _ in range(4):
            labelled.add(unlabelled.pop())
        if step % 4 == 3:
            back = [*labelled][:5]
            labelled.difference_update(back)
            unlabelled.update(back)
        names.discard(next(iter(names)))
        names.add(f"made in {step}")
        chosen = [*labelled][:6]
        taken += [*chosen, next(iter(names))]
        optimizer.zero_grad()
        loss = (model(rows[[place % 400 for place in chosen]]) - dist.get_rank()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(out, losses, model, optimizer, taken=taken, left=[*unlabelled], names=[*names])
    common.end()


main(*sys.argv[1:])
