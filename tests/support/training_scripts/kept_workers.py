"""Worker processes that loaders keep from one epoch to the next, with random augmentation, for training and for evaluation.

Usage: kept_workers.py OUT epochs|steps fork|spawn
"""

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


def loader_of(data, workers, **options):
    options |= {"worker_init_fn": seed_worker, "multiprocessing_context": sys.argv[3]}
    return DataLoader(data, batch_size=4, num_workers=workers, persistent_workers=True, **options)


def update(model, optimizer, x, y):
    pace.work()
    loss = common.loss_of(model, x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def by_epochs(loader, sampler, held_out, model, optimizer, losses):
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in loader:
            losses.append(update(model, optimizer, x, y))
        with torch.no_grad():
            losses.append(sum(common.loss_of(model, x, y).item() for x, y in held_out))


def by_steps(loader, sampler, model, optimizer, losses):
    """Steps take their batches themselves, and begin the next epoch where there is none left."""
    batches = iter(loader)
    for _ in range(24):
        try:
            x, y = next(batches)
        except StopIteration:
            sampler.set_epoch(sampler.epoch + 1)
            batches = iter(loader)
            x, y = next(batches)
        losses.append(update(model, optimizer, x, y))


def main():
    _, world_size = common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = Noisy(24 * world_size)
    sampler = DistributedSampler(data)
    loader = loader_of(data, 2, sampler=sampler)
    losses = []
    if sys.argv[2] == "steps":
        by_steps(loader, sampler, model, optimizer, losses)
    else:
        by_epochs(loader, sampler, loader_of(Noisy(16), 1, shuffle=True), model, optimizer, losses)
    final_state.write(sys.argv[1], losses, model, optimizer)
    common.end()


if __name__ == "__main__":
    main()
