"""Worker processes that a loader keeps from one epoch to the next, with random augmentation in them. Usage: kept_workers.py OUT"""

import random
import sys

import common
import final_state
import numpy
import pace
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Noisy(Dataset):
    def __init__(self, count):
        self.x, self.y = common.data(count)
        self.given = 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.given += 1
        scale = random.uniform(0.9, 1.1) + 0.01 * self.given
        return self.x[index] * scale + 0.1 * torch.randn(8) + 0.1 * float(numpy.random.rand()), self.y[index]


def seed_worker(_):
    seed = torch.initial_seed() % 2**32
    numpy.random.seed(seed)
    random.seed(seed)


def main():
    _, world_size = common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = Noisy(24 * world_size)
    sampler = DistributedSampler(data)
    loader = DataLoader(
        data, batch_size=4, sampler=sampler, num_workers=2, persistent_workers=True, worker_init_fn=seed_worker
    )
    losses = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in loader:
            pace.work()
            loss = common.loss_of(model, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    final_state.write(sys.argv[1], losses, model, optimizer)
    common.end()


if __name__ == "__main__":
    main()
