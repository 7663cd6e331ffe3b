"""A module that training gives another part, beside the model, in loops within a loop. Usage: OUT"""

import sys

import common
import final_state
import pace
import torch


class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.base = torch.nn.MSELoss()
        self.scale = torch.nn.Linear(1, 1)
        torch.nn.init.ones_(self.scale.weight)  # the same on all ranks
        torch.nn.init.zeros_(self.scale.bias)
        self.scale.requires_grad_(False)

    def forward(self, result, target):
        return self.base(self.scale(result), target)


def main():
    common.start()
    inputs, outputs = common.data(8)
    criterion = Loss()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        for _ in range(8):
            pace.hold(len(losses) + 1)
            pace.work()
            if len(losses) == 2:
                criterion.base = torch.nn.SmoothL1Loss()
            loss = criterion(model(inputs), outputs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    final_state.write(sys.argv[1], losses, model, optimizer)
    common.end()


main()
