"""A Trainer class: `while self.step < n`, all counters and an endless iterator on self."""

import ending
import pace
import setting
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, max_steps):
        _, world_size = setting.start()
        self.max_steps, self.step, self.epoch, self.tokens = max_steps, 0, 0, 0
        self.losses, self.best = [], None
        self.model = DistributedDataParallel(setting.network(dropout=0.2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, max_steps)
        data = setting.dataset(7 * 4 * world_size)
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=4, sampler=self.sampler)
        self.batches = iter(self.loader)

    def next_batch(self):
        try:
            return next(self.batches)
        except StopIteration:
            self.epoch += 1
            self.sampler.set_epoch(self.epoch)
            self.batches = iter(self.loader)
            return next(self.batches)

    def train_step(self, batch):
        x, y = batch
        pace.work()
        loss = setting.loss_of(self.model, x, y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.tokens += x.numel()
        return loss.item()

    def train(self):
        while self.step < self.max_steps:
            loss = self.train_step(self.next_batch())
            self.step += 1
            self.losses.append(loss)
            if self.best is None or loss < self.best[0]:
                self.best = (loss, self.step)


def main():
    trainer = Trainer(20)
    trainer.train()
    ending.write(
        trainer.losses,
        model=trainer.model,
        optimizer=trainer.optimizer,
        scheduler=trainer.scheduler,
        counters=[trainer.step, trainer.epoch, trainer.tokens, trainer.best],
    )
    setting.end()


main()
