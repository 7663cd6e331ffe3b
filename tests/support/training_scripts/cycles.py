"""Batches of a short data set beside those of a long one, over and over. Usage: cycles.py OUT zip|bar|held|lists|next"""

import itertools
import sys

import common
import final_state
import pace
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEPS = 16


def bar(batches):
    """As progress bars are."""
    done = 0
    for batch in batches:
        yield batch
        done += 1  # noqa: SIM113 - as people write it


def in_a_bar(long, short):
    for (x, y), (more, of_more) in bar(zip(long, itertools.cycle(short))):
        yield torch.cat([x, more]), torch.cat([y, of_more])


def held(long, short):
    both = zip(bar(long), itertools.cycle(short))
    for _ in range(STEPS):
        (x, y), (more, of_more) = next(both)
        yield torch.cat([x, more]), torch.cat([y, of_more])


def by_next(long, short):
    batches, weights = itertools.cycle(short), itertools.cycle([0.5, 1.0, 2.0])
    for x, y in long:
        more, of_more = next(batches)
        weight = next(weights)
        yield torch.cat([x * weight, more]), torch.cat([y, of_more])


def places(data, steps):
    order = itertools.cycle(list(range(len(data)))[::-1])
    for _ in range(steps):
        chosen = [next(order) for _ in range(5)]
        yield data[chosen]


def of_lists(long, short):
    """Generators over cycles, in a list of another generator."""
    sources = [places(loader.dataset, STEPS) for loader in (long, short)]
    for step in range(STEPS):
        yield next(sources[step * step % 3 % 2])


SHAPES = {"bar": in_a_bar, "held": held, "next": by_next, "lists": of_lists}


def main():
    common.start()
    torch.manual_seed(3)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    long, short = (DataLoader(TensorDataset(*common.data(n)), batch_size=4, shuffle=True) for n in (4 * STEPS, 11))
    losses = []
    if sys.argv[2] == "zip":
        # the training loop's own iterator
        for (x, y), (more, of_more) in zip(long, itertools.cycle(short)):
            losses.append(step(model, optimizer, torch.cat([x, more]), torch.cat([y, of_more])))
    else:
        for x, y in SHAPES[sys.argv[2]](long, short):
            losses.append(step(model, optimizer, x, y))
    final_state.write(sys.argv[1], losses, model, optimizer)
    common.end()


def step(model, optimizer, x, y):
    pace.work()
    loss = common.loss_of(model, x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


if __name__ == "__main__":
    main()
