"""State that only functions, classes and bound methods lead to; every loss is made of all of it. Usage: behind_code.py OUT"""

import functools
import sys

import common
import final_state
import pace
import torch
from torch.utils.data import DataLoader, TensorDataset


class Meter:
    updates = 0
    names = []  # noqa: RUF012 - the idiom in question

    def __init__(self):
        self.total = 0.0

    def update(self, value):
        Meter.updates += 1
        Meter.names.append(len(Meter.names))
        self.total += value
        return self.total


class Counting:
    def __init__(self):
        self.forwards = 0

    def __call__(self, module, inputs, output):
        self.forwards += 1

    def hook(self, module, inputs, output):
        return output * (1 + self.forwards / 1000)


def growing():
    scale = 1.0

    def grow():
        nonlocal scale
        scale *= 1.01
        return scale

    return grow


def remembered(value, seen=[]):  # noqa: B006 - the idiom in question
    seen.append(value)
    return sum(seen) / len(seen)


def collect(into, value):
    into.append(value)
    return len(into)


def smooth(value):
    smooth.mean = 0.9 * getattr(smooth, "mean", 0.0) + 0.1 * value
    return smooth.mean


class Job:
    def __init__(self):
        common.start()
        self.model = common.model()
        counting = Counting()
        self.model.module[0].register_forward_hook(counting)
        self.model.module[3].register_forward_hook(counting.hook)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.loader = DataLoader(TensorDataset(*common.data(28)), batch_size=4, shuffle=True)
        self.grow, self.on_loss = growing(), Meter().update
        self.collect = functools.partial(collect, [])
        self.log = [].append
        self.losses, self.kept = [], []

    def step(self, x, y):
        """All of it changes before the backward, where a rank is lost."""
        pace.work()
        loss = common.loss_of(self.model, x, y) * self.grow()
        value = loss.item()
        self.log(value)
        numbers = [self.on_loss(value), remembered(value), self.collect(value), smooth(value), Meter.updates]
        loss = loss * (1 + sum(numbers) / 1000)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.kept.append(numbers)


def main():
    job = Job()
    for _ in range(5):
        for x, y in job.loader:
            job.step(x, y)
    behind = [Meter.names, remembered.__defaults__[0], job.log.__self__, smooth.mean]
    final_state.write(sys.argv[1], job.losses, job.model, job.optimizer, kept=job.kept, behind=behind)
    common.end()


main()
