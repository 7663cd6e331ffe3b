"""Each epoch opens the data set, which cannot be opened while it is open. Usage: OUT KIND

KIND: `local`, a variable that the loop no longer needs; `read`, one that each step reads; `held`, in an object that a function
makes; `fold`, in a function that trains a model of its own for two epochs; `update`, as `read`, and an update before each epoch.
"""

import sys

import common
import final_state
import pace
import torch
from torch.utils.data import DataLoader, Dataset

KIND = sys.argv[2]
EXAMPLES = 16
OPEN = set()


class Exclusive(Dataset):
    def __init__(self, path):
        if path in OPEN:
            raise RuntimeError(f"{path} is already open in this process")
        self.path, self.length = path, EXAMPLES
        OPEN.add(path)
        self.inputs, self.outputs = common.data(EXAMPLES)

    def __len__(self):
        return self.length

    def __getitem__(self, place):
        return self.inputs[place], self.outputs[place]

    def __del__(self):
        OPEN.discard(self.__dict__.get("path"))


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.data = Exclusive("train.mdb")
        self.loader = DataLoader(self.data, shuffle=True, batch_size=4)
        self.seen = 0

    def epoch(self, losses):
        for batch in self.loader:
            self.seen += len(self.data)
            losses.append(step(self.model, self.optimizer, batch, len(losses) + 1))


def step(model, optimizer, batch, number):
    pace.hold(number)
    pace.work()
    loss = common.loss_of(model, *batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def of_an_object(model, optimizer, losses):
    Trainer(model, optimizer).epoch(losses)


def of_a_variable(model, optimizer, losses):
    data = Exclusive("train.mdb")
    seen = 0
    for batch in DataLoader(data, shuffle=True, batch_size=4):
        seen += len(data) if KIND != "local" else 4
        losses.append(step(model, optimizer, batch, len(losses) + 1))


def fold(losses):
    data = Exclusive("train.mdb")
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        for batch in DataLoader(data, shuffle=True, batch_size=4):
            losses.append(step(model, optimizer, batch, len(losses) + 1) + len(data))
    return model, optimizer


def main():
    common.start()
    losses = []
    if KIND == "fold":
        for _ in range(3):
            model, optimizer = fold(losses)
    else:
        model = common.model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(6):
            if KIND == "update":
                step(model, optimizer, common.data(4), len(losses) + 1)
            epoch_of = of_an_object if KIND == "held" else of_a_variable
            epoch_of(model, optimizer, losses)
    final_state.write(sys.argv[1], losses, model, optimizer)
    common.end()


main()
