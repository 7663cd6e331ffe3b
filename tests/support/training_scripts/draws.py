"""Batches whose order goes on being chosen while training draws random numbers, too. Usage: draws.py OUT KIND

`lazy`: several batches a step, from a sampler that shuffles part after part; `end`: the same with a generator that moves on where
the data ends; `modulo`: a loop over batches that updates after each third one; `endless`: one batch a step, from a sampler that
never ends and asks the process's generator for each new order.
"""

import contextlib
import random
import sys

import common
import final_state
import numpy
import pace
import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.distributed import DistributedSampler

STEPS, MICRO_BATCHES, COUNT = 18, 3, 40


class Shift:
    def __init__(self):
        self.random, self.of_old = numpy.random.default_rng(12), numpy.random.RandomState(12)

    def __call__(self, x):
        return x + float(self.random.random() + self.of_old.random_sample()) / 10


class Noisy(Dataset):
    def __init__(self):
        self.x, self.y = common.data(COUNT)
        self.random, self.asked, self.transforms = random.Random(11), 0, [Shift()]

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        self.asked += 1
        return self.transforms[0](self.x[index] + self.random.random() / 10), self.y[index]


class Lazy(Sampler):
    def __init__(self, seed):
        self.random, self.order, self.parts = random.Random(seed), list(range(COUNT)), 0

    def __len__(self):
        return COUNT

    def __iter__(self):
        self.random.shuffle(self.order)
        for first in range(0, COUNT, 5):
            part = self.order[first : first + 5]
            self.random.shuffle(part)
            self.parts += 1
            yield from part


class Endless(Sampler):
    def __iter__(self):
        while True:
            yield from torch.randperm(COUNT).tolist()


class Batches:
    """As many as are wanted, over the ends of the data."""

    def __init__(self, loader):
        self.loader, self.iterator = loader, iter(loader)

    def take(self):
        try:
            return next(self.iterator)
        except StopIteration:
            self.iterator = iter(self.loader)
            return next(self.iterator)


def main():
    kind = sys.argv[2]
    rank, _ = common.start()
    model, data = common.model(), Noisy()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    sampler = Lazy(rank) if kind == "lazy" else Endless() if kind == "endless" else None
    if kind == "modulo":
        sampler = DistributedSampler(data, 1, 0, seed=rank)
    loader = DataLoader(
        data, 4, shuffle=sampler is None, sampler=sampler, generator=generator if sampler is None else None
    )
    losses = []
    if kind == "endless":
        for step, (x, y) in enumerate(loader):
            if step == STEPS:
                break
            optimizer.zero_grad()
            loss = common.loss_of(model, x, y)
            loss.backward()
            pace.work()
            optimizer.step()
            losses.append(loss.item())
    elif kind == "modulo":
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for i, (x, y) in enumerate(loader):
                last = (i + 1) % MICRO_BATCHES == 0
                with contextlib.nullcontext() if last else model.no_sync():
                    loss = common.loss_of(model, x, y) / MICRO_BATCHES
                    loss.backward()
                losses.append(loss.item())
                if last:
                    pace.work()
                    optimizer.step()
                    optimizer.zero_grad()
    else:
        batches = Batches(loader)
        for _ in range(STEPS):
            optimizer.zero_grad()
            for _ in range(MICRO_BATCHES):
                x, y = batches.take()
                loss = common.loss_of(model, x + torch.rand(1, generator=generator) / 10, y) / MICRO_BATCHES
                loss.backward()
                losses.append(loss.item())
            pace.work()
            optimizer.step()
    parts = getattr(sampler, "parts", 0)
    final_state.write(sys.argv[1], losses, model, optimizer, asked=[data.asked, parts], generator=generator.get_state())
    common.end()


if __name__ == "__main__":
    main()
