"""A `while` whose condition draws the next batch. Usage: drawing_conditions.py OUT (walrus | method)"""

import sys

import common
import final_state
import pace
import torch


class Batches:
    """Draws one batch after the other, and counts them."""

    def __init__(self, loader):
        self.left = iter(loader)
        self.batch = None
        self.count = 0

    def advance(self):
        self.batch = next(self.left, None)
        self.count += 1
        return self.batch is not None


def main():
    out, how = sys.argv[1:]
    common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []

    def step(batch):
        pace.work()
        (states,) = batch
        optimizer.zero_grad()
        loss = common.loss_of(model, states, states.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        return loss.item()

    data = torch.utils.data.TensorDataset(torch.randn(64, 8))
    for _ in range(2):
        loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
        if how == "walrus":
            left = iter(loader)
            while (batch := next(left, None)) is not None:
                losses.append(step(batch))
        else:
            batches = Batches(loader)
            while batches.advance():
                losses.append(step(batches.batch) * batches.count)
    final_state.write(out, losses, model, optimizer)
    common.end()


main()
