"""Generators of the script's own around its data, in the shapes that research code has. Usage: own_generators.py OUT KIND

`meters`: a metric logger that hands batches on and measures them, as DeiT, MAE and DETR have it; `endless`: `cycle(loader)` kept
as an attribute; `restarted`: an iterator that is begun anew where it ends; `paired`: two loaders, one of them endless, zipped
in a generator expression; `ahead`: a loader that prepares one batch ahead; `parts`: some batches an epoch from one stream;
`play`: an environment with random numbers of its own; `bar`: a progress bar around a generator, counted; `mixed`: batches come one
ahead from worker processes that are kept, are mixed with numpy's generator, and counted in a function that trains one epoch;
`grouped`: a data set puts what a loader below it gives into groups, and is first drawn from in a step, as detectron2 has it.
"""

import collections
import itertools
import sys
import time

import common
import final_state
import numpy
import pace
import torch
from torch import distributed
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

STEPS = 18


class Meter:
    def __init__(self):
        self.window, self.total, self.count = collections.deque(maxlen=5), 0.0, 0

    def update(self, value):
        self.window.append(value)
        self.total += value
        self.count += 1

    def synchronize(self):
        both = torch.tensor([self.count, self.total], dtype=torch.float64)
        distributed.all_reduce(both)
        self.count, self.total = int(both[0]), both[1].item()

    @property
    def average(self):
        return self.total / self.count


class MetricLogger:
    def __init__(self):
        self.meters = collections.defaultdict(Meter)

    def update(self, **values):
        for name, value in values.items():
            self.meters[name].update(value)

    def log_every(self, iterable, print_freq, header):
        i, started, end = 0, time.time(), time.time()
        times = Meter()
        for obj in iterable:
            yield obj
            times.update(time.time() - end)
            self.update(seen=float(i))
            if i % print_freq == 0:
                eta = times.average * (len(iterable) - i)
                print(header, i, self.meters["loss"].average, self.meters["seen"].total, eta >= 0)
            i += 1  # noqa: SIM113 - as people write it
            end = time.time()
        print(header, "took", time.time() - started >= 0)


class Ahead:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        first = True
        for next_x, next_y in self.loader:
            with torch.no_grad():
                next_x = next_x.mul(1.01) + 0.01 * torch.rand(1)
            if not first:
                yield x, y  # noqa: F821 - the loop before has bound them
            else:
                first = False
            x, y = next_x, next_y
        yield x, y


class Mixed(Ahead):
    def __iter__(self):
        for x, y in Ahead(self.loader):
            share, order = numpy.random.beta(0.2, 0.2), torch.randperm(len(x))
            yield share * x + (1 - share) * x[order], share * y + (1 - share) * y[order]


class Noisy(TensorDataset):
    def __getitem__(self, place):
        x, y = super().__getitem__(place)
        return x + 0.1 * torch.randn(8), y


class Grouped(IterableDataset):
    """Items of one kind in a batch; groups that are not full yet stay from batch to batch."""

    def __init__(self, loader, size):
        self.loader, self.size, self.groups = loader, size, ([], [])

    def __iter__(self):
        while True:
            for x, y in self.loader:
                group = self.groups[int(x[0, 0] > 0)]
                group.append((x, y))
                if len(group) == self.size:
                    yield [torch.cat(part) for part in zip(*group)]
                    group.clear()


def cycle(loader):
    while True:
        for batch in loader:  # noqa: UP028 - as people write it
            yield batch


def play(rank, x, y):
    chooser, recent = numpy.random.default_rng(rank), list(range(6))
    while True:
        recent.append(int(chooser.integers(len(x))))
        del recent[:-6]
        rows = torch.tensor(recent)
        yield x[rows] + float(chooser.normal()) / 10, y[rows]


def counted(iterable, seen):
    for item in iterable:
        seen.append(len(seen))
        yield item


class Job:
    def __init__(self):
        self.rank, ranks = common.start()
        self.x, self.y = common.data(24 * ranks)
        data = TensorDataset(self.x, self.y)
        self.sampler = DistributedSampler(data, num_replicas=ranks, rank=self.rank)
        self.loader = DataLoader(data, batch_size=4, sampler=self.sampler)
        self.other = DataLoader(data, batch_size=3, shuffle=True)
        self.model = common.model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.losses, self.kept = [], []

    def step(self, x, y):
        pace.work()
        loss = common.loss_of(self.model, x, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        return self.losses[-1]


def meters(job):
    for epoch in range(3):
        job.sampler.set_epoch(epoch)
        logger = MetricLogger()
        for x, y in logger.log_every(job.loader, 2, f"epoch {epoch}"):
            logger.update(loss=job.step(x, y))
        for meter in logger.meters.values():
            meter.synchronize()
        job.kept += [[name, meter.count, meter.total, list(meter.window)] for name, meter in logger.meters.items()]


def endless(job):
    job.batches = cycle(job.other)
    for _ in range(STEPS):
        x, y = next(job.batches)
        more = next(job.batches)
        job.step(torch.cat([x, more[0]]), torch.cat([y, more[1]]))


def restarted(job):
    iterator = iter(job.other)
    for _ in range(STEPS):
        try:
            batch = next(iterator)
        except StopIteration:
            iterator = iter(job.other)
            batch = next(iterator)
        job.step(*batch)


def paired(job):
    pairs = ((torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])) for a, b in zip(cycle(job.loader), cycle(job.other)))
    for x, y in itertools.islice(pairs, STEPS):
        job.step(x, y)


def ahead(job):
    for epoch in range(3):
        job.sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(Ahead(job.loader)):
            job.kept.append([i, job.step(x, y)])


def parts(job):
    stream = cycle(job.other)
    for _ in range(3):
        for x, y in itertools.islice(stream, 6):
            job.step(x, y)


def played(job):
    stream = play(job.rank, job.x, job.y)
    for _ in range(STEPS):
        x, y = next(stream)
        for more in itertools.islice(stream, 2):
            x = x + more[0]
        job.step(x, y)


def one_epoch(job, batches):
    counted_batches = enumerate(batches)
    for i, (x, y) in counted_batches:
        job.kept.append([i, job.step(x, y)])


def mixed(job):
    kept = DataLoader(Noisy(*common.data(48)), batch_size=8, shuffle=True, num_workers=1, persistent_workers=True)
    for _ in range(3):
        one_epoch(job, Mixed(kept))


def bar(job):
    for epoch in range(3):
        job.sampler.set_epoch(epoch)
        for i, batch in enumerate(counted((b for b in job.loader), job.kept), 1):
            job.kept.append(round(i * job.step(*batch), 9))


def grouped(job):
    job.grouped = Grouped(DataLoader(TensorDataset(job.x, job.y), batch_size=1, shuffle=True), 4)
    job.batches = None
    for _ in range(STEPS):
        if job.batches is None:
            job.batches = iter(job.grouped)
        job.step(*next(job.batches))


KINDS = {
    "meters": meters,
    "endless": endless,
    "restarted": restarted,
    "paired": paired,
    "ahead": ahead,
    "parts": parts,
    "play": played,
    "bar": bar,
    "mixed": mixed,
    "grouped": grouped,
}


def main():
    job = Job()
    KINDS[sys.argv[2]](job)
    final_state.write(sys.argv[1], job.losses, job.model, job.optimizer, kept=job.kept)
    common.end()


if __name__ == "__main__":
    main()
