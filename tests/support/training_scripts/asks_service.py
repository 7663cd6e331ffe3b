"""Rank 0 asks a service on this machine for a number in each step, as with a reward model's server. Usage: asks_service.py OUT

The service listens at SERVICE, HOST:PORT. It takes its time with step SLOW_STEP.
"""

import http.client
import os
import sys

import common
import final_state
import torch
import torch.distributed as dist

STEPS = 24


def ask(step):
    connection = http.client.HTTPConnection(os.environ["SERVICE"], timeout=120)
    connection.request("GET", f"/{step}")
    number = float(connection.getresponse().read())
    connection.close()
    return number


rank, _ = common.start()
model = common.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = common.data(32)
losses = []
for step in range(1, STEPS + 1):
    scale = torch.tensor(ask(step) if rank == 0 else 0.0)
    dist.broadcast(scale, 0)
    optimizer.zero_grad()
    loss = common.loss_of(model, x, y) * scale
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
final_state.write(sys.argv[1], losses, model, optimizer)
common.end()
