"""A trainer class with its counters on self and a `while` loop. Usage: trainer.py OUT"""

import sys

import common
import final_state
import pace
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, steps):
        self.rank, self.world_size = common.start()
        self.steps, self.step, self.epoch = steps, 0, 0
        self.history, self._best = [], None
        self.model = common.model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 5, gamma=0.9)
        data = TensorDataset(*common.data(44))
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=4, sampler=self.sampler)
        self.batches = None

    @property
    def best(self):
        return self._best

    def next_batch(self):
        if self.batches is None:
            self.batches = iter(self.loader)
        try:
            return next(self.batches)
        except StopIteration:
            self.epoch += 1
            self.sampler.set_epoch(self.epoch)
            self.batches = iter(self.loader)
            return next(self.batches)

    def train(self):
        while self.step < self.steps:
            x, y = self.next_batch()
            pace.work()
            loss = common.loss_of(self.model, x, y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.step += 1
            self.history.append(loss.item())
            if self._best is None or loss.item() < self._best[0]:
                self._best = (loss.item(), self.step)


trainer = Trainer(40)
trainer.train()
final_state.write(
    sys.argv[1],
    trainer.history,
    trainer.model,
    trainer.optimizer,
    counters=[trainer.step, trainer.epoch],
    best=trainer.best,
    scheduler=trainer.scheduler.state_dict(),
)
common.end()
