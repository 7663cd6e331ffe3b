"""The first step makes a loader that later ones go on with; its sampler counts epochs, and makes a data set in each. Usage: OUT"""

import random
import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Drawn(Dataset):
    def __init__(self, sampler):
        self.sampler = sampler
        self.read = None

    def __len__(self):
        return len(self.sampler)

    def __getitem__(self, index):
        if self.read is None:
            self.read = list(self.sampler)
        return self.read[index]


class Shared(DistributedSampler):
    """Shares out what another sampler yields."""

    def __init__(self, sampler):
        super().__init__(Drawn(sampler), shuffle=False)
        self.sampler = sampler
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        random.seed(self.passes)
        super().__init__(Drawn(self.sampler), shuffle=False)
        for index in super().__iter__():
            yield self.dataset[index]


class Batches:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count // 4

    def __iter__(self):
        order = list(range(self.count))
        random.shuffle(order)
        yield from (order[at : at + 4] for at in range(0, self.count, 4))


class Trainer:
    loader = None

    def fit(self, model, optimizer, data):
        losses = []
        epoch = 0
        while epoch < 10:
            if self.loader is None:
                self.loader = DataLoader(range(len(data[0])), batch_sampler=Shared(Batches(len(data[0]))))
            for picked in [next(iter(self.loader))]:
                pace.work()
                optimizer.zero_grad()
                loss = common.loss_of(model, data[0][picked], data[1][picked])
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            epoch += 1
        return losses


def main():
    common.start()
    random.seed(dist.get_rank())
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = Trainer().fit(model, optimizer, common.data(48))
    final_state.write(sys.argv[1], losses, model, optimizer)
    common.end()


main()
