"""One epoch makes a loader before its steps, and later ones go on with it. Usage: OUT KIND

KIND: `loader`, another loader in the place of set-up's; `data`, another data set in the place of set-up's, from which each epoch
makes its loader; `held`, a loader in an object of set-up's, with an iterator that goes on over several epochs; `lazy`, a loader
over what cannot be captured, which an epoch makes where it finds none; `large`, the same over a large tensor, which each making
gives the same content; `drawn`, the same, and each making draws another content.
"""

import sys
import types

import common
import final_state
import pace
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

KIND = sys.argv[2]
EXAMPLES = 16
LARGE = 1 << 20
LAZY = KIND in ("lazy", "large", "drawn")


class Scaled(Dataset):
    def __init__(self, factor):
        self.inputs, self.outputs = common.data(EXAMPLES)
        self.factor = {"by": factor}
        if KIND == "lazy":
            self.view = memoryview(bytearray(EXAMPLES))
        if KIND in ("large", "drawn"):
            self.noise = torch.linspace(0, 1, LARGE) if KIND == "large" else torch.rand(LARGE)

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, place):
        noise = self.noise[place] if KIND in ("large", "drawn") else 0.0
        return self.inputs[place] * self.factor["by"] + noise, self.outputs[place]


def main():
    common.start()
    kept = TensorDataset(*common.data(EXAMPLES))
    train = DataLoader(kept, shuffle=True, batch_size=4)
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    aux, data, held, losses = DataLoader(kept, batch_size=4), kept, types.SimpleNamespace(loader=None, drawn=None), []
    for epoch in range(6):
        if epoch == 1 and KIND == "loader":
            aux = DataLoader(Subset(kept, torch.randperm(EXAMPLES).tolist()), shuffle=True, batch_size=4)
        if epoch == 1 and KIND == "data":
            data = Scaled(3.0)
        if epoch == 1 and KIND == "held":
            held.loader = DataLoader(Scaled(2.0), shuffle=True, batch_size=2)
            held.drawn = iter(held.loader)
        if LAZY and held.loader is None:
            held.loader = DataLoader(Scaled(4.0), batch_size=4)
        if LAZY:
            aux = held.loader
        if KIND == "data":
            aux = DataLoader(data, batch_size=4)
        more = iter(aux)
        for batch in train:
            pace.hold(len(losses) + 1)
            pace.work()
            loss = common.loss_of(model, *batch) + common.loss_of(model, *next(more))
            if held.drawn is not None:
                extra = next(held.drawn, None)
                if extra is None:
                    held.drawn = iter(held.loader)
                    extra = next(held.drawn)
                loss = loss + common.loss_of(model, *extra)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    final_state.write(sys.argv[1], losses, model, optimizer)
    common.end()


main()
