"""A counter in the job's store tells each rank which samples come next.

Usage: counting_store.py OUT
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel


def main(out):
    rank, _ = common.start()
    torch.manual_seed(3)
    store = dist.PrefixStore("samples", distributed_c10d._get_default_store())
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, taken = [], []
    for _ in range(24):
        pace.hold(len(losses) + 1)
        pace.work()
        taken.append(store.add(f"next of {rank}", 3))
        optimizer.zero_grad()
        loss = (model(torch.full((4, 8), taken[-1] / 50)) - rank).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(out, losses, model, optimizer, taken=taken)
    common.end()


main(*sys.argv[1:])
