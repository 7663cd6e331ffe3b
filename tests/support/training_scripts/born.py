"""Training itself makes what it goes on with: a metric, and state of the model. Usage: born.py OUT"""

import sys
import threading
import types

import common
import final_state
import pace
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.total, self.count = torch.zeros(1), 0

    def update(self, value):
        self.total += value
        self.count += 1

    def forward(self):
        return self.total.item() / max(self.count, 1)


class Turns(threading.local):
    """As the locks of metrics have it: what each thread that comes to it has for itself."""

    def __init__(self, *, first):
        self.count = first


class Stream:
    """As progress bars have it: it hands on to a stream what it does not know itself."""

    def __init__(self, stream):
        object.__setattr__(self, "wrapped", stream)

    def __getattr__(self, name):
        return getattr(self.wrapped, name)

    def __setattr__(self, name, value):
        return setattr(self.wrapped, name, value)


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 1)
        self.memory = None

    def forward(self, x):
        if self.memory is None:
            self.memory, self.shift = {"calls": 0}, torch.zeros(16)
        self.memory["calls"] += 1
        x = torch.tanh(self.first(x))
        self.shift.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return self.last(x - self.shift) / self.memory["calls"]


def main(out, rate=0.01, width=8):
    options = locals()  # a dictionary that the frame keeps, before Python 3.13
    _, world_size = common.start()
    told = [f"{name}: {type(value).__name__}" for name, value in options.items()]
    for name, value in options.items():
        told.append(f"{name}: {type(value).__name__}")
    model = DistributedDataParallel(Body(), bucket_cap_mb=0.0005)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    sampler = DistributedSampler(TensorDataset(*common.data(width * 4 * world_size)))
    loader = DataLoader(sampler.dataset, batch_size=4, sampler=sampler)
    losses, metrics = [], {}
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in loader:
            pace.hold(len(losses) + 1)
            pace.work()
            loss = common.loss_of(model, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if "loss" not in metrics:
                metrics["loss"] = Mean()
                metrics["stream"] = Stream(sys.stderr)
                metrics["turns"], metrics["seen"] = Turns(first=3), types.SimpleNamespace(count=0)
            metrics["stream"].write("")
            metrics["turns"].count += 1
            metrics["seen"].count += metrics["turns"].count
            metrics["loss"].update(loss.item())
            losses.append(metrics["loss"]())
    body = model.module
    final_state.write(
        out,
        losses,
        model,
        optimizer,
        memory=body.memory,
        shift=body.shift,
        seen=[metrics["seen"].count, told, sorted(options)],
    )
    common.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
