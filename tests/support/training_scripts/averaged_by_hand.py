"""Data parallel training without a wrapper: the script averages gradients itself. Usage: averaged_by_hand.py OUT"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist

STEPS = 60

rank, world_size = common.start()
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
own = torch.Generator().manual_seed(100 + rank)
losses = []
for step in range(1, STEPS + 1):
    pace.hold(step)
    pace.work()
    x = torch.randn(8, 6, generator=own)
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size
    optimizer.step()
    losses.append(loss.item())

final_state.write(sys.argv[1], losses, model, optimizer)
common.end()
