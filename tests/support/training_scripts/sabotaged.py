"""Two optimizers in turn, with all ways into torchrelay that an ordinary script takes, and torchrelay itself broken.

Usage: sabotaged.py OUT MODULE CLASS FUNCTION AFTER

FUNCTION of torchrelay fails on rank 1, each time from its call AFTER on (from 0). Under torchrun nothing is broken.
"""

import importlib
import os
import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def break_torchrelay(module, cls, function, after):
    if os.environ["RANK"] != "1" or "torchrelay" not in sys.modules:
        return
    owner = importlib.import_module(module)
    owner = getattr(owner, cls) if cls != "-" else owner
    original, calls = getattr(owner, function), []

    def broken(*args, **kwargs):
        calls.append(1)
        if len(calls) > after:
            if len(calls) == after + 1:
                print("sabotaged", file=sys.stderr, flush=True)
            raise ValueError("broken on purpose")
        return original(*args, **kwargs)

    setattr(owner, function, broken)


class Training:
    def __init__(self):
        torch.manual_seed(3)
        self.first = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 1)))
        self.second = DistributedDataParallel(nn.Linear(8, 1))
        self.optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (self.first, self.second)]
        self.losses, self.group = [], dist.new_group()
        self.extra = iter(DataLoader(TensorDataset(torch.arange(100.0)), batch_size=1, shuffle=True))

    def step(self, x, y):
        pace.hold(len(self.losses) + 1)
        pace.work()
        total = next(self.extra)[0]
        for model, optimizer in zip((self.first, self.second), self.optimizers):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            total = total + loss.detach()
        dist.all_reduce(total, group=self.group)
        if dist.get_rank() == 0:
            dist.send(total, 1)
        else:
            dist.recv(total, 0)
        self.losses.append(total.item())

    def evaluate(self, loader):
        found, batches = 0.0, iter(loader)
        with torch.inference_mode():
            while True:
                try:
                    x, y = next(batches)
                except StopIteration:
                    break
                found += (self.second.module(x) - y).abs().sum().item()
        return found


def main():
    out, module, cls, function, after = sys.argv[1:]
    break_torchrelay(module, cls, function, int(after))
    rank, _ = common.start()
    training, (x, y) = Training(), common.data(48)
    loader = DataLoader(TensorDataset(x[rank::2], y[rank::2]), batch_size=8, shuffle=True)
    for _ in range(3):
        for batch in loader:
            try:
                training.step(*batch)
            except RuntimeError as error:
                raise SystemExit("the step failed") from error
        training.losses.append(training.evaluate(loader))
    final_state.write(out, training.losses, training.first, training.optimizers[0])
    common.end()


if __name__ == "__main__":
    main()
