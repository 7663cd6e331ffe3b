"""A data set without workers that keeps what it has read last, and counts how often it was used. Usage: caching_data.py OUT"""

import random
import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Cuts(Dataset):
    """Of one recording several cuts, and now and then one of those that were made before."""

    def __init__(self, rank):
        self.rank, self.cached, self.left = rank, None, 0
        self.pool = []

    def __len__(self):
        return 28

    def __getitem__(self, index):
        if self.left == 0:
            generator = torch.Generator().manual_seed(100 * self.rank + index)
            self.cached, self.left = torch.rand(16, generator=generator), 3
        self.left -= 1
        at = random.randint(0, 8)
        self.pool.append(self.cached[at : at + 8].clone())
        if len(self.pool) > 4:
            return self.pool.pop(random.randrange(4))
        return self.pool[-1]


def main():
    (out,) = sys.argv[1:]
    common.start()
    torch.manual_seed(3)
    random.seed(4 + dist.get_rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(Cuts(dist.get_rank()), batch_size=4, shuffle=True)
    losses = []
    for _ in range(3):
        for x in loader:
            pace.work()
            optimizer.zero_grad()
            loss = common.loss_of(model, x, x.sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    final_state.write(out, losses, model, optimizer)
    common.end()


main()
