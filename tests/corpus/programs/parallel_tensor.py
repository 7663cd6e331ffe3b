"""Tensor parallel, alone or with one or two other dimensions. Usage: parallel_tensor.py tp|tp_dp|hsdp_tp"""

import sys

import ending
import pace
import setting
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def build(kind):
    """The model, and this rank's place and the number of places in the data parallel dimension."""
    world_size = dist.get_world_size()
    model = setting.network()
    if kind == "tp":
        mesh = init_device_mesh(setting.DEVICE, (1, world_size), mesh_dim_names=("dp", "tp"))
    elif kind == "tp_dp":
        mesh = init_device_mesh(setting.DEVICE, (2, world_size // 2), mesh_dim_names=("dp", "tp"))
    else:
        mesh = init_device_mesh(setting.DEVICE, (2, world_size // 4, 2), mesh_dim_names=("replicate", "dp", "tp"))
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if kind != "tp":
        sharded = mesh["replicate", "dp"] if kind == "hsdp_tp" else mesh["dp"]
        for block in model.blocks:
            fully_shard(block, mesh=sharded)
        fully_shard(model, mesh=sharded)
    places = world_size // mesh["tp"].size()
    return model, dist.get_rank() // mesh["tp"].size(), places


def main():
    kind = sys.argv[1]
    setting.start()
    setting.seed_everything(11)  # what one tensor parallel group computes has to be the same on all of its ranks
    model, place, places = build(kind)
    data = setting.dataset(6 * 4 * places)
    sampler = DistributedSampler(data, num_replicas=places, rank=place)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    losses = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            pace.work()
            optimizer.zero_grad()
            loss = setting.loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
    ending.write(losses, model=model, optimizer=optimizer, scheduler=scheduler)
    setting.end()


if __name__ == "__main__":
    main()
