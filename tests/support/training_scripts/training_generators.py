"""Generators that train. Usage: training_generators.py OUT KIND

inside: all epochs in one draw, with parts that yield only if asked to, as engines with interrupts have them. told: each step is
yielded to a loop. asked: `next` for each step. delegated: each step is yielded through two generators. epochs: each epoch is
yielded to a loop. rounds: `next` for each epoch.
"""

import sys

import common
import final_state
import pace
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS = 3


class Trainer:
    def __init__(self, model, optimizer, loader):
        self.model, self.optimizer, self.loader = model, optimizer, loader
        self.losses, self.interrupted, self.done = [], False, 0
        self.running = None

    def step(self, x, y):
        pace.hold(self.done + 1)
        pace.work()
        loss = common.loss_of(self.model, x, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.done += 1
        return loss.item()

    def interrupt(self):
        if self.interrupted:
            yield "interrupted"

    def epoch(self, number):
        self.loader.sampler.set_epoch(number)
        batches, seen = iter(self.loader), 0
        while True:
            try:
                x, y = next(batches)
                yield from self.interrupt()
            except StopIteration:
                break
            seen += len(x)
            self.losses.append(self.step(x, y))
            yield from self.interrupt()
        return seen

    def inside(self):
        seen, number = 0, 0
        while number < EPOCHS:
            seen += yield from self.epoch(number)
            number += 1
            yield from self.interrupt()
        self.losses.append(seen)
        return seen

    def told(self):
        for number in range(EPOCHS):
            self.loader.sampler.set_epoch(number)
            for x, y in self.loader:
                yield self.step(x, y)

    def delegated(self):
        yield 0.0
        yield from self.told()

    def epochs(self):
        for number in range(EPOCHS):
            self.loader.sampler.set_epoch(number)
            total = 0.0
            for x, y in self.loader:
                total += self.step(x, y)
            self.losses.append(total)
            yield total

    def epochs_without_end(self):
        number = 0
        while True:
            self.loader.sampler.set_epoch(number)
            for x, y in self.loader:
                self.losses.append(self.step(x, y))
            number += 1
            yield number

    def run(self):
        self.running = self.inside()
        try:
            return next(self.running)
        except StopIteration as end:
            self.running = None
            return end.value


def main():
    out, kind = sys.argv[1:]
    _, world_size = common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = common.data(6 * 4 * world_size)
    sampler = DistributedSampler(TensorDataset(*data))
    trainer = Trainer(model, optimizer, DataLoader(sampler.dataset, batch_size=4, sampler=sampler))
    kept = []
    if kind == "inside":
        kept.append(trainer.run())
    elif kind == "asked":
        steps = trainer.told()
        while len(trainer.losses) < EPOCHS * 6:
            trainer.losses.append(next(steps))
            kept.append(sum(trainer.losses))
    elif kind == "rounds":
        rounds = trainer.epochs_without_end()
        while trainer.done < EPOCHS * 6:
            kept.append(next(rounds))
    else:
        for loss in getattr(trainer, kind)():
            trainer.losses.append(loss)
            kept.append(sum(trainer.losses))
    final_state.write(out, trainer.losses, model, optimizer, kept=kept, epoch=sampler.epoch)
    common.end()


if __name__ == "__main__":
    main()
