"""A loader that training makes, with a sampler over a data set around another sampler. Usage: sampler_as_data.py OUT

It is made at the first evaluation. The other sampler leads to the data set of set-up, which is much. The loader's iterator is
kept.
"""

import sys

import common
import final_state
import numpy
import pace
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

STEPS = 16


class Items(Dataset):
    def __init__(self):
        self.items = torch.randn(64, 4)
        self.much = torch.zeros(30_000)

    def __len__(self):
        return 64

    def __getitem__(self, number):
        return self.items[number]


class Drawn(Dataset):
    def __init__(self, sampler):
        self.sampler = sampler
        self.read = None

    def __len__(self):
        return len(self.sampler)

    def __getitem__(self, number):
        if self.read is None:
            self.read = list(self.sampler)
        return self.read[number]


class Shared(DistributedSampler):
    def __init__(self, sampler):
        super().__init__(Drawn(sampler), shuffle=False)
        self.sampler = sampler
        self.turns = 0

    def __iter__(self):
        if self.turns:
            super().__init__(Drawn(self.sampler), shuffle=False)
        self.turns += 1
        for number in super().__iter__():
            yield self.dataset[number]


class Trainer:
    def __init__(self, model, items):
        self.model = model
        self.plain = DataLoader(items, batch_size=8)
        self.loader = self.iterator = None

    def evaluate(self):
        if self.loader is None:
            self.loader = DataLoader(self.plain.dataset, sampler=Shared(self.plain.sampler), batch_size=8)
        self.iterator = iter(self.loader)
        total = 0.0
        while (batch := next(self.iterator, None)) is not None:
            with torch.no_grad():
                total += self.model(batch).sum().item()
        return total


rank, world_size = common.start()
torch.manual_seed(1)
numpy.random.seed(1 + rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
items = Items()
trainer = Trainer(model.module, items)
losses, seen = [], []
for step in range(STEPS):
    pace.work()
    batch = items.items[numpy.random.choice(64, 8)]
    loss = model(batch).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 2 == 1:
        seen.append(trainer.evaluate())

final_state.write(sys.argv[1], losses, model, optimizer, seen=seen)
common.end()
