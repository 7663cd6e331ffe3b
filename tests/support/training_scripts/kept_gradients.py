"""Steps that add to the gradients which earlier ones have left. Usage: kept_gradients.py OUT HOW

HOW: `never` (nothing zeroes them), `views` (they are views into buckets), `third` (zeroed in each third step), `late` (kept from
the tenth on), `in-place` (zeroed in place, so that parameters without use have zeros), `tensor-parallel`, `sharded`, `both`
(and the first block's are neither trained nor zeroed), `alike` (`tensor-parallel`, with gradients of the last layer that are the
same for all of its shards).
"""

import sys

import common
import final_state
import pace
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down, self.unused = (
            nn.Linear(8, 16),
            nn.LayerNorm(16),
            nn.Linear(16, 8),
            nn.Linear(2, 2),
        )

    def forward(self, x):
        return self.down(torch.tanh(self.norm(self.up(x))))


def spread(how, model):
    if how == "both":
        return spread_twice(model)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    if how == "sharded":
        for part in model[:2]:
            fully_shard(part, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    plan = {
        "up": ColwiseParallel(use_local_output=False),
        "norm": SequenceParallel(sequence_dim=0),
        "down": RowwiseParallel(),
    }
    for block in model[:2]:
        parallelize_module(block, mesh, plan)
    if how == "alike":
        parallelize_module(model[2], mesh, ColwiseParallel(output_layouts=Replicate()))
    return model


def spread_twice(model):
    mesh = init_device_mesh("cpu", (1, torch.distributed.get_world_size()), mesh_dim_names=("data", "model"))
    for block in model[:2]:
        block.norm = nn.Identity()
        parallelize_module(block, mesh["model"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["data"])
    return fully_shard(model, mesh=mesh["data"])


def wrapped(how, model):
    if how in ("tensor-parallel", "sharded", "both", "alike"):
        return spread(how, model)
    return DistributedDataParallel(
        model, gradient_as_bucket_view=how == "views", find_unused_parameters=True, bucket_cap_mb=0.0002
    )


def zero(how, step, optimizer):
    if (how == "third" and step % 3 == 2) or (how == "late" and step < 10) or how == "both":
        optimizer.zero_grad()
    elif how == "in-place":
        optimizer.zero_grad(set_to_none=False)


def main():
    out, how = sys.argv[1:]
    rank, _ = common.start()
    torch.manual_seed(3)
    model = wrapped(how, nn.Sequential(Block(), Block(), nn.Linear(8, 2 if how == "alike" else 1)))
    torch.manual_seed(3 if how in ("tensor-parallel", "both", "alike") else rank)
    trained = [p for name, p in model.named_parameters() if how != "both" or not name.startswith("0.")]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.1)
    for parameter in model.parameters() if how == "in-place" else ():
        parameter.grad = torch.zeros_like(parameter)
    x, y = common.data(64)
    losses = []
    for step in range(20):
        pace.hold(step + 1)
        pace.work()
        chosen = torch.randint(len(x), (4,))
        loss = model(x[chosen]).sum() if how == "alike" else common.loss_of(model, x[chosen], y[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        zero(how, step, optimizer)
    shards = {name: getattr(p, "_local_tensor", p).detach() for name, p in model.named_parameters()}
    final_state.write(out, losses, nn.Module(), torch.optim.SGD([torch.zeros(1)]), shards=shards, grads=grads(model))
    common.end()


def grads(model):
    found = {name: p.grad for name, p in model.named_parameters()}
    return {name: getattr(g, "_local_tensor", g) for name, g in found.items()}


main()
