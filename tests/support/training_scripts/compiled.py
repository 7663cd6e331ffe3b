"""The model is compiled, and the last batch of each epoch is smaller. Usage: compiled.py OUT SIZES

SIZES: `several`, or `one` (the last batch is left out).
"""

import sys

import common
import final_state
import pace
import torch
from torch.utils.data import DataLoader, TensorDataset


def main():
    out, sizes = sys.argv[1:]
    common.start()
    model = common.model()
    compiled = torch.compile(model.module, backend="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(*common.data(30)), batch_size=8, shuffle=True, drop_last=sizes == "one")
    losses = []
    for _ in range(4):
        for x, y in loader:
            pace.hold(len(losses) + 1)
            pace.work()
            optimizer.zero_grad()
            loss = common.loss_of(model, x, y) + 0 * compiled(x).sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    final_state.write(out, losses, model, optimizer)
    common.end()


main()
