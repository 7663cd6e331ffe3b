"""Two parts, each with a default process group of its own: made, trained in, destroyed. Usage: two_groups.py OUT"""

import sys

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


def main():
    losses = []
    for number in range(2):
        model, optimizer = part(number, losses)
    final_state.write(sys.argv[1], losses, model, optimizer)


main()
