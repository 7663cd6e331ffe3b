"""Optimizers that call their closure several times a step.

Usage: closures.py OUT lbfgs|wolfe|phases

phases: one that does, then one that calls it once, in a loop of its own.
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def optimizer_of(kind, model):
    search = "strong_wolfe" if kind == "wolfe" else None
    return torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=3, line_search_fn=search)


class Training:
    def __init__(self, kind, rank):
        torch.manual_seed(3)
        layers = nn.Sequential(nn.Linear(8, 200), nn.Tanh(), nn.Linear(200, 100), nn.Linear(100, 1))
        self.kind, self.model = kind, DistributedDataParallel(layers)
        self.x, self.y = common.data(64)
        self.order = torch.Generator().manual_seed(rank)
        self.losses, self.calls = [], 0

    def step(self, optimizer):
        pace.hold(len(self.losses) + 1)
        pace.work()
        chosen = torch.randperm(len(self.x), generator=self.order)[:16]

        def closure():
            self.calls += 1
            optimizer.zero_grad()
            loss = common.loss_of(self.model, self.x[chosen], self.y[chosen])
            loss.backward()
            if self.kind == "wolfe":  # its search goes by the loss, which has to be the same on all ranks
                loss = loss.detach()
                dist.all_reduce(loss)
            return loss

        loss = optimizer.step(closure)
        total = loss.detach().clone()
        dist.all_reduce(total)
        self.losses.append(total.item() + self.calls)


def main():
    out, kind = sys.argv[1:]
    rank, _ = common.start()
    training = Training(kind, rank)
    optimizer = optimizer_of(kind, training.model)
    for _ in range(6 if kind == "phases" else 16):
        training.step(optimizer)
    if kind == "phases":
        optimizer = torch.optim.Adam(training.model.parameters(), lr=0.001)
        for _ in range(10):
            training.step(optimizer)
    final_state.write(out, training.losses, training.model, optimizer)
    common.end()


if __name__ == "__main__":
    main()
