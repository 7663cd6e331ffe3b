"""Pipelines of stages in workers that a loader keeps, as webdataset has them. Usage: kept_pipelines.py OUT epochs|early

The epoch's number lies in shared memory, a stage keeps what it has made of words, beside a long table, and one is a lambda.
"""

import multiprocessing
import random
import sys

import common
import final_state
import pace
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Epoch:
    def __init__(self):
        self.shared = multiprocessing.Value("i", 0)


class Shuffled:
    """Chooses its order by the epoch, which the training process writes into shared memory."""

    def __init__(self, epoch):
        self.epoch = epoch

    def run(self, rows):
        rows = list(rows)
        random.Random(7 + self.epoch.shared.value).shuffle(rows)
        return iter(rows)


class Encoded:
    """Keeps what it has made, which the later items depend on."""

    def __init__(self):
        self.table = {f"word {i}": i for i in range(20000)}
        self.made = {}

    def run(self, rows):
        for row in rows:
            word = f"word {row}"
            if word not in self.made:
                self.made[word] = self.table[word] + len(self.made)
            yield row, self.made[word] * 0.001 + 0.01 * len(self.made)


class Pipeline(IterableDataset):
    def __init__(self, epoch, rows, rank, world_size):
        self.rank, self.world_size = rank, world_size
        self.x, self.y = common.data(rows)
        self.stages = [Shuffled(epoch), Encoded(), lambda found: ((row, by + 0.5) for row, by in found)]

    def __iter__(self):
        part = 2 * self.rank + get_worker_info().id
        found = range(part, len(self.x), 2 * self.world_size)
        for stage in self.stages:
            found = stage.run(found) if hasattr(stage, "run") else stage(found)
        for row, scale in found:
            yield self.x[row] * scale + 0.1 * torch.randn(8), self.y[row]


def main():
    out, leaves = sys.argv[1], sys.argv[2] == "early"
    rank, world_size = common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    epoch = Epoch()
    data = Pipeline(epoch, 24 * world_size, rank, world_size)
    loader = DataLoader(data, batch_size=4, num_workers=2, persistent_workers=True)
    losses = []
    for number in range(5):
        epoch.shared.value = number
        for i, (x, y) in enumerate(loader):
            if leaves and i == 4:
                break
            pace.hold(len(losses) + 1)
            pace.work()
            loss = common.loss_of(model, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    final_state.write(out, losses, model, optimizer)
    common.end()


if __name__ == "__main__":
    main()
