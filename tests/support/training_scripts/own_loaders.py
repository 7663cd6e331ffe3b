"""Loaders whose class keeps something of its own: an iterator, counters, a list. Usage: own_loaders.py OUT KIND"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Resumed(DataLoader):
    """It is its own iterator: asked again, it goes on where it stood."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._iterator = None
        self.given, self.sizes = 0, []

    def __iter__(self):
        if self._iterator is None:
            self._iterator = super().__iter__()
        return self

    def __next__(self):
        if self._iterator is None:
            self._iterator = super().__iter__()
        try:
            x, y = next(self._iterator)
        except StopIteration:
            self._iterator = None
            raise
        self.given += 1
        self.sizes.append(self.given % 3)
        return x + 0.01 * self.given + 0.1 * sum(self.sizes[-3:]), y


class Repeated:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class Endless(DataLoader):
    """Its one iterator never ends; an epoch is a part of it."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class Shown:
    """A progress bar: its iterator is a generator, which holds on to the stream that it writes to."""

    def __init__(self, loader):
        self.loader, self.file, self.count = loader, sys.stderr, 0

    def __iter__(self):
        for item in self.loader:
            yield item
            self.count += 1
            self.file.write("")


class Wrapped:
    """Its iterators are generators, as those of a framework that moves batches to a device."""

    def __init__(self, loader):
        self.loader, self.passes = loader, 0

    def __iter__(self):
        self.loader.sampler.set_epoch(self.passes)
        self.passes += 1
        yield from iter(self.loader)


class Cycled:
    """Begins anew by itself; training makes its generator."""

    def __init__(self, loader):
        self.loader, self.iterator = loader, None

    def __next__(self):
        if self.iterator is None:
            self.iterator = iter(self.loader)
        try:
            return next(self.iterator)
        except StopIteration:
            self.iterator = iter(self.loader)
            return next(self.iterator)


class Begun(DataLoader):
    """All ranks agree on something when an epoch begins."""

    def __iter__(self):
        self.start = torch.tensor(float(dist.get_rank() + self.seen))
        dist.broadcast(self.start, 0)
        pace.behind_others(self.seen + 1)
        return super().__iter__()


def together(loader):
    """In each draw the ranks agree on whether all of them have a batch."""
    batches = iter(loader)
    while True:
        batch = next(batches, None)
        more = torch.tensor(float(batch is not None) + 0.001 * dist.get_rank())
        dist.all_reduce(more)
        if more < dist.get_world_size():
            break
        x, y = batch
        yield x + 0.01 * more, y


def agreed(loader):
    """A generator without an end. Each epoch begins with a communication, and draws from a generator that set-up does not make."""
    while True:
        start = torch.tensor(float(dist.get_rank() + loader.passes))
        dist.broadcast(start, 0)
        for x, y in loader:
            yield x + 0.001 * start, y


def main():
    out, kind, workers = sys.argv[1:]
    common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sampler = DistributedSampler(TensorDataset(*common.data(48)), shuffle=True)
    made = {
        "endless": Endless,
        "shown": Endless,
        "read": Endless,
        "cycled": DataLoader,
        "agreed": DataLoader,
        "begun": Begun,
        "together": DataLoader,
    }.get(kind, Resumed)
    loader = made(sampler.dataset, batch_size=4, sampler=sampler, num_workers=int(workers))
    loader.seen = 0
    cycle, stream = Cycled(Wrapped(loader)), agreed(Wrapped(loader))
    losses = []

    def step(x, y):
        pace.work()
        loader.seen += 1
        pace.arrive(loader.seen)
        loss = common.loss_of(model, x * (1 + 0.001 * loader.seen), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    for epoch in range(4):
        sampler.set_epoch(epoch)
        if kind == "agreed":
            for _ in range(6):
                step(*next(stream))
        elif kind == "cycled":
            for _ in range(6):
                step(*next(cycle))
        elif kind == "asked":
            for _ in range(6):
                step(*next(loader))
            loader._iterator = None
        else:
            shapes = {"shown": Shown, "together": together}
            for x, y in shapes[kind](loader) if kind in shapes else loader:
                step(x, y)
    own = [loader.seen, getattr(loader, "given", 0), list(getattr(loader, "sizes", ()))]
    final_state.write(out, losses, model, optimizer, loader=own)
    common.end()


if __name__ == "__main__":
    main()
