"""Steps compute with tensors that lie in memory in another order than that of their indices. Usage: transposed.py OUT"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(150, 40)
        self.register_buffer("scale", torch.eye(40))
        self.slow = nn.Conv2d(64, 128, 1, bias=False).to(memory_format=torch.channels_last).requires_grad_(False)

    def forward(self, rows):
        return self.layer(rows) @ self.scale


def main(out):
    common.start()
    torch.manual_seed(3)
    own = torch.Generator().manual_seed(10 + dist.get_rank())
    scaled = Scaled()
    model = DistributedDataParallel(scaled)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    alike = mine = small = pictures = None
    losses, orders = [], []
    for step in range(20):
        pace.hold(len(losses) + 1)
        pace.work()
        if step % 4 == 0:
            alike = torch.linalg.inv(torch.eye(150) + torch.full((150, 150), 0.001 * step))
            mine = torch.rand(150, 150, generator=own).t()
            small = torch.rand(40, 30, generator=own).t()
            pictures = torch.rand(4, 8, 30, 30, generator=own).to(memory_format=torch.channels_last)
            scaled.scale = torch.linalg.inv(torch.eye(40) + 0.01 * step)
        orders.append([tensor.stride() for tensor in (alike, mine, small, pictures, scaled.scale)])
        found = model(torch.rand(8, 150, generator=own) @ alike @ mine) @ small.t()
        optimizer.zero_grad()
        loss = found.square().mean().log() + pictures.sum((2, 3)).mean().log()
        loss.backward()
        optimizer.step()
        for parameter in scaled.slow.parameters():  # what is computed lies in memory in another order than set-up's
            parameter.data = 0.99 * parameter.data + loss.item() * torch.ones(128, 64, 1, 1)
        losses.append(loss.item())
    final_state.write(out, losses, model, optimizer, orders=orders)
    common.end()


main(*sys.argv[1:])
