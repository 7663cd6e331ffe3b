"""Workers that are kept read a variable of the script as it was when they began. Usage: OUT each|last

`last`: it is in the last items of an epoch alone.
"""

import sys

import common
import final_state
import pace
import torch
from torch.utils.data import DataLoader, Dataset

epoch = 0
state = {"epoch": 0}
kind = ""


class Data(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index + 4 * epoch + 4 * state["epoch"] if index > 5 or kind == "each" else index


def main():
    global epoch, kind
    out, kind = sys.argv[1:]
    common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = common.data(64)
    losses = []
    loader = DataLoader(Data(), batch_size=2, num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    for epoch in range(4):
        state["epoch"] = epoch
        for picked in loader:
            pace.hold(len(losses) + 1)
            pace.work()
            optimizer.zero_grad()
            loss = common.loss_of(model, x[picked], y[picked])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    final_state.write(out, losses, model, optimizer)
    common.end()


main()
