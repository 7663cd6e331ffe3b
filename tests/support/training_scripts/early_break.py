"""Epochs that are left by `break` when they have drawn one batch too many; it knows nothing of torchrelay.

Usage: early_break.py OUT SHAPE, where SHAPE is `for`, `while`, `asked` (what to do is asked of all ranks at the loop's top), `bare`
(nothing is communicated between epochs), or `graded` (gradients are looked at when all is done).
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

STEPS, EPOCHS = 5, 3


class Run:
    def __init__(self, shape):
        self.shape = shape
        self.model = common.model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.loader = DataLoader(TensorDataset(*common.data(64)), batch_size=4, shuffle=True)
        self.losses, self.kept = [], []

    def step(self, x, y):
        pace.work()
        self.optimizer.zero_grad()
        loss = common.loss_of(self.model, x, y)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def is_done(self, done):
        if self.shape == "asked":
            votes = torch.tensor(float(done))
            dist.all_reduce(votes)
            done = votes.item() > 0
        return done

    def epoch(self):
        if self.shape == "while":
            batches, i = iter(self.loader), 0
            while True:
                x, y = next(batches)
                if self.is_done(i == STEPS):
                    break
                self.step(x, y)
                i += 1
        else:
            for i, (x, y) in enumerate(self.loader):
                if self.is_done(i == STEPS):
                    break
                self.step(x, y)

    def evaluate(self, epoch):
        x, y = common.data(24)
        total = torch.zeros(())
        with torch.no_grad():
            self.model.eval()
            for part in range(0, 24, 8):
                loss = common.loss_of(self.model.module, x[part : part + 8], y[part : part + 8])
                pace.strike(f"evaluation-{epoch}-{part}")
                dist.all_reduce(loss)
                total += loss + torch.rand(())
            self.model.train()
        self.kept.append(total.item())
        pace.strike(f"evaluated-{epoch}")

    def train(self):
        for epoch in range(EPOCHS):
            self.epoch()
            pace.strike(f"left-{epoch}")
            if self.shape != "bare":
                self.evaluate(epoch)
        if self.shape == "graded":
            self.kept += [p.grad.norm().item() for p in self.model.parameters()]


def main():
    common.start()
    run = Run(sys.argv[2])
    run.train()
    pace.strike("end")
    final_state.write(sys.argv[1], run.losses, run.model, run.optimizer, kept=run.kept, step=len(run.losses))
    common.end()


if __name__ == "__main__":
    main()
