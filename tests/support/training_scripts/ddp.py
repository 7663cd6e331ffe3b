"""Data parallel training as many scripts do it; it knows nothing of torchrelay. Usage: ddp.py OUT [EPOCHS]"""

import random
import sys

import final_state
import numpy
import pace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

STEPS_PER_EPOCH = 11


def build():
    return nn.Sequential(
        nn.Linear(16, 48),
        nn.BatchNorm1d(48),
        nn.ReLU(),
        nn.Linear(48, 48),
        nn.Tanh(),
        nn.Dropout(0.2),
        nn.Linear(48, 48),
        nn.Tanh(),
        nn.Linear(48, 1),
    )


def main():
    out, epochs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 6
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1234 + rank)
    random.seed(rank)
    numpy.random.seed(rank)
    fixed = torch.Generator().manual_seed(0)
    count = STEPS_PER_EPOCH * 4 * world_size
    data = TensorDataset(torch.randn(count, 16, generator=fixed), torch.randn(count, 1, generator=fixed))
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = DistributedDataParallel(build(), bucket_cap_mb=0.01)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    step, losses, means = 0, [], []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            pace.hold(step + 1)
            pace.work()
            scale = 1.0 + 0.1 * random.random() + 0.1 * float(numpy.random.rand())
            loss = ((model(x) - scale * y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            losses.append(loss.item())
            total += loss.item()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            means.append(mean.item() / world_size)
        means.append(total)
    final_state.write(
        out,
        losses,
        model,
        optimizer,
        scheduler=scheduler.state_dict(),
        sampler={"epoch": sampler.epoch, "order": list(sampler)},
        means=means,
        step=step,
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
