"""What people put around a loader.

Usage: loop_shapes.py enumerate|zip|tqdm|cycle|islice|generator|shuffled_generator|held_generator
"""

import itertools
import sys

import ending
import pace
import setting
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def endless(loader, sampler):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


class Job:
    def __init__(self):
        _, world_size = setting.start()
        data = setting.dataset(6 * 4 * world_size)
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=4, sampler=self.sampler)
        self.model = DistributedDataParallel(setting.network())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.97)
        self.losses, self.seen = [], []

    def step(self, x, y):
        pace.work()
        self.optimizer.zero_grad()
        loss = setting.loss_of(self.model, x, y)
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.losses.append(loss.item())
        return self.losses[-1]


def with_enumerate(job):
    for epoch in range(3):
        job.sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(job.loader, start=1):
            loss = job.step(x, y)
            if i % 2 == 0:
                job.seen.append((epoch, i, loss))


def with_zip(job):
    other = DataLoader(setting.dataset(24), batch_size=4, shuffle=True)
    for epoch in range(3):
        job.sampler.set_epoch(epoch)
        for (x, y), (noise, _) in zip(job.loader, other):
            job.seen.append(job.step(x + 0.1 * noise, y))


def with_tqdm(job):
    from tqdm import tqdm

    for epoch in range(3):
        job.sampler.set_epoch(epoch)
        progress = tqdm(job.loader, desc=f"epoch {epoch}", disable=None)
        for x, y in progress:
            progress.set_postfix(loss=job.step(x, y))
            job.seen.append(progress.n)


def with_cycle(job):
    batches = itertools.cycle(job.loader)
    for _ in range(18):
        x, y = next(batches)
        job.step(x, y)


def with_islice(job):
    for epoch in range(4):
        job.sampler.set_epoch(epoch)
        for x, y in itertools.islice(job.loader, 5):
            job.step(x, y)


def with_generator(job):
    for step, (x, y) in enumerate(endless(job.loader, job.sampler)):
        job.seen.append((step, job.step(x, y)))
        if step == 17:
            break


def forever(loader):
    while True:
        for x, y in loader:
            yield x + 0.01, y


def with_shuffled_generator(job):
    """Each epoch's order comes from the process's generator, which the steps before have used too."""
    loader = DataLoader(setting.dataset(24), batch_size=4, shuffle=True)
    for x, y in forever(loader):
        job.seen.append(job.step(x, y))
        if len(job.seen) == 18:
            break


def with_held_generator(job):
    batches = endless(job.loader, job.sampler)
    for _ in range(18):
        x, y = next(batches)
        job.step(x, y)


def main():
    job = Job()
    globals()[f"with_{sys.argv[1]}"](job)
    ending.write(job.losses, model=job.model, optimizer=job.optimizer, scheduler=job.scheduler, seen=job.seen)
    setting.end()


if __name__ == "__main__":
    main()
