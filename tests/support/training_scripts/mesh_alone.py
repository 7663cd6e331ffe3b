"""No process group is asked for: the device mesh makes it, and so no back end is named. No rank waits for others at the end.

Usage: mesh_alone.py OUT
"""

import random
import sys

import common
import final_state
import numpy
import pace
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel


def main():
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("replicas",))
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    model = DistributedDataParallel(model, process_group=mesh.get_group("replicas"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = common.data(32)
    names = [dist.get_backend(), dist.get_backend(mesh.get_group()), dist.get_backend(dist.new_group())]
    losses = []
    for _ in range(14):
        pace.work()
        chosen = torch.randint(len(x), (4,))
        optimizer.zero_grad()
        loss = common.loss_of(model, x[chosen], y[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print("back ends", *names, "and then", dist.get_backend())
    final_state.write(sys.argv[1], losses, model, optimizer)


main()
