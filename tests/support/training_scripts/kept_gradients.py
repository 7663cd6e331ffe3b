"""Nothing zeroes the gradients: each step adds its own to those of all before. Usage: kept_gradients.py OUT"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = common.data(32)
    losses = []
    for step in range(14):
        pace.work()
        loss = common.loss_of(model, x[step : step + 4], y[step : step + 4])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(sys.argv[1], losses, model, optimizer)
    dist.barrier()
    dist.destroy_process_group()


main()
