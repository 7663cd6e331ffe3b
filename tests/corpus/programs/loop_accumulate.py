"""Gradient accumulation over a loader, `(i + 1) % n`, with `no_sync` for all micro-batches but the last."""

import contextlib

import ending
import pace
import setting
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

ACCUMULATE = 3


def main():
    _, world_size = setting.start()
    data = setting.dataset(18 * 4 * world_size)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = DistributedDataParallel(setting.network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    losses, running, norms = [], 0.0, []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        optimizer.zero_grad()
        for i, (x, y) in enumerate(loader):
            last = (i + 1) % ACCUMULATE == 0
            with contextlib.nullcontext() if last else model.no_sync():
                loss = setting.loss_of(model, x, y) / ACCUMULATE
                loss.backward()
            running += loss.item()
            if last:
                pace.work()
                norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                losses.append(running)
                running = 0.0
    ending.write(losses, model=model, optimizer=optimizer, scheduler=scheduler, norms=norms)
    setting.end()


if __name__ == "__main__":
    main()
