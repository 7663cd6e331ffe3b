"""Two parts, each with a default process group of its own: made, trained in, destroyed. Usage: two_groups.py OUT

What ranks say in the store at MASTER_ADDR, by clients of before and after, is among the results.
"""

import os
import sys
from datetime import timedelta

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def part(number, losses):
    common.start(7 + number)
    data = TensorDataset(*common.data(32))
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, seed=number))
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, y in loader:
        pace.work()
        optimizer.zero_grad()
        loss = common.loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses += [loss.item(), mean.item()]
    dist.barrier()
    dist.destroy_process_group()
    return model.module, optimizer


def store():
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(*place, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=30))


def main():
    losses, before = [], store()
    for number in range(2):
        model, optimizer = part(number, losses)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    before.set(f"loss of {rank}", str(losses[-1]))
    losses += [float(known.get(f"loss of {other}")) for known in (before, store()) for other in range(size)]
    final_state.write(sys.argv[1], losses, model, optimizer)


main()
