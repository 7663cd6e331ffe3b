"""FullyShardedDataParallel, the first FSDP, around blocks. Usage: first_fsdp.py OUT KIND

flat: flat parameters. named: the model's own parameters. kept: these, and they stay gathered from forward to backward.
accumulated: a backward that is not reduced comes before. across: two iterations of the loop have one update. whole: each rank has
all. low: parameters are gathered in another dtype. again: activations are computed anew.
"""

import sys

import common
import final_state
import pace
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

STEPS = 16
STRATEGIES = {"kept": ShardingStrategy.SHARD_GRAD_OP, "whole": ShardingStrategy.NO_SHARD}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.wide = nn.Linear(16, 33)
        self.narrow = nn.Linear(33, 16)

    def forward(self, x):
        return x + self.narrow(torch.relu(self.wide(self.norm(x))))


def sharded(kind):
    torch.manual_seed(3)
    blocks = [Block(), Block()]
    if kind == "again":
        blocks = [checkpoint_wrapper(block) for block in blocks]
    return FullyShardedDataParallel(
        nn.Sequential(nn.Linear(8, 16), *blocks, nn.Linear(16, 1)),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        use_orig_params=kind in ("named", "kept"),
        sharding_strategy=STRATEGIES.get(kind, ShardingStrategy.FULL_SHARD),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16) if kind == "low" else None,
        device_id=torch.device("cpu"),
    )


def main():
    out, kind = sys.argv[1:]
    rank, _ = common.start()
    model = sharded(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    of_rank = torch.Generator().manual_seed(rank)
    losses, norms = [], []

    def loss_of():
        x = torch.randn(6, 8, generator=of_rank)
        return ((model(x).float() - x.sum(1, keepdim=True)) ** 2).mean()

    for step in range(STEPS):
        pace.work()
        if kind == "across" and step % 2 == 0:
            with model.no_sync():
                loss_of().backward()
            continue
        if kind == "accumulated":
            with model.no_sync():
                loss_of().backward()
        loss = loss_of()
        loss.backward()
        norms.append(model.clip_grad_norm_(1.0).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    final_state.write(out, losses, model, optimizer, norms=norms)
    common.end()


main()
