"""A step's outputs are an object with large logits, of which the loss is read behind the update. Usage: outputs.py OUT KIND

`read`: the loop reads the loss and a further number; `deleted`: it deletes the object at its end, and reads nothing of it.
"""

import sys

import common
import final_state
import pace
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Outputs:
    def __init__(self, loss, extra, logits):
        self.loss, self.extra, self.logits = loss, extra, logits


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head, self.dropout = nn.Linear(8, 16), nn.Linear(16, 40_000), nn.Dropout(0.1)

    def forward(self, x):
        hidden = self.dropout(self.inner(x))
        logits = self.head(hidden)
        return Outputs(logits.square().mean(), hidden.abs().mean(), logits)


def train(kind, model, optimizer, x, losses, kept):
    for _ in range(16):
        pace.work()
        batch = torch.randint(len(x), (16,))
        outputs = model(x[batch])
        optimizer.zero_grad()
        loss = outputs.loss + 0.1 * outputs.extra
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if kind == "read":
            kept.append([outputs.loss.item(), outputs.extra.item() if outputs.extra is not None else 0.0])
        else:
            del outputs


def main():
    out, kind = sys.argv[1:]
    common.start()
    torch.manual_seed(3)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    x, _ = common.data(64)
    losses, kept = [], []
    train(kind, model, optimizer, x, losses, kept)
    final_state.write(out, losses, model, optimizer, kept=kept)
    common.end()


if __name__ == "__main__":
    main()
