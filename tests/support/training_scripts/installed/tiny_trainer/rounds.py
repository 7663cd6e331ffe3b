"""The loops; the optimizer's step is in another file."""

import sys

from tiny_trainer import advance
from tiny_trainer.bar import Bar


class Rounds:
    def __init__(self, model, optimizer, loader, loss_of):
        self.model, self.optimizer, self.loader, self.loss_of = model, optimizer, loader, loss_of
        self.losses, self.done, self.bar = [], 0, None

    def loop_all(self, count, each):
        for number in range(count):
            self.loader.sampler.set_epoch(number)
            self.all_batches(each)

    def all_batches(self, each):
        for position, batch in enumerate(self.loader):
            each(self.done)
            loss = advance.once(self.optimizer, self.loss_of(self.model, batch))
            self.done += 1
            if self.bar is None:
                self.bar = Bar(sys.stderr)
            told = self.bar.tell("*" * (self.done % 5))
            self.losses.append(loss.item() + position + told)
