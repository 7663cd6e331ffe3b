"""Another network takes over the weights in each fourth step, before the optimizer's. Usage: target_network.py OUT"""

import copy
import sys

import common
import final_state
import pace
import torch
from torch.nn.parallel import DistributedDataParallel

WIDE, EVERY = 40_000, 4

rank, world_size = common.start()
network = torch.nn.Linear(2, WIDE)
target = copy.deepcopy(network).requires_grad_(False)
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
losses = []
for step in range(14):
    pace.work()
    if step % EVERY == 0:
        target.load_state_dict(network.state_dict())
    x = torch.randn(3, 2)
    loss = (model(x) - 0.9 * target(x) + 0.1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

final_state.write(sys.argv[1], losses, model, optimizer)
common.end()
