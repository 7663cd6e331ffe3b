"""Where batches come from. Usage: data_loaders.py KIND, one of those that `make` knows."""

import random
import sys

import ending
import numpy
import pace
import setting
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info
from torch.utils.data.distributed import DistributedSampler


class Pairs(Dataset):
    def __init__(self, count, augment=False):
        self.x, self.y = setting.data(count)
        self.augment = augment

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        if self.augment:
            x = x * random.uniform(0.9, 1.1) + 0.1 * torch.randn(8) + 0.1 * float(numpy.random.rand())
        return x, self.y[index]


class Stream(IterableDataset):
    """Lines of a file that is read from front to back, through a shuffle buffer."""

    def __init__(self, count, rank, world_size):
        self.count, self.rank, self.world_size = count, rank, world_size
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        worker = get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker else (0, 1)
        order = random.Random(f"{self.rank} {self.epoch}")
        x, y = setting.data(self.count)
        buffer = []
        for i in range(self.rank * count + number, self.count, self.world_size * count):
            buffer.append((x[i], y[i]))
            if len(buffer) == 8:
                yield buffer.pop(order.randrange(8))
        order.shuffle(buffer)
        yield from buffer


class ByLength(Sampler):
    """Buckets of similar examples, in a random order, with a generator of its own."""

    def __init__(self, size, rank, world_size, seed):
        self.mine = list(range(rank, size, world_size))
        self.random = random.Random(seed)
        self.epochs = 0

    def __len__(self):
        return len(self.mine)

    def __iter__(self):
        self.epochs += 1
        buckets = [self.mine[i : i + 6] for i in range(0, len(self.mine), 6)]
        self.random.shuffle(buckets)
        for bucket in buckets:
            self.random.shuffle(bucket)
            yield from bucket


def seed_worker(_):
    seed = torch.initial_seed() % 2**32
    numpy.random.seed(seed)
    random.seed(seed)


def make(kind, rank, world_size):
    """Loader, and what has to be told of epochs."""
    count = 6 * 4 * world_size
    data = Pairs(count, augment=kind in ("augment", "main_augment", "persistent_augment"))
    if kind == "iterable":
        stream = Stream(count, rank, world_size)
        return DataLoader(stream, batch_size=4, num_workers=1), stream
    if kind == "sampler":
        sampler = ByLength(count, rank, world_size, seed=rank)
        return DataLoader(data, batch_size=4, sampler=sampler), sampler
    sampler = DistributedSampler(data)
    if kind == "main_augment":
        return DataLoader(data, batch_size=4, sampler=sampler), sampler
    if kind == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(data, batch_size=4, sampler=sampler, num_workers=1), sampler
    persistent = kind in ("persistent", "persistent_augment")
    loader = DataLoader(
        data,
        batch_size=4,
        sampler=sampler,
        num_workers=2,
        prefetch_factor=2,
        persistent_workers=persistent,
        worker_init_fn=seed_worker,
    )
    return loader, sampler


def main():
    kind = sys.argv[1]
    rank, _world_size = setting.start()
    loader, order = make(kind, rank, dist.get_world_size())
    model = DistributedDataParallel(setting.network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
    losses = []
    for epoch in range(3):
        if hasattr(order, "set_epoch"):
            order.set_epoch(epoch)
        for x, y in loader:
            pace.work()
            optimizer.zero_grad()
            loss = setting.loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
    more = {"order": [order.random, order.epochs]} if kind == "sampler" else {}
    ending.write(losses, model=model, optimizer=optimizer, scheduler=scheduler, **more)
    setting.end()


if __name__ == "__main__":
    main()
