"""Forces are derivatives of an energy, also where the model is evaluated: its forward switches gradients on.

Usage: evaluated_forces.py OUT
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 1))

    def forward(self, places):
        torch.set_grad_enabled(True)
        energy = self.layers(places.requires_grad_()).sum()
        (forces,) = torch.autograd.grad(energy, places, create_graph=True)
        return energy, forces


def main(out):
    common.start()
    torch.manual_seed(3)
    own = torch.Generator().manual_seed(10 + dist.get_rank())
    model = DistributedDataParallel(Energy())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses, seen = [], []
    for step in range(20):
        pace.hold(len(losses) + 1)
        pace.work()
        energy, forces = model(torch.rand(4, 6, generator=own))
        optimizer.zero_grad()
        loss = energy.square().mean() + forces.square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 3 == 1:
            model.eval()
            torch.set_grad_enabled(False)
            for place in range(3):
                energy, forces = model(torch.full((2, 6), float(place)))
                seen.append(energy.item() + forces.sum().item())
            torch.set_grad_enabled(True)
            model.train()
    final_state.write(out, losses, model, optimizer, seen=seen)
    common.end()


main(*sys.argv[1:])
