"""A generator that begins its loader again where that is over, and yields from there. Usage: OUT"""

import sys

import common
import final_state
import pace
import torch
from torch.utils.data import DataLoader, TensorDataset


def sample_data(dataset):
    loader = iter(DataLoader(dataset, shuffle=True, batch_size=4))
    while True:
        try:
            yield next(loader)
        except StopIteration:
            loader = iter(DataLoader(dataset, shuffle=True, batch_size=4))
            yield next(loader)


def main():
    common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = sample_data(TensorDataset(*common.data(20)))
    losses = []
    for step in range(20):
        pace.hold(step + 1)
        pace.work()
        loss = common.loss_of(model, *next(batches))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(sys.argv[1], losses, model, optimizer)
    common.end()


main()
