"""A data set that packs examples out of a stream, with an object and a list that the script has, too. Usage: OUT [shared] [STEPS]

`shared`: the step uses Python's generator, which the stream draws from, as well.
"""

import random
import sys

import common
import final_state
import pace
import torch
from torch.utils.data import DataLoader, IterableDataset


class Files(IterableDataset):
    def __init__(self, names):
        self.names = names

    def __iter__(self):
        random.shuffle(self.names)
        for name in self.names:
            for line in range(3):
                yield 10 * name + line


class Packer:
    def __init__(self):
        self.lines, self.wanted = [], 3

    def add(self, line):
        self.lines.append(line)
        if len(self.lines) < self.wanted:
            return None
        packed, self.lines = self.lines, []
        self.wanted = random.randint(2, 4)
        return sum(packed)


class Packed(IterableDataset):
    def __init__(self, lines, packer):
        self.lines, self.packer = lines, packer

    def __iter__(self):
        while True:
            packed = self.packer.add(next(self.lines))
            if packed is not None:
                yield packed


def cycle(source):
    while True:
        for item in source:  # noqa: UP028 - as scripts write it
            yield item


def main():
    out, shared, steps = sys.argv[1], "shared" in sys.argv, int(sys.argv[-1]) if sys.argv[-1].isdigit() else 20
    common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = common.data(64)
    names, packer = [0, 1, 2, 3], Packer()
    batches = iter(cycle(DataLoader(Packed(iter(cycle(Files(names))), packer), batch_size=4)))
    losses = []
    for step in range(steps):
        pace.hold(step + 1)
        pace.work()
        scale = random.random() if shared else 1.0
        optimizer.zero_grad()
        for _ in range(2):
            picked = next(batches) % len(x)
            loss = scale * common.loss_of(model, x[picked], y[picked])
            loss.backward()
        optimizer.step()
        losses.append(loss.item() + sum(n * place for place, n in enumerate((*names, packer.wanted, *packer.lines))))
    final_state.write(out, losses, model, optimizer)
    common.end()


main()
