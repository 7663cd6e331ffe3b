"""Gradients become ready in another order in each step: parts of the model take turns. Usage: ready_order.py OUT"""

import sys

import common
import final_state
import pace
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Turns(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.last, self.turn = nn.Linear(8, 1), 0

    def forward(self, x):
        self.turn += 1
        for number in range(4):
            x = torch.tanh(self.parts[(self.turn + number) % 4](x))
        return self.last(x)


def main():
    common.start()
    torch.manual_seed(3)
    model = DistributedDataParallel(Turns())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    x, y = common.data(64)
    losses = []
    for _ in range(16):
        pace.work()
        batch = torch.randint(len(x), (4,))
        loss = common.loss_of(model, x[batch], y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(sys.argv[1], losses, model, optimizer)
    common.end()


if __name__ == "__main__":
    main()
