"""Gradient accumulation, with `no_sync` for all micro-batches but the last. Usage: accumulation.py OUT"""

import contextlib
import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

MICRO_BATCHES = 3


def micro_batches(loader):
    """Lists of micro-batches; a shorter last one is left out."""
    group = []
    for batch in loader:
        group.append(batch)
        if len(group) == MICRO_BATCHES:
            yield group
            group = []


def main():
    rank, _ = common.start()
    model = common.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    loader = DataLoader(TensorDataset(*common.data(112)), batch_size=4, shuffle=True, generator=generator)
    losses, norms = [], []
    for _epoch in range(3):
        for group in micro_batches(loader):
            optimizer.zero_grad()
            total = torch.zeros(())
            for place, (x, y) in enumerate(group):
                last = place == len(group) - 1
                with contextlib.nullcontext() if last else model.no_sync():
                    loss = common.loss_of(model, x, y) / len(group)
                    loss.backward()
                total += loss.detach()
            pace.work()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
            optimizer.step()
            dist.all_reduce(total)
            losses.append(total.item())
    final_state.write(sys.argv[1], losses, model, optimizer, norms=norms, generator=generator.get_state())
    common.end()


if __name__ == "__main__":
    main()
