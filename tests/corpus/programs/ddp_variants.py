"""DistributedDataParallel in its variants.

Usage: ddp_variants.py static_graph|find_unused|comm_hook|several|bucket_view|groups|objects|checkpointing
"""

import sys

import ending
import pace
import setting
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class Sometimes(nn.Module):
    """One of its two branches takes part in a step."""

    def __init__(self):
        super().__init__()
        self.body = setting.network(outputs=8)
        self.left, self.right = nn.Linear(8, 1), nn.Linear(8, 1)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        hidden = self.body(x)
        return self.left(hidden) if self.calls % 2 else self.right(hidden)


class Checkpointed(nn.Module):
    """Activations are computed again in backward."""

    def __init__(self):
        super().__init__()
        self.body = setting.network(outputs=8)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(checkpoint(self.body, x, use_reentrant=False))


class TwoParts(nn.Module):
    """Encoder and head, each data parallel by itself."""

    def __init__(self):
        super().__init__()
        self.encoder = DistributedDataParallel(setting.network(outputs=8))
        head = nn.Sequential(nn.Dropout(0.1), nn.Linear(8, 1))
        self.head = DistributedDataParallel(head.to(setting.DEVICE))

    def forward(self, x):
        return self.head(self.encoder(x))


def build(kind):
    if kind == "several":
        return TwoParts()
    if kind == "find_unused":
        return DistributedDataParallel(Sometimes().to(setting.DEVICE), find_unused_parameters=True)
    if kind == "static_graph":
        return DistributedDataParallel(Checkpointed().to(setting.DEVICE), static_graph=True)
    if kind == "checkpointing":
        return DistributedDataParallel(Checkpointed().to(setting.DEVICE))
    if kind == "bucket_view":
        return DistributedDataParallel(setting.network(), gradient_as_bucket_view=True, bucket_cap_mb=0.005)
    model = DistributedDataParallel(setting.network())
    if kind == "comm_hook":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return model


class Reductions:
    """Groups of the script's own: neighbours, and everybody for metrics."""

    def __init__(self, world_size):
        pairs = [[r, r + 1] for r in range(0, world_size - 1, 2)]
        self.pair = next((g for g in [dist.new_group(p) for p in pairs] if dist.get_rank(g) >= 0), None)
        self.metrics = dist.new_group(list(range(world_size)))
        self.kept = []

    def __call__(self, loss):
        value = loss.detach().clone()
        if self.pair is not None:
            dist.all_reduce(value, group=self.pair)
        largest = loss.detach().clone()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self.metrics)
        self.kept.append((value.item(), largest.item()))


def exchange(step, loss, kept):
    """Object collectives, as for metrics and decisions."""
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, {"rank": dist.get_rank(), "loss": loss.item()})
    decision = [sum(g["loss"] for g in gathered) if dist.get_rank() == 0 else None, step]
    dist.broadcast_object_list(decision, src=0)
    kept.append(decision)


def main():
    kind = sys.argv[1]
    _, world_size = setting.start()
    data = setting.dataset(6 * 4 * world_size)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = build(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    reductions = Reductions(world_size) if kind == "groups" else None
    losses, kept = [], []
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
            if reductions is not None:
                reductions(loss)
            if kind == "objects":
                exchange(len(losses), loss, kept)
    if reductions is not None:
        kept = reductions.kept
    ending.write(losses, model=model, optimizer=optimizer, scheduler=scheduler, kept=kept)
    setting.end()


if __name__ == "__main__":
    main()
