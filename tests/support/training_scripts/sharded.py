"""fully_shard over 2 x 2 ranks, with the norm read after the step; it knows nothing of torchrelay. Usage: sharded.py OUT [STEPS]

With two or three ranks, and with `SHARDS=alone`, each shard is on one alone.
"""

import os
import sys

import common
import final_state
import pace
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build():
    torch.manual_seed(3)
    blocks = [nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 8)) for _ in range(3)]
    world_size = torch.distributed.get_world_size()
    if world_size < 4 or os.environ.get("SHARDS") == "alone":
        mesh = init_device_mesh("cpu", (world_size,))
    else:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(nn.Sequential(nn.Linear(8, 8), *blocks, nn.Linear(8, 1)), mesh=mesh)


def main():
    out, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 14
    rank, _ = common.start()
    model = build()
    torch.manual_seed(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = common.data(64)
    losses, norms = [], []
    for step in range(steps):
        pace.hold(step + 1)
        pace.work()
        chosen = torch.randint(len(x), (4,))
        optimizer.zero_grad()
        loss = common.loss_of(model, x[chosen], y[chosen])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        pace.let_one_be_first(step + 1)
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.full_tensor().item())
    state = {name: value.to_local() for name, value in model.state_dict().items()}
    final_state.write(out, losses, nn.Module(), torch.optim.SGD([torch.zeros(1)]), shards=state, norms=norms, step=step)
    common.end()


if __name__ == "__main__":
    main()
