"""The loop of the tutorials: `for epoch`, `for batch`, a sampler with set_epoch."""

import ending
import pace
import setting
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def train_epoch(model, loader, optimizer, scheduler, losses):
    model.train()
    total = 0.0
    for x, y in loader:
        pace.work()
        optimizer.zero_grad()
        loss = setting.loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        total += loss.item()
    return total / len(loader)


def main():
    _rank, world_size = setting.start()
    data = setting.dataset(6 * 4 * world_size)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = DistributedDataParallel(setting.network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=30)
    losses, means = [], []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        means.append(train_epoch(model, loader, optimizer, scheduler, losses))
    ending.write(losses, model=model, optimizer=optimizer, scheduler=scheduler, means=means, epoch=sampler.epoch)
    setting.end()


if __name__ == "__main__":
    main()
