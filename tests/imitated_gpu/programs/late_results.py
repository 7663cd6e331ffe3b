"""Trains, and shares results after each step by functional collectives: its own, and that of a tensor which is spread over ranks.

Usage: late_results.py OUT
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 25


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device), device_ids=[device.index])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(5 + dist.get_rank())
    history = []
    for _ in range(STEPS):
        loss = model(torch.randn(4, 8).to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        own = loss.detach().reshape(1)
        total = functional.all_reduce(own, "sum", dist.group.WORLD)
        of_all = DTensor.from_local(own, mesh, [Shard(0)]).full_tensor()
        history.append([total.item().hex(), [value.hex() for value in of_all.tolist()]])
    (Path(sys.argv[1]) / f"rank{os.environ['RANK']}.json").write_text(json.dumps(history))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
