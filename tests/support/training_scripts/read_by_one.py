"""One rank reads a stream for all, in a generator whose draws communicate, as accelerate's do. Usage: OUT loop|kept"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(36)


class ReadByOne:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        source = iter(self.loader)  # each rank makes one, and rank 0 alone draws from it
        picked = self.fetched(source)
        while picked is not None:
            ahead = self.fetched(source)
            yield picked.chunk(dist.get_world_size())[dist.get_rank()]
            picked = ahead

    def fetched(self, source):
        told = [next(source, None)] if dist.get_rank() == 0 else [None]
        dist.broadcast_object_list(told)
        return told[0]


def batches_of(loader):
    while True:
        yield from loader


def main():
    out, kind = sys.argv[1:]
    common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = common.data(64)
    losses = []

    def train(picked):
        pace.hold(len(losses) + 1)
        pace.work()
        optimizer.zero_grad()
        loss = common.loss_of(model, x[picked], y[picked])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    loader = ReadByOne(DataLoader(Stream(), batch_size=4))
    if kind == "loop":
        for _ in range(2):
            for picked in loader:
                train(picked)
    else:
        batches = iter(batches_of(loader))
        for _ in range(18):
            train(next(batches))
    final_state.write(out, losses, model, optimizer)
    common.end()


main()
