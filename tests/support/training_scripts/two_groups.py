"""Two parts, each with a default process group of its own: made, trained in, destroyed. Usage: two_groups.py OUT

The second group has a store of its own. With the first one's, torch's gloo groups meet under the same keys again, and a rank that
reads the keys before its peer has written them anew waits for an address where nobody listens (torch 2.13, torchrun).
"""

import os
import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def second_group():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(f"{sys.argv[1]}.store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    torch.manual_seed(8 + rank)


def part(number, losses):
    if number == 0:
        common.start()
    else:
        second_group()
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


def main():
    losses = []
    part(0, losses)
    model, optimizer = part(1, losses)
    final_state.write(sys.argv[1], losses, model, optimizer)


main()
