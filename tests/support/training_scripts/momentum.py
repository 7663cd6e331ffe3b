"""A second encoder follows the first one before each backward, by assignment to `data`; its outputs queue up.

Usage: momentum.py OUT
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDE, ROWS = 20_000, 8


class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(4, WIDE), nn.Linear(4, WIDE)
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)
        self.register_buffer("queue", torch.zeros(ROWS, WIDE))
        self.steps = 0

    @torch.no_grad()
    def follow(self):
        for query, key in zip(self.query.parameters(), self.key.parameters()):
            key.data = key.data * 0.9 + query.data * 0.1

    def forward(self, x):
        self.follow()
        with torch.no_grad():
            key = self.key(x).tanh()
        similar = (self.query(x).tanh() * (key - self.queue.detach().clone().mean(0))).mean()
        keys = [torch.empty(WIDE) for _ in range(world_size)]
        dist.all_gather(keys, key[0].contiguous())
        self.queue[self.steps % ROWS] = sum(keys) / world_size
        self.steps += 1
        return similar


rank, world_size = common.start()
torch.manual_seed(7)
model = DistributedDataParallel(Contrast())
torch.manual_seed(7 + rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
losses = []
for _step in range(12):
    pace.work()
    loss = (model(torch.randn(3, 4)) - 0.5).square()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

final_state.write(sys.argv[1], losses, model, optimizer)
common.end()
