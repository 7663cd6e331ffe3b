"""A rollout asks an iterator for its batch, in front of the loops that train on it. Usage: asked_rollouts.py OUT KIND

generator: over a loader that communicates as an epoch begins, as accelerate's do. kept: a class makes the iterator anew when it is
over, and communicates then.
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset


class Synced(DataLoader):
    """Its ranks agree on a seed as an epoch begins."""

    def __iter__(self):
        seed = torch.tensor([torch.initial_seed()])
        dist.broadcast(seed, 0)
        yield from super().__iter__()


class Batches:
    def __init__(self, loader):
        self.loader, self.iterator, self.epochs = loader, None, 0

    def __next__(self):
        if self.iterator is None:
            self.iterator = iter(self.loader)
        try:
            return next(self.iterator)
        except StopIteration:
            self.epochs += 1
            dist.all_reduce(torch.tensor([self.epochs]))
            self.iterator = iter(self.loader)
            return next(self.iterator)


def endless(loader):
    while True:
        yield from loader


def main():
    out, kind = sys.argv[1:]
    common.start()
    torch.manual_seed(3 + dist.get_rank())
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = TensorDataset(torch.randn(18, 8), torch.randn(18, 1))
    make = Synced if kind == "generator" else DataLoader
    loader = make(data, batch_size=6, shuffle=True)
    batches = endless(loader) if kind == "generator" else Batches(loader)
    losses, seen = [], []
    for _ in range(8):
        states, wanted = next(batches)
        noise = torch.randn(6, 1)
        rewards = [None] * dist.get_world_size()
        dist.all_gather_object(rewards, (states.sum() + noise.sum()).item())
        seen.append(rewards)
        for _ in range(2):
            for chosen in torch.randperm(6).split(3):
                pace.work()
                optimizer.zero_grad()
                loss = common.loss_of(model, states[chosen], wanted[chosen] + noise[chosen])
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    final_state.write(out, losses, model, optimizer, others=[seen])
    common.end()


main()
