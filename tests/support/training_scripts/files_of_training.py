"""A trainer that opens its log in its first step, and another one in each epoch. Usage: files_of_training.py OUT"""

import sys
from pathlib import Path

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Schedule:
    """Holds the optimizer's groups themselves, and is reached before the optimizer."""

    def __init__(self, param_groups):
        self.param_groups = param_groups

    def step(self, number):
        for group in self.param_groups:
            group["lr"] = 0.02 / (1 + 0.1 * number)


class Trainer:
    def __init__(self, out):
        torch.manual_seed(3)
        self.folder = Path(out).parent
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)))
        optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)
        self.schedule, self.optimizer = Schedule(optimizer.param_groups), optimizer
        self.steps, self.losses = 0, []

    def log_step(self, epoch, loss):
        rank = dist.get_rank()
        if self.steps == 0:
            self.log = open(self.folder / f"log{rank}.txt", "w")  # noqa: SIM115 - it stays open
        if self.steps % 6 == 0:
            self.of_epoch = open(self.folder / f"epoch{epoch}-{rank}.bin", "wb")  # noqa: SIM115 - the same
        self.log.write(f"{self.steps} {loss.hex()}\n")
        self.log.flush()
        self.of_epoch.write(bytes([self.steps]))
        self.of_epoch.flush()

    def train(self):
        for epoch in range(4):
            for batch in range(6):
                pace.work()
                self.optimizer.zero_grad()
                generator = torch.Generator().manual_seed(100 * epoch + 2 * batch + dist.get_rank())
                x = torch.rand(4, 8, generator=generator)
                loss = common.loss_of(self.model, x, x.sum(1, keepdim=True))
                loss.backward()
                self.optimizer.step()
                self.schedule.step(self.steps)
                self.log_step(epoch, loss.item())
                self.steps += 1
                self.losses.append(loss.item())

    def written(self):
        self.log.close()
        self.of_epoch.close()
        rank = dist.get_rank()
        names = [f"log{rank}.txt", *(f"epoch{epoch}-{rank}.bin" for epoch in range(4))]
        return [(self.folder / name).read_bytes() for name in names]


def main():
    common.start()
    trainer = Trainer(sys.argv[1])
    trainer.train()
    final_state.write(sys.argv[1], trainer.losses, trainer.model, trainer.optimizer, written=trainer.written())
    common.end()


main()
