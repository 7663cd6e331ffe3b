"""Training puts data sets and loaders of set-up's elsewhere: another one has the place of each then. Usage: OUT KIND

KIND: `stages`, an attribute means another loader in each epoch; `pool`, steps turn a list of data sets that they take items from;
`concat`, epochs turn the parts of a data set.
"""

import sys
import types

import common
import final_state
import pace
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset

KIND = sys.argv[2]


class Scaled(Dataset):
    def __init__(self, factor):
        self.inputs, self.outputs = common.data(8)
        self.factor = factor * torch.ones(1)

    def __len__(self):
        return 8

    def __getitem__(self, place):
        return self.inputs[place] * self.factor, self.outputs[place]


def main():
    common.start()
    data = [Scaled(1.0), Scaled(2.0), Scaled(-1.0)]
    loaders = [DataLoader(each, batch_size=2, shuffle=True) for each in data]
    trainer = types.SimpleNamespace(current=loaders[0], loaders=loaders)
    joined = ConcatDataset(data)
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []

    def step(inputs, outputs):
        pace.hold(len(losses) + 1)
        pace.work()
        loss = common.loss_of(model, inputs, outputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    if KIND == "pool":
        for number in range(20):
            if number % 4 == 3:
                data.reverse()
            items = [data[0][(number + place) % 8] for place in range(2)]
            step(*map(torch.stack, zip(*items)))
    for epoch in range(5 if KIND != "pool" else 0):
        if KIND == "stages":
            trainer.current = trainer.loaders[epoch % 3]
            if epoch == 3:
                trainer.loaders.reverse()
        elif epoch % 2 == 1:
            joined.datasets.reverse()
        for batch in trainer.current if KIND == "stages" else DataLoader(joined, batch_size=6):
            step(*batch)
    final_state.write(sys.argv[1], losses, model, optimizer)
    common.end()


main()
