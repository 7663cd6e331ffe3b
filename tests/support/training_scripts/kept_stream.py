"""Cycles over a data set that goes on with one stream, wherever that stands. Usage: OUT"""

import sys

import common
import final_state
import pace
import torch
from torch.utils.data import DataLoader, IterableDataset


def batches_of(loader):
    while True:
        for batch in loader:  # noqa: UP028 - as scripts write it
            yield batch


def lines(count):
    yield from range(count)


class Stream(IterableDataset):
    def __init__(self, count):
        self.stream = lines(count)

    def __iter__(self):
        while True:
            yield next(self.stream)


def main():
    common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = common.data(64)
    batches = iter(batches_of(DataLoader(Stream(1000), batch_size=4)))
    losses = []
    for step in range(20):
        pace.hold(step + 1)
        pace.work()
        picked = next(batches) % len(x)
        optimizer.zero_grad()
        loss = common.loss_of(model, x[picked], y[picked])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(sys.argv[1], losses, model, optimizer)
    common.end()


main()
