"""A sampler shuffles an array of its own, and another one wraps it for the ranks; an object fetches one batch ahead.

Usage: wrapped_sampler.py OUT WORKERS; kept over epochs where negative.
"""

import sys

import common
import final_state
import numpy
import pace
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler


class Seeded(Sampler):
    """Shuffles its array in place each time that it begins."""

    def __init__(self, count):
        self.places = numpy.arange(count)
        self.draw = numpy.random.default_rng(0)

    def __iter__(self):
        self.draw.shuffle(self.places)
        return iter(self.places)

    def __len__(self):
        return len(self.places)


class Listed(Dataset):
    """What a sampler says, as a data set."""

    def __init__(self, sampler):
        self.sampler_below = sampler
        self.said = []

    def begin(self):
        self.said = list(self.sampler_below)

    def __getitem__(self, place):
        return self.said[place]

    def __len__(self):
        return len(self.sampler_below)


class ForRanks(DistributedSampler):
    def __iter__(self):
        self.dataset.begin()
        return (self.dataset[place] for place in super().__iter__())


class Numbers(Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, place):
        return torch.full((8,), float(place) / 128)


class Fetcher:
    """Has the next batch at hand."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        self.left = iter(self.loader)
        self.ahead = [*self.next_ones()]
        return self

    def next_ones(self):
        batch = next(self.left, None)
        return [] if batch is None else [batch]

    def __next__(self):
        if not self.ahead:
            raise StopIteration
        batch = self.ahead.pop(0)
        self.ahead += self.next_ones()
        return batch


def main():
    out = sys.argv[1]
    workers = int(sys.argv[2])
    common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sampler = ForRanks(Listed(Seeded(128)), shuffle=False)
    loader = DataLoader(Numbers(), 8, sampler=sampler, num_workers=abs(workers), persistent_workers=workers < 0)
    fetcher = Fetcher(loader)
    losses = []
    for _ in range(2):
        iter(fetcher)
        while True:
            try:
                states = next(fetcher)
            except StopIteration:
                break
            pace.work()
            optimizer.zero_grad()
            loss = common.loss_of(model, states, states.sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    final_state.write(out, losses, model, optimizer)
    common.end()


main()
