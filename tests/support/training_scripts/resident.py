"""Batches drawn from a tensor in memory. Usage: resident.py OUT [randint] [permutation]: one loop, or one after the other."""

import sys

import common
import final_state
import pace
import torch


def step(model, optimizer, x, y):
    pace.work()
    loss = common.loss_of(model, x, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def by_randint(model, optimizer, x, y, losses):
    for _ in range(16):
        chosen = torch.randint(len(x), (4,))
        losses.append(step(model, optimizer, x[chosen], y[chosen]))


def by_permutation(model, optimizer, x, y, losses, generator):
    for _epoch in range(3):
        order = torch.randperm(len(x), generator=generator)
        for start in range(0, len(x) - 3, 4):
            chosen = order[start : start + 4]
            losses.append(step(model, optimizer, x[chosen], y[chosen]))


def main():
    rank, _ = common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
    x, y = common.data(32)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    if "randint" in sys.argv[2:]:
        by_randint(model, optimizer, x, y, losses)
    if "permutation" in sys.argv[2:]:
        by_permutation(model, optimizer, x, y, losses, generator)
    final_state.write(sys.argv[1], losses, model, optimizer, generator=generator.get_state())
    common.end()


if __name__ == "__main__":
    main()
